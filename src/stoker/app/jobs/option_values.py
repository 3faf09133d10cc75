"""Values of job options: from the text that a user gives to the value that a job has, and back."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from datetime import datetime
from typing import get_args

from stoker.app.jobs.context import find_program
from stoker.app.jobs.local_time import LocalZone
from stoker.core.errors import StokerError, UsageError
from stoker.core.outcomes import RETRIED
from stoker.core.selectors import Named, parse_selection, quoted
from stoker.core.spec import Dependency, EarlySignal, IdleAction, IdleRule, Name, Preemptible, Resources, parse_array
from stoker.core.units import parse_duration, parse_moment, parse_size, size_text
from stoker.core.warm import AUTO

LONGEST_NAME = 1000
LARGEST_NUMBER = 10**9
LEAST_VRAM = 2**20
PAST_SECONDS = 60.0
"""A start time may be so long ago: the minute in which it was typed."""
_YES = ("true", "yes", "on")
_NO = ("false", "no", "off")
_WITHOUT_MPS = "leave out --mps; where it is configured, --mps=off"
_CODE = r"(?a)\d{1,3}"
_UNITS = ((2**40, "T"), (2**30, "G"), (2**20, "M"))


def parse_freeze(text: str) -> str:
    """How to freeze the code of a job: `code`, `tree` or `no`."""
    words = {"true": "code", "yes": "code", "code": "code", "tree": "tree", "no": "no", "false": "no", "off": "no"}
    wish = words.get(str(text).strip().lower())
    if wish is None:
        raise UsageError(
            f"--freeze={text} is not code, tree or no", "write it as --freeze, --freeze=tree or --no-freeze"
        )
    return wish


def parse_warm(value: str | bool) -> tuple[str, ...]:
    """The modules to import once for all jobs; `auto` for those that a script imports, and none for `no`."""
    text = str(value).strip()
    if text.lower() in {*_YES, *_NO, AUTO}:
        return () if text.lower() in _NO else (AUTO,)
    modules = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(f"--warm: {quoted(module)} is not the name of a module", "write it as --warm=torch,numpy")
    return modules


def parse_mps(value: str | bool) -> int | None:
    """Percent of the threads of a GPU, 100 for a plain --mps; None is without MPS."""
    text = str(value).strip().lower()
    if text in _YES or text in _NO:
        return 100 if text in _YES else None
    if not re.fullmatch(r"\d{1,3}%?", text, re.ASCII) or not 1 <= (percent := int(text.rstrip("%"))) <= 100:
        raise UsageError(f"--mps={text} is not a percentage from 1 to 100", "write it as --mps=50, or as --mps alone")
    return percent


def check_mps(resources: Resources) -> None:
    """Refuse MPS for a job that cannot use it or has its GPU to itself."""
    if resources.mps is None:
        return
    if resources.gpus != 1:
        what = f"-G {resources.gpus} requests {resources.gpus}" if resources.gpus else "-G 0 requests none"
        raise UsageError(f"an MPS client can use only one GPU, but {what}", _WITHOUT_MPS)
    if not resources.shares:
        what = "--mps is for jobs that share a GPU, but this job is exclusive"
        raise UsageError(what, f"add --vram 6G or --vram auto, or {_WITHOUT_MPS}")


def parse_grace(text: str) -> float:
    """Seconds between TERM and KILL; unlike a time limit it may be 0."""
    return 0.0 if text.strip() in ("0", "0s") else parse_duration(text)


def vram_word(text: str) -> str:
    """`all` or `auto`, in any case and spacing; empty where it is neither."""
    word = text.strip().lower()
    return word if word in ("all", "auto") else ""


def parse_vram(text: str) -> int:
    """Bytes on each GPU. A number without a unit is refused: as bytes it would pack all jobs on one GPU."""
    try:
        size = parse_size(text)
    except UsageError as error:
        raise UsageError(error.message, "write it as 6G, 512M or 1.5G, or as auto or all") from None
    if size <= 0:
        raise UsageError("--vram must be greater than 0", "write it as --vram 6G")
    if text.strip()[-1:].isdigit():
        number = text.strip()
        meant = f"{number}G" if size < 1024 else f"{number}M" if size < LEAST_VRAM else size_text(size)
        raise UsageError(f"--vram {number} has no unit", f"write {meant}")
    if size < LEAST_VRAM:
        raise UsageError(f"--vram {text.strip()} is too small", "the minimum is 1M; write it as 6G")
    return size


def parse_assignment(text: str, option: str = "--env") -> tuple[str, str]:
    """Name and value of K=V."""
    name, equals, value = text.partition("=")
    if not equals or not name or "\0" in text:
        raise UsageError(f"{option} {text!r} is not of the form NAME=VALUE", f"write it as {option} SEED=1")
    return name, value


def parse_sbatch_option(text: str, option: str = "--slurm") -> tuple[str, str]:
    """Long name and value of `--mem=16G`, also without its dashes; the value of `--exclusive` is empty."""
    name, equals, value = text.strip().removeprefix("--").partition("=")
    if not equals and " " in name:
        name, _, value = name.partition(" ")
    if len(name) < 2 or name.startswith("-"):
        raise UsageError(f"{option} {text!r} is not a long option of sbatch", f"write it as {option} mem=16G")
    return name, value.strip()


def parse_retry_on(text: str) -> tuple[str, ...]:
    """Results and exit codes after which to retry: `oom,timeout,75`."""
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word not in RETRIED and not (re.fullmatch(_CODE, word) and 1 <= int(word) <= 255):
            what = f"{word!r} is neither a result nor an exit code" if word else f"{text!r} contains an empty item"
            raise UsageError(f"--retry-on: {what}", f"name {', '.join(RETRIED)} or codes from 1 to 255")
    return tuple(dict.fromkeys(words))


def check_name(name: str) -> None:
    """Refuse a name that no variable can hold or that reads as an id; other odd characters are shown escaped."""
    if "\0" in name:
        raise UsageError("a name must not contain a NUL byte", "use a name of printable characters")
    if name and _reads_as_ids(name):
        raise UsageError(
            f"{name!r} cannot be a name: it means other jobs as an id", f"use another one, such as job-{name}"
        )
    if len(name) > LONGEST_NAME:
        raise UsageError(f"a name of {len(name)} characters is too long", f"the limit is {LONGEST_NAME}")


def _reads_as_ids(name: str) -> bool:
    try:
        return not all(isinstance(pick, Named) for pick in parse_selection([name]))
    except StokerError:  # no command finds the job by it, which is harmless
        return False


def check_count(number: int, option: str = "") -> int:
    if number < 0:
        raise UsageError(f"{option or number} must not be negative", f"give {f'{option} 0'.strip()} or more")
    if number > LARGEST_NUMBER:
        raise UsageError(f"{f'{option} {number}'.strip()} is out of range", _range_hint(0))
    return number


def _range_hint(least: int) -> str:
    return f"it must be between {least} and {LARGEST_NUMBER}"


def parse_device_ids(text: str, option: str, resolve: Callable[[str], str]) -> tuple[str, ...]:
    ids = [resolve(word) for word in text.split(",")]
    if len(set(ids)) < len(ids):
        raise UsageError(f"{option} {text} contains a device twice", "name each device once")
    return tuple(ids)


def parse_group(group: str) -> str:
    if not group.isprintable() or len(group) > LONGEST_NAME:
        raise UsageError(f"--group {group[:40]!r} is not printable or too long", "use a name of printable characters")
    return group


def parse_priority(priority: int) -> int:
    if abs(priority) > LARGEST_NUMBER:
        raise UsageError(f"--priority {priority} is out of range", _range_hint(-LARGEST_NUMBER))
    return priority


def parse_array_limits(text: str) -> tuple[int | None, tuple[int, int, int]]:
    """How many tasks may run at once; their number, least and largest index."""
    array = parse_array(text)
    parts = array.indices.parts
    return array.at_once, (len(array.indices), min(part[0] for part in parts), max(part[-1] for part in parts))


def parse_begin(text: str, now: float) -> float:
    moment = parse_moment(text, now, LocalZone())
    if moment < now - PAST_SECONDS:
        raise UsageError(f"--begin {text} is in the past", "leave it out to start as soon as possible")
    return moment


def begin_text(begin: float | None) -> str:
    return "" if begin is None else datetime.fromtimestamp(int(begin), LocalZone()).isoformat()


def parse_request(text: str) -> tuple[int | None, bool]:
    """The memory on each GPU that `--vram` asks for, and whether it is learnt."""
    word = vram_word(text)
    return None if word else parse_vram(text), word == "auto"


def request_text(resources: Resources) -> str:
    if resources.auto or resources.memory is None:
        return "auto" if resources.auto else "all"
    size = resources.memory
    return next((f"{size // unit}{letter}" for unit, letter in _UNITS if size % unit == 0), f"{size}B")


def seconds_text(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:g}s" if seconds < 1e6 else f"{seconds:.0f}s"


def parse_idle(text: str) -> IdleRule:
    """`30m`, `30m:stop`, `stop` after the usual time, or 0 for never."""
    time, _, word = text.strip().rpartition(":")
    action = next((action for action in get_args(IdleAction) if action == word), None)
    time = text.strip() if action is None else time
    try:
        seconds = IdleRule().seconds if action and not time else parse_grace(time)
    except UsageError:
        hint = "write it as 30m, 30m:stop, 30m:preempt, or 0 for never"
        raise UsageError(f"--idle: {text!r} is not understood", hint) from None
    return IdleRule(seconds, action or "report")


def idle_rule_text(rule: IdleRule) -> str:
    return seconds_text(rule.seconds) + (f":{rule.action}" if rule.action != "report" else "")


def after_text(after: tuple[Dependency, ...], name: Name) -> str:
    """Dependencies as typed: `ok:12,any:13`."""
    return ",".join(f"{target.kind}:{target.target if target.array else name(target.target)}" for target in after)


# -- signals -----------------------------------------------------------------------------------

_EARLY_HINT = "write it as USR1@60: the signal, and the seconds before the time limit"


def parse_signal(text: str, option: str = "--signal") -> int:
    """The number of `INT`, `SIGINT` or `2`."""
    name = text.strip().upper().removeprefix("SIG")
    numbers = {member.name.removeprefix("SIG"): member.value for member in signal.Signals}
    numbers |= {str(value): value for value in numbers.values()}
    if name not in numbers:
        raise UsageError(f"{option}: {text!r} is not a signal", "write it as INT, TERM, USR1 or a number")
    return numbers[name]


def parse_early_signal(text: str) -> EarlySignal:
    """Slurm's `[B:]SIGNAL[@SECONDS]`; a duration such as `5m` may replace the seconds."""
    scope, colon, rest = text.strip().rpartition(":")
    if scope.upper() not in ("", "B") or (colon and not scope):
        raise UsageError(f"--signal: {scope + colon!r} is not understood", f"{_EARLY_HINT}, or as B:USR1@60")
    name, at, before = rest.partition("@")
    number = parse_signal(name)
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise UsageError(f"--signal: no program can react to {name}", "use USR1 or TERM")
    try:
        seconds = parse_duration(f"{before}s" if before.strip().isdecimal() else before) if at else 60.0
    except UsageError:
        raise UsageError(f"--signal: {before!r} is not a time", _EARLY_HINT) from None
    return EarlySignal(number, seconds, command_only=bool(scope))


def early_signal_text(early: EarlySignal | None) -> str:
    """The signal as typed: `B:USR1@60`; empty for none."""
    return "" if early is None else f"{'B:' * early.command_only}{signal_name(early.number)}@{early.seconds:g}"


def signal_name(number: int) -> str:
    return signal.Signals(number).name.removeprefix("SIG")


def parse_preemptible(value: str | bool) -> Preemptible:
    """How a job gives way; a plain --preemptible is the same as save."""
    word = str(value).strip().lower()
    if word in ("save", *_YES):
        return "save"
    if word == "restart":
        return "restart"
    if word in ("", *_NO):
        return ""
    hint = "write it as --preemptible=save, --preemptible=restart, or leave it out"
    raise UsageError(f"--preemptible={word} is neither save nor restart", hint)


def parse_save_signal(text: str) -> str:
    """The name of a signal that a program can handle: `USR1`."""
    name = signal_name(number := parse_signal(text, "--save-signal"))
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise UsageError(f"--save-signal: no program can react to {name}", "use USR1 or TERM")
    return name


def parse_exit_code(code: int) -> int | None:
    """An exit code, or -1 for none."""
    if not -1 <= code <= 255:
        raise UsageError(f"--save-exit {code} is not an exit code", "give 0 to 255")
    return None if code < 0 else code


def check_early_signal(early: EarlySignal | None, limit: float | None) -> None:
    """Refuse a signal that would come before the job."""
    if early is not None and limit is not None and early.seconds >= limit:
        raise UsageError(
            f"--signal {early_signal_text(early)}: the time limit of {limit:g}s is not longer than that",
            "give a longer -t, or a shorter time after the @",
        )


# -- targets of notifications ------------------------------------------------------------------

MAIL = "mail"
_HINT = "write mail, or a URL of apprise such as ntfy://topic, slack://..., json://host/path"
_URL = r"([a-zA-Z][a-zA-Z0-9+.-]*)://\S+"
_NEXT = r",(?=\s*(?:mail\s*(?:,|$)|[a-zA-Z][a-zA-Z0-9+.-]*://))"
"""A comma before another target; other commas are part of a URL."""
_COMMON = frozenset(("discord", "json", "jsons", "mailto", "mailtos", "matrix", "ntfy", "ntfys", "slack", "tgram"))
"""Kinds of URL that apprise surely supports."""
MAIL_PROGRAMS = ("/usr/sbin/sendmail", "/usr/lib/sendmail", "sendmail", "mail")


def parse_targets(text: str) -> tuple[str, ...]:
    targets = tuple(dict.fromkeys(word.strip() for word in re.split(_NEXT, text)))
    for target in targets:
        if target != MAIL and not (re.fullmatch(_URL, target) and target.isprintable()):
            raise UsageError(f"--notify: {shown_target(target)!r} is neither a URL nor mail", _HINT)
    return targets


def shown_target(target: str) -> str:
    """The target without what may be secret: `slack://…`."""
    scheme, separator, _ = target.partition("://")
    return f"{scheme}://…" if separator else target[:20]


def why_not_sendable(targets: tuple[str, ...]) -> str:
    """The reason why this machine cannot notify these targets; empty if it can."""
    from importlib.util import find_spec

    from stoker.app.jobs.installation import how_to_add_extra

    if any(target != MAIL for target in targets) and find_spec("apprise") is None:
        return f"apprise is not installed; {how_to_add_extra('notify')}"
    if unknown := [target for target in targets if target != MAIL and not _is_supported(target)]:
        return f"apprise does not support {shown_target(unknown[0])}"
    if MAIL in targets and mail_program() is None:
        return "neither sendmail nor mail is installed"
    return ""


def _is_supported(target: str) -> bool:
    """Whether apprise knows the kind of URL; it takes half a second to load, so common kinds are not asked for."""
    if target.partition("://")[0].lower() in _COMMON:
        return True
    import apprise

    return apprise.Apprise.instantiate(target) is not None


def mail_program() -> str | None:
    return next(filter(None, map(find_program, MAIL_PROGRAMS)), None)
