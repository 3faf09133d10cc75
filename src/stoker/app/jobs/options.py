"""Job options: one table for every front end, and the job spec that given options become."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from stoker.app.jobs.signals import check_early_signal, parse_early_signal
from stoker.app.jobs.targets import parse_targets
from stoker.core.errors import StokerError, UsageError
from stoker.core.outcomes import RETRIED
from stoker.core.selectors import Named, parse_selection
from stoker.core.settings import LOCAL
from stoker.core.spec import Dependency, JobSpec, Resources, parse_array
from stoker.core.units import parse_duration, parse_size, size_text
from stoker.devices.interface import user_name

LONGEST_NAME = 1000
LARGEST_NUMBER = 10**9
LEAST_VRAM = 2**20
PAST_SECONDS = 60.0
"""A start time may be so long ago: the minute in which it was typed."""
_YES = ("true", "yes", "on")
_NO = ("false", "no", "off")
_WITHOUT_MPS = "leave out --mps; where it is configured, --mps=off"
_CODE = r"(?a)\d{1,3}"
SET_BY_STOKER = frozenset(
    (
        *("array", "begin", "chdir", "comment", "dependency", "error", "export", "gpus", "gpus-per-node"),
        *("gpus-per-task", "gres", "hold", "input", "job-name", "nice", "no-requeue", "nodes", "output", "parsable"),
        *("requeue", "signal", "test-only", "time", "wait", "wrap"),
    )
)
"""Options of sbatch that follow from options of Stoker, or would change what sbatch prints."""


class JobOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options as given; None means not given, so that an option of one job overrides that of its batch."""

    gpus: int | None = None
    vram: str | None = None
    cap: bool | None = None
    cluster: str | None = None
    nodes: int | None = None
    slurm: dict[str, str] = {}
    on: str | None = None
    prefer: str | None = None
    gpu_type: str | None = None
    priority: int | None = None
    group: str | None = None
    time: str | None = None
    grace: str | None = None
    signal: str | None = None
    begin: str | None = None
    after: str | None = None
    mps: str | bool | None = None
    mps_optional: bool | None = None
    array: str | None = None
    retries: int | None = None
    retry_on: str | None = None
    no_requeue: bool | None = None
    chdir: str | None = None
    env: dict[str, str] = {}
    out: str | None = None
    err: str | None = None
    name: str | None = None
    tag: dict[str, str] = {}
    notify: str | None = None


Kind = Literal["text", "number", "flag", "switch", "table"]
"""A flag can only be set, a switch also unset; a table is given as K=V on the command line, once per entry."""


class Option(Struct, frozen=True):
    """One job option. Its name is the key in files and in Python; the long flag and the variable derive from it."""

    name: str
    help: str
    metavar: str = ""
    short: str = ""
    kind: Kind = "text"
    is_list: bool = False
    """Files and Python may give a list, which the command line separates by commas."""
    takes_number: bool = False
    """Files and Python may give a number for the text."""
    check: Callable[[Any], object] = lambda _: None
    """Refuses a value that can be checked without a machine."""
    built_in: object = None
    """The value that holds when none is given, as a user would write it."""
    of_one_job: bool = False
    """It makes sense for a job or a batch, never as a default for all."""
    at_submit: bool = False
    """`stoker edit` cannot change it later."""
    while_running: bool = False
    """`stoker edit` can change it for a job that has started."""
    given_to_jobs: bool = False
    """Inside a job the variable holds the value of that job, and is no option for the jobs it submits."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str | None:
        return None if self.kind == "table" else f"STOKER_{self.name.upper()}"

    def variable_in(self, environment: Mapping[str, str]) -> str | None:
        """The variable that sets it for jobs submitted from this environment."""
        return None if self.given_to_jobs and "STOKER_JOB_ID" in environment else self.variable


def _no_earlier_jobs(text: str) -> tuple[Dependency, ...]:
    raise UsageError(f"--after {text} cannot be used here", "submit the job with stoker submit")


def no_place(_model: str) -> str:
    return ""


class Surroundings(Struct, frozen=True):
    """What a spec takes from the place of submit rather than from options."""

    cwd: str
    umask: int
    environment: str
    """Digest of the submitter's environment."""
    default_out: str
    resolve: Callable[[str], str]
    """From a device's label to its id."""
    array_out: str = ""
    """The log of a task of an array; empty for `default_out`."""
    earlier: Callable[[str], tuple[Dependency, ...]] = _no_earlier_jobs
    """From ids as typed to dependencies."""
    commit: Callable[[str], str] = lambda _: ""
    """From a directory to the commit checked out there."""
    now: float = 0.0
    terminal: str = ""
    """The terminal of an interactive session, which is never run twice."""
    fill: bool = False
    """Whether placeholders in commands are filled."""
    parent: str = ""
    """The worker of the job that this process runs in, for a run that uses the GPUs of that job."""
    shared_out: Callable[[str], tuple[str, str]] = lambda _: ("", "")
    """`default_out` and `array_out` for a cluster, whose nodes do not see the others; empty for the same."""
    slurm: bool = False
    """Whether the jobs are a script with #SBATCH lines."""
    place_of_model: Callable[[str], str] = no_place
    """From a GPU model to the line of a script that asks for it; empty where none does."""


def merged(base: JobOptions, own: JobOptions) -> JobOptions:
    """The options of a batch, overridden by those of one of its jobs."""
    given = {name: getattr(own, name) for name in own.__struct_fields__ if getattr(own, name) is not None}
    tables = {name: {**getattr(base, name), **getattr(own, name)} for name in TABLES}
    return msgspec.structs.replace(base, **{**given, **tables})


def spec_of(options: JobOptions, around: Surroundings) -> JobSpec:
    """The spec of a job, with every value checked."""
    _refuse_unusable(options)
    cluster = "" if options.cluster in (None, LOCAL) else str(options.cluster)
    single_out, array_out = around.shared_out(cluster) if cluster else ("", "")
    array = None if options.array is None else parse_array(options.array)
    cwd = os.path.normpath(os.path.join(around.cwd, options.chdir or ""))
    limit = None if options.time is None else parse_duration(options.time)
    early = None if options.signal is None else parse_early_signal(options.signal)
    check_early_signal(early, limit)
    return JobSpec(
        resources=resources_of(options, around.resolve),
        priority=options.priority or 0,
        cwd=cwd,
        environment=around.environment,
        extra_env=tuple(sorted(options.env.items())),
        umask=around.umask,
        limit=limit,
        signal=early,
        grace=30.0 if options.grace is None else parse_grace(options.grace),
        retries=check_count(options.retries or 0, "--retries"),
        requeue=not options.no_requeue and not around.terminal,
        out=_output(options.out, cwd)
        or (options.array and (array_out or around.array_out))
        or (single_out or around.default_out),
        err=_output(options.err, cwd),
        group=options.group or "",
        begin=None if options.begin is None else _moment(options.begin, around.now),
        after=() if options.after is None else around.earlier(options.after),
        retry_on=() if options.retry_on is None else parse_retry_on(options.retry_on),
        at_once=array.at_once if array else None,
        tags=tuple(sorted(options.tag.items())),
        commit=around.commit(cwd),
        fill=around.fill or options.array is not None,
        cap=bool(options.cap),
        mps_optional=bool(options.mps_optional),
        cluster=cluster,
        nodes=_nodes(options, cluster),
        slurm=slurm_options(options.slurm, cluster),
        notify=() if options.notify is None else parse_targets(options.notify),
        array_tasks=(len(array.indices), min(array.indices), max(array.indices)) if array else None,
        slurm_submit_dir=around.cwd if around.slurm else "",
        terminal=around.terminal,
        parent=around.parent,
    )


def _nodes(options: JobOptions, cluster: str) -> int:
    """Nodes of the cluster; refuses what makes no sense on a cluster, or only there."""
    nodes = 1 if options.nodes is None else options.nodes
    if not 1 <= nodes <= LARGEST_NUMBER:
        raise UsageError(f"--nodes {nodes} is no number of nodes", "give 1 or more")
    if not cluster and nodes > 1:
        raise UsageError("this machine is one node", "name a cluster with -M, or leave out --nodes")
    gpus = 1 if options.gpus is None else options.gpus
    if gpus % nodes:
        raise UsageError(f"-G {gpus} is for all nodes together, and cannot be divided by {nodes}", "give a multiple")
    if cluster and (options.on or options.prefer):
        raise UsageError("--on and --prefer name devices of this machine", "leave them out on a cluster")
    return nodes


def slurm_options(given: Mapping[str, str], cluster: str) -> tuple[tuple[str, str], ...]:
    """Options for sbatch, checked: some are Stoker's own, and on this machine there is no sbatch."""
    if given and not cluster:
        raise UsageError("--slurm is for jobs on a cluster", "name one with -M, or leave out --slurm")
    for name, value in given.items():
        if not re.fullmatch("[a-z][a-z-]+", name) or not value.isprintable():
            raise UsageError(f"--slurm {name}={value!r} is no option of sbatch", "write it as --slurm mem=16G")
        if name in SET_BY_STOKER:
            raise UsageError(f"--slurm --{name} is set by Stoker itself", "use the option of stoker submit --help")
    return tuple(sorted((name, "" if value == "true" else value) for name, value in given.items()))


def resources_of(options: JobOptions, resolve: Callable[[str], str]) -> Resources:
    resources = Resources(
        gpus=check_count(1 if options.gpus is None else options.gpus, "-G"),
        memory=None if options.vram is None or vram_word(options.vram) else parse_vram(options.vram),
        auto=vram_word(options.vram or "") == "auto",
        allowed=_device_ids(options.on, "--on", resolve),
        preferred=_device_ids(options.prefer, "--prefer", resolve),
        model=(options.gpu_type or "").strip().lower(),
        mps=None if options.mps is None else parse_mps(options.mps),
    )
    check_mps(resources)
    return resources


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


def working_directory() -> str:
    """The current directory, which may have been removed."""
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(f"the current directory cannot be used: {error.strerror}", "cd to another one") from error


def check_directory(path: str) -> None:
    """Refuse a directory that no job could enter."""
    try:
        os.stat(os.path.join(path, "."))  # the dot needs the permission to enter it
    except OSError as error:
        raise UsageError(f"cannot enter {path}: {error.strerror}", "give another directory with -D") from error


def current_user() -> str:
    return user_name(os.getuid())


def current_umask() -> int:
    """The umask of this process; on kernels before 4.7 it is set for a moment, which other threads may notice."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/status", "rb") as status:
        return int(status.read().partition(b"\nUmask:")[2].split()[0], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _device_ids(text: str | None, option: str, resolve: Callable[[str], str]) -> tuple[str, ...]:
    if text is None:
        return ()
    ids = [resolve(word) for word in text.split(",")]
    if len(set(ids)) < len(ids):
        raise UsageError(f"{option} {text} contains a device twice", "name each device once")
    return tuple(ids)


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


def _moment(text: str, now: float) -> float:
    from stoker.app.jobs.local_time import LocalZone
    from stoker.core.units import parse_moment

    moment = parse_moment(text, now, LocalZone())
    if moment < now - PAST_SECONDS:
        raise UsageError(f"--begin {text} is in the past", "leave it out to start as soon as possible")
    return moment


def _refuse_unusable(options: JobOptions) -> None:
    check_name(options.name or "")
    for name in ("chdir", "out", "err", "group", "gpu_type"):
        if "\0" in (getattr(options, name) or ""):
            raise UsageError(f"--{name.replace('_', '-')} contains a NUL byte", "leave that out")
    for name, value in options.env.items():
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"{name!r} cannot be the name of a variable", "write it as --env SEED=1")
    group = options.group or ""
    if group and (not group.isprintable() or len(group) > LONGEST_NAME):
        raise UsageError(f"--group {group[:40]!r} is not printable or too long", "use a name of printable characters")
    if abs(options.priority or 0) > LARGEST_NUMBER:
        raise UsageError(f"--priority {options.priority} is out of range", _range_hint(-LARGEST_NUMBER))


def check_count(number: int, option: str = "") -> int:
    if number < 0:
        raise UsageError(f"{option or number} must not be negative", f"give {f'{option} 0'.strip()} or more")
    if number > LARGEST_NUMBER:
        raise UsageError(f"{f'{option} {number}'.strip()} is out of range", _range_hint(0))
    return number


def _range_hint(least: int) -> str:
    return f"it must be between {least} and {LARGEST_NUMBER}"


def _output(pattern: str | None, cwd: str) -> str:
    """A path pattern made absolute; "-" stays."""
    if not pattern or pattern == "-":
        return pattern or ""
    return os.path.join(cwd, os.path.expanduser(pattern))


OPTIONS = (
    Option(
        "gpus",
        "GPUs per job, default 1; 0 for a job without GPU.",
        "N",
        "-G",
        kind="number",
        check=check_count,
        built_in=1,
    ),
    Option(
        "vram",
        "GPU memory per GPU: a SIZE lets jobs share GPUs, auto learns the size. Default: all (exclusive GPUs).",
        "SIZE|auto|all",
        "-m",
        takes_number=True,
        check=lambda text: vram_word(text) or parse_vram(text),
        built_in="all",
        given_to_jobs=True,
    ),
    Option("cap", "Limit PyTorch (2.10 or newer) to the memory reserved by --vram.", kind="switch"),
    Option(
        "cluster",
        "Run on this cluster, for example lab; local is this machine.",
        "NAME",
        "-M",
        at_submit=True,
    ),
    Option(
        "nodes", "Nodes of the cluster at once, default 1; -G counts all of them.", "N", kind="number", at_submit=True
    ),
    Option(
        "slurm",
        "Pass an option to sbatch on a cluster, for example mem=16G or exclusive (repeatable).",
        "K[=V]",
        kind="table",
        of_one_job=True,
    ),
    Option("on", "Only these devices, for example 0,2.", "IDS", is_list=True, takes_number=True),
    Option("prefer", "Prefer these devices.", "IDS", is_list=True, takes_number=True),
    Option("gpu_type", "Only GPUs with this in their name, for example a100.", "NAME"),
    Option("priority", "Priority; higher starts first, default 0.", "N", kind="number", built_in=0, while_running=True),
    Option("group", "Group of the jobs; groups can have a configured limit.", "NAME"),
    Option(
        "time",
        "Time limit: 90s, 1h30m, HH:MM:SS; a plain number is minutes.",
        "DUR",
        "-t",
        takes_number=True,
        check=parse_duration,
        while_running=True,
    ),
    Option(
        "grace",
        "Time between TERM and KILL, default 30s; like -t.",
        "DUR",
        takes_number=True,
        check=parse_grace,
        built_in="30s",
        while_running=True,
    ),
    Option(
        "signal",
        "Send a signal before the time limit: USR1@60; B:USR1@60 only to the command itself.",
        "SIG[@SEC]",
        check=parse_early_signal,
        while_running=True,
    ),
    Option(
        "begin", "Do not start before: now+1hour, 22:00, tomorrow, 2026-11-15T22:00.", "WHEN", "-b", of_one_job=True
    ),
    Option(
        "after",
        "Start after these jobs have succeeded; any:ID after it finishes, notok:ID after it fails.",
        "IDS",
        "-d",
        is_list=True,
        takes_number=True,
        of_one_job=True,
    ),
    Option(
        "mps",
        "Share the GPU through NVIDIA MPS, with PCT percent of its threads; needs --vram.",
        "[=PCT]",
        takes_number=True,
        check=parse_mps,
        at_submit=True,
    ),
    Option("mps_optional", "Run without MPS if it is not available.", kind="flag", at_submit=True),
    Option(
        "array",
        "Submit an array of tasks: 0-9, 0-15:4; 0-99%8 runs 8 at once.",
        "SPEC",
        "-a",
        is_list=True,
        takes_number=True,
        of_one_job=True,
        at_submit=True,
    ),
    Option(
        "retries",
        "Retry a failed job up to N times.",
        "N",
        kind="number",
        check=check_count,
        built_in=0,
        while_running=True,
    ),
    Option(
        "retry_on",
        "Retry only on these results: oom, timeout, failed, exit codes.",
        "WHAT",
        is_list=True,
        takes_number=True,
        check=parse_retry_on,
        while_running=True,
    ),
    Option("no_requeue", "Do not requeue after a crash of the machine or of Stoker.", kind="flag", while_running=True),
    Option("chdir", "Working directory of the jobs.", "DIR", "-D"),
    Option("env", "Set a variable for the jobs (repeatable).", "K=V", kind="table"),
    Option("out", "File for the output; %j is the id, %x the name. - is this terminal.", "PAT", "-o"),
    Option("err", "Separate file for stderr.", "PAT", "-e"),
    Option("name", "Name of the jobs.", "NAME", "-J", of_one_job=True, while_running=True),
    Option("tag", "Attach a label to the jobs (repeatable).", "K=V", kind="table", while_running=True),
    Option(
        "notify",
        "Notify when the job, array or list has finished: an apprise URL (ntfy://..., slack://...), or mail.",
        "URL|mail",
        is_list=True,
        check=parse_targets,
        while_running=True,
    ),
)
"""Every job option, in the order of `--help`."""

BY_NAME: Mapping[str, Option] = {option.name: option for option in OPTIONS}
WHILE_RUNNING = tuple(option.name for option in OPTIONS if option.while_running)
TABLES = tuple(option.name for option in OPTIONS if option.kind == "table")


def read_tables(given: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
    """The tables among options as typed: `SEED=1` twice or more becomes a mapping."""
    return {name: read_table(name, given[name], BY_NAME[name].flag) for name in TABLES if name in given}


def read_table(name: str, texts: Sequence[str], what: str) -> dict[str, str]:
    """The table that these entries make; errors name it `what`."""
    parse = parse_sbatch_option if name == "slurm" else parse_assignment
    return dict(parse(text, what) for text in texts)


NUL_BYTE = (
    "it contains a NUL byte, which cannot be passed to a program; a file in UTF-16 is converted by: "
    "iconv -f UTF-16 -t UTF-8 OLD > NEW"
)
"""Why a line of a job list cannot be used."""
KINDS = {"str": "text", "int": "a whole number", "bool": "true or false", "object": "a table", "array": "a list"}


def invalid_text(error: msgspec.ValidationError) -> str:
    """Which option has a value of the wrong kind: `gpus is text, not a whole number`."""
    match = re.match(r"Expected `(\w+)[^`]*`, got `(\w+)` - at `\$\.(\w+)", str(error))
    if match is None:
        return str(error)
    wanted, given, name = match.groups()
    return f"{name} is {KINDS.get(given, given)}, not {KINDS.get(wanted, wanted)}"
