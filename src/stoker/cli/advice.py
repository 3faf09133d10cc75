"""Say what to type instead: for wrong options, options of Slurm, and jobs that are in the other queue."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Sequence

import click

from stoker.app.jobs.context import find_program
from stoker.app.jobs.options import BY_NAME, JobOptions, Option
from stoker.app.jobs.script import TABLES, CommandLine
from stoker.cli.options import SIM, sim_words
from stoker.core.errors import NoSuchJob, StokerError, UsageError, nearest
from stoker.core.spec import parse_array

_OF_JOBS = ("submit", "run")
_FOREIGN = {
    "--gres": "GPUs are -G 2, their model --gpu-type a100",
    "--wrap": "give the command itself: stoker submit 'python3 train.py'",
    "--devices": "--on 0,1 lets these jobs use only GPUs 0 and 1; "
    "for all jobs: STOKER_DEVICES=0,1 stoker engine restart",
    "--ntasks": "stoker starts one process; many tasks are an array: -a 0-9",
    "--cpus-per-task": "CPUs are not reserved on one machine; on a cluster: --slurm cpus-per-task=8",
    "--partition": "there is one machine, whose GPUs --gpu-type and --on choose; on a cluster: --slurm partition=NAME",
    "--mail-type": "use --notify; the setting on_finish runs a command after each job",
    "--mail-user": "use --notify; the setting on_finish runs a command after each job",
    "--hold": "stoker run starts jobs at once; type: stoker submit --hold",
}
"""Options of Stoker in place of those of other tools."""
_COMMANDS = {
    "sbatch": "stoker submit SCRIPT",
    "srun": "stoker run -- COMMAND",
    "squeue": "stoker",
    "scancel": "stoker cancel ID",
    "sacct": "stoker history",
    "sinfo": "stoker gpus",
    "scontrol": "stoker status ID, stoker edit ID, stoker pause ID or stoker resume ID",
    **dict.fromkeys(("ps", "list", "jobs", "info"), "stoker, or stoker status ID"),
    **dict.fromkeys(("tail", "attach", "output", "cat"), "stoker logs -f ID"),
    **dict.fromkeys(("delete", "remove", "del"), "stoker cancel ID"),
    **dict.fromkeys(("doctor", "check", "health"), "stoker engine check"),
    **dict.fromkeys(("config", "settings"), "stoker engine config"),
    **dict.fromkeys(("nvidia-smi", "smi", "nodes"), "stoker gpus"),
    "start": "stoker submit -- COMMAND; the engine: stoker engine start",
    "stop": "stoker cancel ID; the engine: stoker engine stop",
    "restart": "stoker retry ID; the engine: stoker engine restart",
    "users": "stoker status --by-user",
    "install": "stoker engine install",
    "completion": "stoker engine completion",
    "version": "stoker --version",
}
"""Commands of other tools, each with what to type in its place."""
_REMOVING = ("clear", "clean", "prune")
"""Commands of other tools that remove ended jobs."""
_LISTS = (*TABLES, ".txt", ".list")
"""Suffixes of job lists."""
_A_JOB = re.compile(r"\d+([._][\d,\[\]-]+)?")


def meant_command(words: Sequence[str]) -> str:
    """A hint for words that begin with no command: one of another tool, an id, a file or a program; else empty."""
    word = words[0]
    if advice := _COMMANDS.get(word):
        return f"type: {advice}"
    if word in _REMOVING:
        return "this is not needed: Stoker removes ended jobs by itself (setting keep)"
    if _A_JOB.fullmatch(word):
        return f"type: {shlex.join(['stoker', 'status', *words])}"
    if os.path.isfile(word) and word.endswith(_LISTS):
        return f"type: {shlex.join(['stoker', 'run', *words])}"
    if os.path.isfile(word):
        python = ["--", "python3"] if word.endswith(".py") else []
        return f"type: {shlex.join(['stoker', 'submit', *python, *words])}"
    if len(words) > 1 and find_program(word):
        return f"type: {shlex.join(['stoker', 'submit', '--', *words])}"
    return ""


def usage_error(error: click.ClickException, words: Sequence[str]) -> StokerError:
    """An error of click in our words."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"see: {context.command_path if context else f'stoker {words[0]}'} --help"
    if isinstance(error, click.NoSuchOption):
        command = context.command.name if context else ""
        near = _near_option(error.option_name, error.possibilities or ()) or hint
        advice = _foreign(error.option_name) if command in _OF_JOBS else ""
        return UsageError(f"no such option: {error.option_name}", advice or near)
    text = error.format_message().rstrip(".").replace("\n", " ")
    return UsageError(text[:1].lower() + text[1:], hint)


def _near_option(flag: str, possible: Sequence[str]) -> str:
    """A hint at the nearest of click's suggestions, which counts the dashes as common letters."""
    names = {option.lstrip("-"): option for option in possible}
    near = nearest(flag.lstrip("-"), names)
    return f"did you mean {names[near]}?" if near else ""


def _foreign(flag: str) -> str:
    """The option that replaces one of sbatch; empty if it is none."""
    from stoker.app.jobs.directives import FLAGS, IGNORED, PASSED, SHORT, UNSUPPORTED

    long = flag[2:] if flag.startswith("--") else SHORT.get(flag[1:], "")
    if advice := _FOREIGN.get(f"--{long}"):
        return advice
    option = next((flag.option for flag in FLAGS if flag.long == long), "")
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


def misplaced_option(line: CommandLine, options: JobOptions) -> str:
    """A note where a word after the command looks like an option for Stoker that was not given before it."""
    misplaced: list[str] = []
    rest = list(line.words[:1])
    following = list(line.words[1:])
    while following:
        given = _option_for_us(following, options)
        misplaced += given
        taken = len(given) if given and "=" not in following[0] else 1
        rest += [] if given else following[:1]
        following = following[taken:]
    if not misplaced:
        return ""
    before = [given for given in line.options if given != "--"]
    typed = shlex.join(["stoker", line.verb, *before, *misplaced, "--", *rest])
    verb, what = ("goes", "it is") if len(misplaced) == 2 else ("go", "they are")
    return f"note: {shlex.join(misplaced)} {verb} to {rest[0]}; if {what} meant for stoker, type: {typed}"


def _option_for_us(words: Sequence[str], options: JobOptions) -> list[str]:
    """The option and its value, where the words begin with one that can be meant for Stoker and was not given to it."""
    flag, equals, value = words[0].partition("=")
    option = next((BY_NAME[name] for name in _MISPLACED if flag in (BY_NAME[name].flag, BY_NAME[name].short)), None)
    if option is None or (flag == option.short and flag not in _SHORT):
        return []
    value = value if equals else "".join(words[1:2])
    return [flag, value] if getattr(options, option.name) is None and _is_value(option, value) else []


def _is_value(option: Option, value: str) -> bool:
    """Whether it can be meant for Stoker; a plain number as a time is more likely the program's."""
    if option.kind == "number":
        return value.lstrip("-").isdecimal()
    if option.name in ("time", "array") and value.isdecimal():
        return False
    try:
        parse_array(value) if option.name == "array" else option.parse(value)
    except StokerError:
        return False
    return True


def other_queue(error: NoSuchJob, words: Sequence[str]) -> StokerError:
    """The error with the right command, where the job is in the queue of the other GPUs, simulated or real."""
    name, equals, value = error.word.partition("=")
    if words[0] == "edit" and equals and name in BY_NAME:
        return NoSuchJob(error.message, f"options begin with dashes: {BY_NAME[name].flag} {shlex.quote(value)}")
    from stoker.app.jobs.select import is_there
    from stoker.core.units import LAST_GPUS
    from stoker.store.paths import paths_for
    from stoker.store.writer import open_store

    place = next((place for place, word in enumerate(words) if sim_words([word])), None)
    here, is_elsewhere = None, False
    with contextlib.suppress(StokerError, OSError):
        here = paths_for(None if place is None else LAST_GPUS)
        other = here.other
        if error.word and other.database.exists():
            with contextlib.closing(open_store(other)) as store:
                is_elsewhere = is_there(store, error.word)
    if not here or not is_elsewhere:
        return error
    where = "of this machine's own GPUs" if here.is_simulated else "of the simulated GPUs"
    what = f"the queue {where} has jobs" if error.word == "last" else f"{error.word} is in the queue {where}"
    return NoSuchJob(error.message, f"{what}; type: {_typed_for_other(words, place)}")


def _typed_for_other(words: Sequence[str], place: int | None) -> str:
    """The same command line for the other queue."""
    given = os.environ.get("STOKER_SIM")
    if place is None and not given:
        return shlex.join(["stoker", words[0], SIM, *words[1:]])
    rest = words if place is None else [*words[:place], *words[place + sim_words(words[place:]) :]]
    return shlex.join([*(("env", "-u", "STOKER_SIM") if given else ()), "stoker", *rest])
