"""The older tool simple_gpu_scheduler: commands on standard input, each run on the next free slot of --gpus."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
from collections.abc import Sequence

from stoker.cli.console import open_missing_streams, write_past_buffer
from stoker.core.errors import StokerError
from stoker.core.job import Assigned, Ended, Job, JobEvent, Lost
from stoker.core.launch import INHERIT
from stoker.core.planner.policy import Policy
from stoker.core.spec import JobSpec, NewJob
from stoker.core.text import outcome, printable
from stoker.core.units import count_text
from stoker.devices.detect import declare
from stoker.devices.interface import Devices
from stoker.engine.foreground import Complaints, Foreground, Setup
from stoker.ledger import find_ledger
from stoker.queue.job_files import Lines, StreamSource, Unusable
from stoker.queue.options import current_umask, current_user
from stoker.sites.machine.site import MachineConfig
from stoker.store.paths import find_paths

PROGRAM = "simple_gpu_scheduler"

STANDARD_INPUT, STANDARD_OUTPUT, STANDARD_ERROR = range(3)
VERY_SHORT = 0.01
"""Seconds; only commands shorter than a person could follow may leave the order in which slots become free."""
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the commands that come on standard input, and return the exit code."""
    options = _parser().parse_args(arguments)
    open_missing_streams()
    try:
        return _run(slots_of(options.gpus))
    except StokerError as error:
        _say(f"error: {error.message}; {error.hint}")
        return error.exit_code
    except OSError as error:
        _say(f"error: the system refuses: {error.strerror}")
        return StokerError.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def slots_of(words: Sequence[str]) -> list[str]:
    """One word is a list with commas; of several, each is a slot as it stands, also one of several GPUs."""
    return words[0].split(",") if len(words) == 1 else list(words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Run each line of standard input as a shell command on a GPU that no other command has.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
        contextlib.closing(declare(slots)) as devices,
        contextlib.closing(Foreground(_setup(slots, devices), Announcements())) as run,
    ):
        run.run(_commands(run))
        _sum_up(run)
        return _exit_code(run)


def _warn_of_odd_slots(slots: Sequence[str]) -> None:
    for slot in slots:
        if any(not part or part != part.strip() for part in slot.split(",")):
            _say(f"warning: the slot {slot!r} is used as it stands; for one GPU each write 0,1,2 or 0 1 2")


def _setup(slots: Sequence[str], devices: Devices) -> Setup:
    paths = find_paths(os.environ, socket.gethostname(), simulated=False)
    return Setup(
        paths=paths,
        site=MachineConfig(ledger=find_ledger(os.environ), devices=devices, user=current_user(), share_output=True),
        policy=Policy(newest_first=True, ahead=VERY_SHORT),
        label=f"{PROGRAM} --gpus {' '.join(slots)}",
    )


def _commands(run: Foreground) -> StreamSource:
    """The commands as they arrive on standard input."""
    environment = run.store.add_environment(os.environ)
    spec = JobSpec(cwd=os.getcwd(), environment=environment, umask=current_umask(), out=INHERIT)

    def refuse(item: Unusable) -> None:
        run.tally.unusable += 1
        _say(f"{item.where} is left out: {item.sentence}")

    lines = Lines("stdin", os.environ.get("SHELL") or "/bin/sh")
    return StreamSource(STANDARD_INPUT, lines, lambda item: NewJob(item.command, spec), refuse)


def _sum_up(run: Foreground) -> None:
    tally = run.tally
    if tally.failed:
        _say(f"{tally.failed} of {count_text(tally.given + tally.unusable, 'command')} failed")
    if left := run.engine.waiting:
        again = "stoker run --resume -o - with the same list runs what is missing"
        _say(f"{count_text(left, 'command')} not started; {again}")


def _exit_code(run: Foreground) -> int:
    if run.stopped_by is not None:
        return 128 + run.stopped_by
    return 1 if run.tally.failed else 0


class Announcements:
    """Says on standard output where each command goes, and on standard error what goes wrong."""

    interval: float | None = None

    def __init__(self) -> None:
        self._slots: dict[int, str] = {}
        """The slot announced for each command that is not over."""
        self._complaints = Complaints(_say)

    def happened(self, job_event: JobEvent) -> None:
        """Called for an assignment before its worker hears of it, so what a command prints comes after its line."""
        job = job_event.job
        if isinstance(job_event.event, Assigned):
            self._announce(job, job_event.devices[0].label)
        elif isinstance(job.state, Ended):
            _report(job, job.state, self._slots.pop(job.id, None))
        elif isinstance(job_event.event, Lost):
            del self._slots[job.id]

    def refresh(self, run: Foreground) -> None:
        """Say once what keeps everything from starting."""
        self._complaints.check(run)

    def say(self, text: str) -> None:
        """A sentence to the person."""
        _say(text)

    def close(self) -> None:
        """Nothing to undo."""

    def _announce(self, job: Job, slot: str) -> None:
        """Once for each start: a command handed over ahead may come back, and counts as new only on another slot."""
        if self._slots.get(job.id) != slot:
            self._slots[job.id] = slot
            write_past_buffer(STANDARD_OUTPUT, f"Processing command `{_one_line(job)}` on gpu {slot}\n")


def _report(job: Job, state: Ended, slot: str | None) -> None:
    if state.result != "done" or state.note:
        where = "" if slot is None else f" on gpu {slot}"
        note = f" ({state.note})" if state.note else ""
        _say(f"{outcome(state)}{where}: `{_one_line(job)[:SHOWN_COMMAND]}`{note}")


def _one_line(job: Job) -> str:
    """The command, with lines that a backslash continues joined as the shell joins them."""
    return job.command.text.replace("\\\n", "")


def _say(text: str) -> None:
    write_past_buffer(STANDARD_ERROR, f"{PROGRAM}: {printable(text)}\n")
