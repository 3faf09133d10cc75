"""simple_gpu_scheduler: run each command from standard input on the next free slot of --gpus."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from stoker.app.jobs.job_files import Lines, RejectedLine, StreamSource, usable_shell
from stoker.app.jobs.parent import declare_here
from stoker.core.job import Assigned, Ended, Job, JobEvent, Lost
from stoker.core.launch import INHERIT
from stoker.core.settings import Policy
from stoker.core.spec import NewJob
from stoker.core.text import outcome
from stoker.core.units import count_text
from stoker.devices.interface import Devices
from stoker.engine.foreground import Foreground, Setup
from stoker.features.compat.foreground import ToolView, inherited_spec, tool_setup, withdraw
from stoker.features.compat.tool import STANDARD_INPUT, Parser, announce, run_tool, say

PROGRAM = "simple_gpu_scheduler"

NOT_STARTED = "not started: its scheduler was stopped"

SHOWN_COMMAND = 200
"""Characters of a command that a report on standard error shows."""

_EXAMPLES = """\
examples:
  simple_gpu_scheduler --gpus 0 1 2 < commands.txt
  simple_gpu_scheduler --gpus 0,0,1,1 < commands.txt            two commands at a time on each GPU
  simple_gpu_scheduler --gpus 0,1 2,3 < commands.txt            two GPUs for each command
  tail -f -n 0 gpu.queue | simple_gpu_scheduler --gpus 0,1,2    commands as they are appended to a file

Ctrl-C lets running commands finish, a second one stops them, a third kills them.
"""

_say = partial(say, PROGRAM)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the commands from standard input, and return the exit code."""
    return run_tool(PROGRAM, lambda: _run(slots_of(_parser().parse_args(arguments).gpus)))


def slots_of(words: Sequence[str]) -> list[str]:
    """One word is a list with commas. Each of several words is one slot, possibly of several GPUs."""
    return words[0].split(",") if len(words) == 1 else list(words)


def _parser() -> Parser:
    parser = Parser(PROGRAM, "Run each line of standard input as a shell command on a free GPU.", _EXAMPLES)
    parser.add_argument(
        "--gpus",
        nargs="+",
        required=True,
        help="the GPUs, as 0 1 2 or 0,1,2; commands find theirs in CUDA_VISIBLE_DEVICES",
    )
    return parser


def _run(slots: Sequence[str]) -> int:
    _warn_of_odd_slots(slots)
    with (
        contextlib.closing(declare_here(slots)) as devices,
        contextlib.closing(Foreground(_setup(slots, devices), Announcements())) as run,
    ):
        run.run(_commands(run))
        _sum_up(run, slots)
        if run.stopped_by is not None:
            withdraw(run, NOT_STARTED)
            return 128 + run.stopped_by
        return 1 if run.tally.failed else 0


def _warn_of_odd_slots(slots: Sequence[str]) -> None:
    for slot in slots:
        if any(not part or part != part.strip() for part in slot.split(",")):
            _say(f"warning: the slot {slot!r} is used unchanged; for one GPU each write 0,1,2 or 0 1 2")


def _setup(slots: Sequence[str], devices: Devices) -> Setup:
    setup = tool_setup(devices, f"{PROGRAM} --gpus {' '.join(slots)}", share_output=True)
    return replace(setup, policy=Policy(order="age", newest_first=True))


def _commands(run: Foreground) -> StreamSource:
    spec = replace(inherited_spec(run), out=INHERIT)

    def refuse(item: RejectedLine) -> None:
        run.tally.unusable += 1
        _say(f"{item.where} is left out: {item.sentence}")

    lines = Lines("stdin", usable_shell(os.environ, _say))
    return StreamSource(STANDARD_INPUT, lines, lambda item: NewJob(item.command, spec), refuse)


def _sum_up(run: Foreground, slots: Sequence[str]) -> None:
    tally = run.tally
    if tally.failed:
        _say(f"{tally.failed} of {count_text(tally.given + tally.unusable, 'command')} failed")
    if left := run.engine.waiting:
        again = (
            f"stoker run --resume -o - {_newer_spelling(slots)} with the same list and in this directory runs the rest"
        )
        _say(f"{count_text(left, 'command')} not started and removed from the queue; {again}")


def _newer_spelling(slots: Sequence[str]) -> str:
    """The same GPUs as options of `stoker run`; slots of different sizes have no equal there."""
    size = min(slot.count(",") + 1 for slot in slots)
    return " ".join([*([f"-G {size}"] if size > 1 else []), "--devices", shlex.quote(",".join(slots))])


class Announcements(ToolView):
    """Prints the slot of each command, and reports failures on standard error."""

    def __init__(self) -> None:
        super().__init__(_say)
        self._slots: dict[int, str] = {}
        """The announced slot of each unfinished command, by job id."""

    def happened(self, job_event: JobEvent) -> None:
        """An announcement precedes the output of its command."""
        job = job_event.job
        if isinstance(job_event.event, Assigned):
            self._announce(job, job_event.devices[0].label)
        elif isinstance(job.state, Ended):
            _report(job, job.state, self._slots.pop(job.id, None))
        elif isinstance(job_event.event, Lost):
            slot = self._slots.pop(job.id)
            _say(f"the worker of gpu {slot} was killed; retrying: `{_shortened(job)}`")

    def _announce(self, job: Job, slot: str) -> None:
        """A prefetched command may come back to the queue; it is announced again only on another slot."""
        if self._slots.get(job.id) != slot:
            self._slots[job.id] = slot
            announce(f"Processing command `{_one_line(job)}` on gpu {slot}\n")


def _report(job: Job, state: Ended, slot: str | None) -> None:
    if state.note != NOT_STARTED and (state.result != "done" or state.note):
        where = "" if slot is None else f" on gpu {slot}"
        note = f" ({state.note})" if state.note else ""
        _say(f"{outcome(state)}{where}: `{_shortened(job)}`{note}")


def _shortened(job: Job) -> str:
    return _one_line(job)[:SHOWN_COMMAND]


def _one_line(job: Job) -> str:
    """The command with continued lines joined as the shell joins them."""
    return job.command.text.replace("\\\n", "")
