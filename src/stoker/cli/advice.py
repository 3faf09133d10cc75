"""Say what to type instead: for wrong options, options of Slurm, and jobs that are in the other queue."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Sequence

import click

from stoker.cli.sim_option import SIM, sim_words
from stoker.core.errors import NoSuchJob, StokerError, UsageError
from stoker.core.spec import parse_array
from stoker.queue.options import BY_NAME, JobOptions, Option
from stoker.queue.script import Line

_OF_JOBS = ("submit", "run")
_FOREIGN = {
    "--gres": "GPUs are -G 2, their model --gpu-type a100",
    "--wrap": "give the command itself: stoker submit 'python train.py'",
    "--devices": "--on 0,1 lets these jobs use only GPUs 0 and 1; "
    "for all jobs: STOKER_DEVICES=0,1 stoker engine restart",
    "--ntasks": "stoker starts one process; many tasks are an array: -a 0-9",
    "--cpus-per-task": "CPUs are not reserved on one machine; on a cluster: --slurm cpus-per-task=8",
    "--partition": "there is one machine, whose GPUs --gpu-type and --on choose; on a cluster: --slurm partition=NAME",
    "--mail-type": "use --notify; the setting on_finish runs a command after each job",
    "--mail-user": "use --notify; the setting on_finish runs a command after each job",
    "--hold": "stoker run starts jobs at once; type: stoker submit --hold",
}
"""What to type in place of options of other tools."""


def usage_error(error: click.ClickException, words: Sequence[str]) -> StokerError:
    """An error of click in our words."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"see: {context.command_path if context else f'stoker {words[0]}'} --help"
    if isinstance(error, click.NoSuchOption):
        command = context.command.name if context else ""
        near = f"did you mean {error.possibilities[0]}?" if error.possibilities else hint
        advice = _foreign(error.option_name) if command in _OF_JOBS else ""
        return UsageError(f"no such option: {error.option_name}", advice or near)
    text = error.format_message().rstrip(".").replace("\n", " ")
    return UsageError(text[:1].lower() + text[1:], hint)


def _foreign(flag: str) -> str:
    """What replaces an option of sbatch; empty where it is none."""
    from stoker.queue.directives import FLAGS, IGNORED, PASSED, SHORT, UNSUPPORTED

    long = flag[2:] if flag.startswith("--") else SHORT.get(flag[1:], "")
    if advice := _FOREIGN.get(f"--{long}"):
        return advice
    option = next((one.option for one in FLAGS if one.long == long), "")
    if option:
        return f"in stoker it is --{option.replace('_', '-')}"
    if long in PASSED:
        return (
            f"it has no effect on one machine; on a cluster: --slurm {long}{'=...' if PASSED[long] == 'value' else ''}"
        )
    if long in IGNORED:
        return "it has no effect on one machine; leave it out"
    return "stoker has no such option; see docs/from-slurm.md" if long in UNSUPPORTED else ""


_MISPLACED = ("gpus", "vram", "time", "priority", "array", "retries")
_SHORT = ("-G", "-t")


def misplaced_option(line: Line, options: JobOptions) -> str:
    """A note where a word after the command looks like an option for Stoker that was not given before it."""
    words = line.words
    for place, word in enumerate(words[1:], 1):
        flag, equals, value = word.partition("=")
        following = words[place + 1 : place + 2]
        option = next((BY_NAME[name] for name in _MISPLACED if flag in (BY_NAME[name].flag, BY_NAME[name].short)), None)
        if option is None or (flag == option.short and flag not in _SHORT):
            continue
        value = value if equals else "".join(following)
        if getattr(options, option.name) is None and _is_value(option, value):
            rest = [*words[:place], *words[place + (1 if equals else 2) :]]
            before = [given for given in line.options if given != "--"]
            typed = shlex.join(["stoker", line.verb, *before, flag, value, "--", *rest])
            return f"note: {flag} {value} goes to {words[0]}; if it is meant for stoker, type: {typed}"
    return ""


def _is_value(option: Option, value: str) -> bool:
    """Whether it can be meant for Stoker; a plain number as a time is more likely the program's."""
    if option.kind == "number":
        return value.lstrip("-").isdecimal()
    if option.name in ("time", "array") and value.isdecimal():
        return False
    try:
        parse_array(value) if option.name == "array" else option.check(value)
    except StokerError:
        return False
    return True


def other_queue(error: NoSuchJob, words: Sequence[str]) -> StokerError:
    """The error with the right command, where the job is in the queue of the other GPUs, simulated or real."""
    from stoker.queue.select import is_there
    from stoker.store.paths import paths_here
    from stoker.store.writer import open_store

    place = next((place for place, word in enumerate(words) if sim_words([word])), None)
    simulated = place is not None or bool(os.environ.get("STOKER_SIM"))
    found = False
    with contextlib.suppress(StokerError, OSError):
        other = paths_here(simulated).other
        if error.word and other.database.exists():
            with contextlib.closing(open_store(other)) as store:
                found = is_there(store, error.word)
    if not found:
        return error
    where = "of this machine's own GPUs" if simulated else "of the simulated GPUs"
    what = f"the queue {where} has jobs" if error.word == "last" else f"{error.word} is in the queue {where}"
    return NoSuchJob(error.message, f"{what}; type: {_typed_for_other(words, place)}")


def _typed_for_other(words: Sequence[str], place: int | None) -> str:
    """The same command line for the other queue."""
    given = os.environ.get("STOKER_SIM")
    if place is None and not given:
        return shlex.join(["stoker", words[0], SIM, *words[1:]])
    rest = words if place is None else [*words[:place], *words[place + sim_words(words[place:]) :]]
    return shlex.join([*(("env", "-u", "STOKER_SIM") if given else ()), "stoker", *rest])
