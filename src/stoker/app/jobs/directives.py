"""Options in the `#STOKER` and `#SBATCH` lines at the top of a script."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from stoker.app.jobs.option_values import parse_early_signal, seconds_text, signal_name
from stoker.app.jobs.options import BY_NAME, OPTIONS, JobOptions, Option, merged, read_tables
from stoker.core.errors import StokerError, UsageError, did_you_mean
from stoker.core.spec import parse_after

Takes = Literal["value", "nothing", "optional"]
_LINE = re.compile(r"#(STOKER|SBATCH)(?:\s+(.*))?")
_NO_LIMIT = ("0", "-1", "infinite", "unlimited")
_GPUS = re.compile(r"(?P<model>[A-Za-z][^:]*)?:?(?P<count>\d{1,6})?", re.ASCII)
_DEFAULT_NICE = "100"
"""The value of a plain `--nice` in sbatch."""


class Directives(Struct, frozen=True):
    """The options of the lines of a script."""

    options: JobOptions = JobOptions()
    from_slurm: bool = False
    """Whether there are #SBATCH lines."""
    passed: dict[str, str] = {}
    """Options of sbatch by long name that a cluster gets; on one machine they mean nothing."""
    places: dict[str, str] = {}
    """The line of each option that may be refused later."""
    ignored: tuple[str, ...] = ()
    """Flags of sbatch that mean nothing here."""
    unsupported: tuple[str, ...] = ()
    """Flags of sbatch that are known, but that no option of Stoker can replace."""
    unknown: tuple[str, ...] = ()
    late: int | None = None
    """Number of the first line that comes after a command, so that it is not read."""

    def notes(self, script: str, *, passes: bool = False) -> Iterator[str]:
        """Sentences for the user about options that are not applied; `passes` is whether a cluster gets the others."""
        ignored = [*self.ignored, *(() if passes else (f"--{name}" for name in self.passed))]
        if ignored:
            where = "" if passes else "on one machine "
            yield f"{script}: {where}these #SBATCH options are ignored: {', '.join(ignored)}"
        missing = [*self.unsupported, *(f"{flag} (unknown)" for flag in self.unknown)]
        if missing:
            yield f"warning: {script}: these #SBATCH options are not applied: {', '.join(missing)}"
        if self.late:
            yield f"warning: {script} line {self.late}: options after the first command are not read, as in sbatch"


class Given(NamedTuple):
    """One option of a line."""

    flag: str
    """As it was typed, without its value."""
    value: str | None
    where: str


def read_directives(data: bytes, name: str) -> Directives:
    """The options of a script; those of #STOKER lines override those of #SBATCH lines."""
    if b"#STOKER" not in data and b"#SBATCH" not in data:
        return Directives()
    lines: dict[str, list[tuple[str, str]]] = {"STOKER": [], "SBATCH": []}
    late = None
    at_top = True
    for number, line in enumerate(data.decode(errors="surrogateescape").splitlines(), 1):
        at_top = at_top and (not line.strip() or line.startswith("#"))
        if not (match := _LINE.fullmatch(line.rstrip())):
            continue
        if not at_top:
            late = number
            break
        lines[match[1]].append((match[2] or "", f"{name} line {number}"))
    slurm = _Slurm(lines["SBATCH"])
    return Directives(
        merged(slurm.options(), _stoker_options(lines["STOKER"])),
        bool(lines["SBATCH"]),
        slurm.passed,
        slurm.places,
        tuple(slurm.ignored),
        tuple(slurm.unsupported),
        tuple(slurm.unknown),
        late,
    )


def _given(lines: Iterable[tuple[str, str]], takes: Callable[[str], Takes | None]) -> Iterator[Given]:
    """The options of lines, with their values; one that may have none takes a next word that is no option."""
    for text, where in lines:
        words = _words(text, where)
        while words:
            word = words.pop(0)
            if word in ("hetjob", "packjob"):
                hint = "submit its parts as jobs of their own, or the script with sbatch"
                raise UsageError(f"{where}: a heterogeneous job ({word}) is not supported", hint)
            if not word.startswith("-") or word in ("-", "--"):
                raise UsageError(f"{where}: {word!r} is not an option", "write options only, such as --time 2h")
            flag, value = _split(word)
            kind = takes(flag)
            if value is None and words and (kind == "value" or (kind != "nothing" and not words[0].startswith("-"))):
                value = words.pop(0)
            if value is None and kind == "value":
                raise UsageError(f"{where}: {flag} needs a value", f"write it as {flag} VALUE")
            if value is not None and kind == "nothing":
                raise UsageError(f"{where}: {flag} takes no value", f"write it as {flag}")
            yield Given(flag, value, where)


def _words(text: str, where: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise UsageError(f"{where}: {str(error).lower()}", "close the quotes") from None


def _split(word: str) -> tuple[str, str | None]:
    """`--time=5`, `-t5` and `-t` as flag and value."""
    if word.startswith("--"):
        flag, equals, value = word.partition("=")
        return flag, value if equals else None
    return word[:2], word[2:].removeprefix("=") or None


# -- #STOKER -------------------------------------------------------------------------------------

_STOKER_FLAGS: Mapping[str, Option] = {
    flag: option
    for option in OPTIONS
    for flag in (option.flag, option.short, f"--no-{option.name}" if option.kind == "switch" else "")
    if flag
}


def _stoker_takes(flag: str) -> Takes | None:
    option = _STOKER_FLAGS.get(flag)
    if option is None:
        return None
    if option.alone:
        return "optional"
    return "nothing" if option.kind in ("flag", "switch") else "value"


def _stoker_options(lines: Sequence[tuple[str, str]]) -> JobOptions:
    values: dict[str, Any] = {}
    tables: dict[str, list[str]] = {}
    for flag, value, where in _given(lines, _stoker_takes):
        option = _STOKER_FLAGS.get(flag)
        if option is None:
            hint = did_you_mean(flag, _STOKER_FLAGS, "#STOKER lines take the job options of stoker submit --help")
            raise UsageError(f"{where}: {flag} is not a job option", hint)
        with placed(where):
            if option.kind == "table":
                tables.setdefault(option.name, []).append(value or "")
            else:
                values[option.name] = _typed(option, flag, value)
    return JobOptions(**{**values, **read_tables(tables)})


def _typed(option: Option, flag: str, value: str | None) -> Any:
    """The value as click would read it."""
    if value is None:
        return option.alone or not flag.startswith("--no-") or option.kind == "flag"
    read: Any = value
    if option.kind == "number":
        if not re.fullmatch(r"[+-]?\d{1,18}", value, re.ASCII):
            raise UsageError(f"{flag} {value!r} is not a number", f"write it as {flag} 2")
        read = int(value)
    option.parse(read)
    return read


@contextlib.contextmanager
def placed(where: str) -> Iterator[None]:
    """Put the line of an option before an error that follows from it; an empty one changes nothing."""
    try:
        yield
    except StokerError as error:
        raise type(error)(f"{where}: {error.message}", error.hint) if where else error from None


# -- #SBATCH -------------------------------------------------------------------------------------

Values = Mapping[str, Any]
"""Fields of JobOptions."""


class SlurmFlag(NamedTuple):
    """A flag of sbatch that becomes an option of Stoker."""

    long: str
    option: str
    """The name of that option."""
    convert: Callable[[str], Values]
    short: str = ""
    takes: Takes = "value"


def _same(option: str) -> Callable[[str], Values]:
    return lambda value: {option: value}


def _constant(option: str, value: object) -> Callable[[str], Values]:
    return lambda _: {option: value}


def _limit(value: str) -> Values:
    if value.lower() in _NO_LIMIT:
        return {"time": None}
    BY_NAME["time"].parse(value)
    return {"time": value}


def _saves(signal: str) -> Values:
    """A job that Slurm may requeue, and that saves its state at a signal, gives way."""
    early = parse_early_signal(signal)
    return {
        "preemptible": "save",
        "save_signal": signal_name(early.number),
        "save_time": seconds_text(early.seconds),
    }


def _after(value: str) -> Values:
    if "singleton" in (item.strip().lower() for item in value.split(",")):
        hint = "a group with a limit of 1 runs one job at a time: #STOKER --group NAME, see docs/configuration.md"
        raise UsageError("--dependency=singleton is not supported", hint)
    parse_after(value)
    return {"after": value}


def _nice(value: str) -> Values:
    if not re.fullmatch(r"[+-]?\d{1,9}", value or _DEFAULT_NICE, re.ASCII):
        raise UsageError(f"--nice={value} is not a number", "write it as --nice=100")
    return {"priority": -int(value or _DEFAULT_NICE)}


def _exported(value: str) -> Values:
    """Variables with a value; all others of the submitter are exported anyway."""
    pairs = [part.partition("=") for part in value.split(",") if "=" in part]
    return {"env": {name.strip(): text for name, _, text in pairs}}


def _gres(value: str) -> Values:
    """GPUs of `gpu:2`, `gpu:a100:2` or `gres/gpu:1`, among other resources."""
    parts = [part.strip().removeprefix("gres/").removeprefix("gres:") for part in value.split(",")]
    gpus = [part.removeprefix("gpu").removeprefix(":") for part in parts if re.match("gpu(:|$)", part)]
    if not gpus:
        return {"gpus": 0} if value.lower() == "none" else {}
    return _counted(gpus)


def _gpus(value: str) -> Values:
    return _counted([part.strip() for part in value.split(",")])


def _counted(parts: Sequence[str]) -> Values:
    """GPUs of `2`, `a100:2` or `a100`; the model counts only where it is the same for all."""
    matches = [_GPUS.fullmatch(part) for part in parts]
    if not all(matches):
        raise UsageError(f"{','.join(parts)!r} is not a number of GPUs", "write it as 2 or a100:2")
    models = {match["model"] or "" for match in matches if match}
    count = sum(int(match["count"] or 1) for match in matches if match)
    return {"gpus": count, "gpu_type": models.pop() or None if len(models) == 1 else None}


def _nodes(value: str) -> Values:
    """The least number of `2` or `2-4`."""
    least = re.match(r"\d{1,6}", value, re.ASCII)
    if least is None:
        raise UsageError(f"--nodes={value} is not a number", "write it as --nodes=2")
    return {"nodes": int(least[0])} if int(least[0]) > 1 else {}


_CONVERTED: Mapping[str, Callable[[str], Values]] = {
    "gpus": _gpus,
    "nodes": _nodes,
    "time": _limit,
    "dependency": _after,
    "comment": lambda value: {"tag": {"comment": value}},
    "nice": _nice,
    "no-requeue": _constant("no_requeue", True),
    "export": _exported,
}
"""Flags whose values the option writes in another way."""


def _flag_of(option: Option) -> SlurmFlag:
    convert = _CONVERTED.get(option.sbatch, _same(option.name))
    takes: Takes = "optional" if option.sbatch == "nice" else "nothing" if option.kind == "flag" else "value"
    return SlurmFlag(option.sbatch, option.name, convert, "N" if option.name == "nodes" else option.short[1:], takes)


FLAGS = (
    *(_flag_of(option) for option in OPTIONS if option.sbatch),
    SlurmFlag("gpus-per-node", "gpus", _gpus),
    SlurmFlag("gpus-per-task", "gpus", _gpus),
    SlurmFlag("gres", "gpus", _gres),
    SlurmFlag("requeue", "no_requeue", _constant("no_requeue", False), takes="nothing"),
)
"""Flags of sbatch that become options."""


def _taking(takes: Takes, names: str) -> dict[str, Takes]:
    return dict.fromkeys(names.split(), takes)


PASSED: Mapping[str, Takes] = {
    **_taking("value", "partition account qos reservation licenses wckey mcs-label constraint prefer exclude nodelist"),
    **_taking("value", "ntasks ntasks-per-node ntasks-per-core ntasks-per-gpu ntasks-per-socket cpus-per-task"),
    **_taking("value", "cpus-per-gpu mem mem-per-cpu mem-per-gpu tmp switches mincpus hint mem-bind gpu-bind gpu-freq"),
    **_taking("value", "cpu-freq distribution core-spec thread-spec threads-per-core sockets-per-node"),
    **_taking("value", "cores-per-socket extra-node-info gpus-per-socket gres-flags profile acctg-freq network"),
    **_taking("optional", "exclusive"),
    **_taking("nothing", "oversubscribe overcommit contiguous spread-job use-min-nodes reboot"),
}
"""Flags of sbatch about nodes and accounts, which sbatch gets for a job on a cluster."""

IGNORED: Mapping[str, Takes] = {
    **_taking("value", "clusters priority mail-type mail-user nodefile cluster-constraint open-mode time-min"),
    **_taking("value", "delay-boot power"),
    **_taking("optional", "propagate get-user-env no-kill kill-on-invalid-dep"),
    **_taking("nothing", "quiet verbose parsable ignore-pbs"),
}
"""Flags of sbatch that change nothing about a job of Stoker, or only its messages."""

UNSUPPORTED: Mapping[str, Takes] = {
    **_taking("value", "input deadline container export-file bb bbf uid gid"),
    **_taking("nothing", "hold wait test-only"),
}
"""Flags of sbatch whose loss changes what the job does."""

_OTHER_SHORT = """
    p partition  A account  q qos  M clusters  L licenses  n ntasks  c cpus-per-task  w nodelist  F nodefile
    x exclude  C constraint  k no-kill  m distribution  S core-spec  B extra-node-info  s oversubscribe  O overcommit
    Q quiet  v verbose  i input  H hold  W wait
""".split()  # noqa: SIM905 - a table
SHORT = {
    **{flag.short: flag.long for flag in FLAGS if flag.short},
    **dict(zip(_OTHER_SHORT[::2], _OTHER_SHORT[1::2], strict=True)),
}
"""Short flags of sbatch."""

_BY_LONG = {flag.long: flag for flag in FLAGS}
_TAKES: Mapping[str, Takes] = {**{flag.long: flag.takes for flag in FLAGS}, **PASSED, **IGNORED, **UNSUPPORTED}


def _long(flag: str) -> str:
    """The long name of a flag, which may be shortened as far as it is clear; empty where there is none."""
    if not flag.startswith("--"):
        return SHORT.get(flag[1:], "")
    name = flag[2:]
    begins = [long for long in _TAKES if long.startswith(name)]
    return name if name in _TAKES else begins[0] if len(begins) == 1 else ""


class _Slurm:
    """The options of #SBATCH lines, and the flags that are not applied, each once."""

    def __init__(self, lines: Sequence[tuple[str, str]]) -> None:
        self.passed: dict[str, str] = {}
        self.places: dict[str, str] = {}
        self.ignored: dict[str, None] = {}
        self.unsupported: dict[str, None] = {}
        self.unknown: dict[str, None] = {}
        self._given: dict[str, Given] = {}
        """By long name: as in sbatch, the last one counts."""
        for given in _given(lines, lambda flag: _TAKES.get(_long(flag))):
            if long := _long(given.flag):
                self._given[long] = given
            else:
                self.unknown[given.flag] = None

    def options(self) -> JobOptions:
        values: dict[str, Any] = {"env": self._cpus()}
        for long, given in self._given.items():
            flag = _BY_LONG.get(long)
            if flag is None and long in PASSED:
                self.passed[long] = given.value or ""
            elif flag is None or flag.option not in BY_NAME:
                (self.ignored if long in IGNORED else self.unsupported)[f"--{long}"] = None
            else:
                with placed(given.where):
                    self._add(values, flag, given.value or "", given.where)
        if {"requeue", "signal"} <= self._given.keys():
            values |= _saves(values["signal"])
        return JobOptions(**values)

    def _add(self, values: dict[str, Any], flag: SlurmFlag, text: str, where: str) -> None:
        """Add one option; of several numbers of GPUs, the largest counts."""
        new = dict(flag.convert(text))
        if "gpus" in new:
            new["gpus"] = max(values.get("gpus", 0), self._times(flag.long) * new["gpus"])
        if flag.long == "gres" and not new:  # of something else
            self.ignored[f"--gres={text}"] = None
        if flag.long == "nodes" and not new:
            self.ignored["--nodes"] = None
        if flag.long == "export" and "ALL" not in text.split(","):
            self.unsupported[f"--export={text}"] = None
        self.places |= dict.fromkeys(new, where)
        for name, value in new.items():
            values[name] = {**values.get(name, {}), **value} if isinstance(value, dict) else value

    def _times(self, flag: str) -> int:
        """How often the GPUs of a flag count: those of a task for each task, those of a node for each node."""
        if flag == "gpus":
            return 1
        nodes = self._number("nodes")
        tasks = self._number("ntasks") or (nodes or 1) * self._number("ntasks-per-node")
        return (tasks if flag == "gpus-per-task" else nodes) or 1

    def _number(self, flag: str) -> int:
        directive = self._given.get(flag)
        number = re.match(r"\d{1,6}", directive.value or "", re.ASCII) if directive else None
        return int(number[0]) if number else 0

    def _cpus(self) -> dict[str, str]:
        """As Slurm does, tell the script what it asked for: many set their threads by it."""
        directive = self._given.get("cpus-per-task")
        return {"SLURM_CPUS_PER_TASK": directive.value} if directive and directive.value else {}
