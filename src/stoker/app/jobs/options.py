"""Job options: one row for each, from which the command line, files, Python, `stoker edit` and screens derive."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from stoker.app.jobs.context import SubmitContext
from stoker.app.jobs.option_values import (
    after_text,
    begin_text,
    check_count,
    early_signal_text,
    idle_rule_text,
    parse_array_limits,
    parse_assignment,
    parse_begin,
    parse_device_ids,
    parse_early_signal,
    parse_exit_code,
    parse_freeze,
    parse_grace,
    parse_group,
    parse_idle,
    parse_mps,
    parse_preemptible,
    parse_priority,
    parse_request,
    parse_retry_on,
    parse_save_signal,
    parse_sbatch_option,
    parse_targets,
    parse_warm,
    request_text,
    seconds_text,
    shown_target,
)
from stoker.core.job import Job
from stoker.core.settings import LOCAL
from stoker.core.spec import Name
from stoker.core.text import PATTERNS, shown_value
from stoker.core.units import parse_duration


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
    first_output: str | None = None
    silent: str | None = None
    idle: str | None = None
    begin: str | None = None
    start_within: str | None = None
    nonblock: bool | None = None
    after: str | None = None
    mps: str | bool | None = None
    mps_optional: bool | None = None
    array: str | None = None
    retries: int | None = None
    retry_on: str | None = None
    no_requeue: bool | None = None
    preemptible: str | bool | None = None
    save_signal: str | None = None
    save_time: str | None = None
    save_exit: int | None = None
    urgent: bool | None = None
    chdir: str | None = None
    freeze: str | bool | None = None
    warm: str | bool | None = None
    env: dict[str, str] = {}
    out: str | None = None
    err: str | None = None
    name: str | None = None
    tag: dict[str, str] = {}
    notify: str | None = None


Kind = Literal["text", "number", "flag", "switch", "table"]
"""A flag can only be set, a switch also unset; a table is given as K=V on the command line, once per entry."""
Value = bool | int | str | dict[str, str]
"""An option as a job file has it; an empty one is not given."""
_NOT_GIVEN: Mapping[Kind, Value] = {"text": "", "number": 0, "flag": False, "switch": False, "table": {}}


class ShownNames(Struct, frozen=True):
    """How screens call devices and jobs, and which variables they hide."""

    device: Callable[[str], str]
    """From an id to its label."""
    job: Name
    secrets: Sequence[str] = PATTERNS


class Option(Struct, frozen=True, kw_only=True):
    """One job option. Its name is the key in files and in Python; the long flag and the variable derive from it."""

    name: str
    help: str
    metavar: str = ""
    short: str = ""
    sbatch: str = ""
    """The option of sbatch with the same meaning; it has the same letter."""
    kind: Kind = "text"
    is_list: bool = False
    """Files and Python may give a list, which the command line separates by commas."""
    takes_number: bool = False
    """Files and Python may give a number for the text."""
    fields: tuple[str, ...] = ()
    """Fields of the spec, or of its resources, that it sets."""
    parse: Callable[[Any], Any] = lambda value: value
    """From the given value to that of the field, to a tuple for several; refuses what is wrong on every machine."""
    find: Callable[[Any, SubmitContext], Any] | None = None
    """The same if the value depends on the place of submit."""
    show: Callable[[Job, ShownNames], Value] | None = None
    """The value of a job, in the notation of `parse`; None if the field is in that notation."""
    comment: str = ""
    """Stands beside the value in the file that `stoker edit` opens."""
    label: str = ""
    """Begins its line of `stoker status ID`; empty if a line about several options has it, or none."""
    built_in: object = None
    """The value that holds when none is given, as a user would write it."""
    of_one_job: bool = False
    """It makes sense for a job or a batch, never as a default for all."""
    at_submit: bool = False
    """`stoker edit` cannot change it later."""
    while_running: bool = False
    """`stoker edit` can change it for a job that has started."""
    alone: str = ""
    """The value of the flag without one; empty if it needs one."""
    given_to_jobs: bool = False
    """Inside a job the variable holds the value of that job, and is no option for the jobs it submits."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str | None:
        return None if self.kind == "table" else f"STOKER_{self.name.upper()}"

    @property
    def default(self) -> object:
        return self.built_in or _NOT_GIVEN[self.kind]

    def variable_in(self, environment: Mapping[str, str]) -> str | None:
        """The variable that sets it for jobs submitted from this environment."""
        return None if self.given_to_jobs and "STOKER_JOB_ID" in environment else self.variable


def _pairs(table: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(table.items()))


def _shown_variables(job: Job, names: ShownNames) -> dict[str, str]:
    return {name: shown_value(name, value, names.secrets) for name, value in job.spec.extra_env}


OPTIONS = (
    Option(
        name="gpus",
        help="GPUs per job, default 1; 0 for a job without GPU.",
        metavar="N",
        short="-G",
        sbatch="gpus",
        kind="number",
        fields=("gpus",),
        parse=check_count,
        comment="0 for a job without GPU",
        built_in=1,
    ),
    Option(
        name="vram",
        help="GPU memory per GPU: a SIZE lets jobs share GPUs, auto learns the size. Default: all (exclusive GPUs).",
        metavar="SIZE|auto|all",
        short="-m",
        takes_number=True,
        fields=("memory", "auto"),
        parse=parse_request,
        show=lambda job, _: request_text(job.spec.resources),
        comment="on each GPU, for example 12G; auto: learnt size, all: whole GPU",
        built_in="all",
        given_to_jobs=True,
    ),
    Option(
        name="cap",
        help="Limit PyTorch (2.10 or newer) to the memory reserved by --vram.",
        kind="switch",
        fields=("cap",),
        comment="whether PyTorch enforces it",
    ),
    Option(
        name="cluster",
        help="Run on this cluster, for example lab; local is this machine.",
        metavar="NAME",
        short="-M",
        fields=("cluster",),
        parse=lambda name: "" if name == LOCAL else name,
        at_submit=True,
    ),
    Option(
        name="nodes",
        help="Nodes of the cluster at once, default 1; -G counts all of them.",
        metavar="N",
        sbatch="nodes",
        kind="number",
        fields=("nodes",),
        show=lambda job, _: job.spec.nodes if job.spec.cluster else 0,
        at_submit=True,
    ),
    Option(
        name="slurm",
        help="Pass an option to sbatch on a cluster, for example mem=16G or exclusive (repeatable).",
        metavar="K[=V]",
        kind="table",
        fields=("slurm",),
        parse=_pairs,
        of_one_job=True,
    ),
    Option(
        name="on",
        help="Only these devices, for example 0,2.",
        metavar="IDS",
        is_list=True,
        takes_number=True,
        fields=("allowed",),
        find=lambda text, context: parse_device_ids(text, "--on", context.resolve),
        show=lambda job, names: ",".join(map(names.device, job.spec.resources.allowed)),
        comment="only these devices, for example 0,2",
    ),
    Option(
        name="prefer",
        help="Prefer these devices.",
        metavar="IDS",
        is_list=True,
        takes_number=True,
        fields=("preferred",),
        find=lambda text, context: parse_device_ids(text, "--prefer", context.resolve),
        show=lambda job, names: ",".join(map(names.device, job.spec.resources.preferred)),
        comment="preferred devices",
    ),
    Option(
        name="gpu_type",
        help="Only GPUs with this in their name, for example a100.",
        metavar="NAME",
        fields=("model",),
        parse=lambda text: text.strip().lower(),
    ),
    Option(
        name="priority",
        help="Priority; higher starts first, default 0.",
        metavar="N",
        sbatch="nice",
        kind="number",
        fields=("priority",),
        parse=parse_priority,
        comment="higher starts first",
        label="priority",
        built_in=0,
        while_running=True,
    ),
    Option(
        name="group",
        help="Group of the jobs; groups can have a limit and options in the configuration.",
        metavar="NAME",
        fields=("group",),
        parse=parse_group,
        label="group",
    ),
    Option(
        name="time",
        help="Time limit: 90s, 1h30m, HH:MM:SS; a plain number is minutes.",
        metavar="DUR",
        short="-t",
        sbatch="time",
        takes_number=True,
        fields=("limit",),
        parse=parse_duration,
        show=lambda job, _: seconds_text(job.spec.limit),
        comment="time limit, for example 2h",
        while_running=True,
    ),
    Option(
        name="grace",
        help="Time between TERM and KILL, default 30s; like -t.",
        metavar="DUR",
        takes_number=True,
        fields=("grace",),
        parse=parse_grace,
        show=lambda job, _: seconds_text(job.spec.grace),
        comment="between TERM and KILL",
        built_in="30s",
        while_running=True,
    ),
    Option(
        name="signal",
        help="Send a signal before the time limit: USR1@60; B:USR1@60 only to the command itself.",
        metavar="SIG[@SEC]",
        sbatch="signal",
        fields=("signal",),
        parse=parse_early_signal,
        show=lambda job, _: early_signal_text(job.spec.signal),
        comment="before the time limit, for example USR1@60",
        while_running=True,
    ),
    Option(
        name="first_output",
        help="End a job that has written nothing after this time; like -t.",
        metavar="DUR",
        takes_number=True,
        fields=("first_output",),
        parse=parse_duration,
        show=lambda job, _: seconds_text(job.spec.first_output),
        comment="until its first output, for example 10m",
        label="output in",
        while_running=True,
    ),
    Option(
        name="silent",
        help="End a job that has written nothing new for this time; like -t.",
        metavar="DUR",
        takes_number=True,
        fields=("silent",),
        parse=parse_duration,
        show=lambda job, _: seconds_text(job.spec.silent),
        comment="without new output, for example 30m",
        label="silent",
        while_running=True,
    ),
    Option(
        name="idle",
        help="Report a job whose GPUs are unused for DUR, default 30m; DUR:stop ends it, DUR:preempt lets it give way.",
        metavar="DUR",
        takes_number=True,
        fields=("idle",),
        parse=parse_idle,
        show=lambda job, _: idle_rule_text(job.spec.idle),
        comment="30m: report unused GPUs, 30m:stop: end the job, 0: off",
        built_in="1800s",
        while_running=True,
    ),
    Option(
        name="begin",
        help="Do not start before: now+1hour, 22:00, tomorrow, 2026-11-15T22:00.",
        metavar="WHEN",
        short="-b",
        sbatch="begin",
        fields=("begin",),
        find=lambda text, context: parse_begin(text, context.now),
        show=lambda job, _: begin_text(job.spec.begin),
        comment="not before: 22:00, now+1hour",
        of_one_job=True,
    ),
    Option(
        name="start_within",
        help="Give up a job that has not started this long after submit, --begin or its release from a hold; like -t.",
        metavar="DUR",
        takes_number=True,
        fields=("start_within",),
        parse=parse_duration,
        show=lambda job, _: seconds_text(job.spec.start_within),
        comment="has to start within, for example 2h",
        label="max. wait",
    ),
    Option(
        name="nonblock",
        help="Give up a job that cannot start at once.",
        kind="flag",
        fields=("nonblock",),
        of_one_job=True,
        at_submit=True,
    ),
    Option(
        name="after",
        help="Start after these jobs have succeeded; any:ID after it finishes, notok:ID after it fails.",
        metavar="IDS",
        short="-d",
        sbatch="dependency",
        is_list=True,
        takes_number=True,
        fields=("after",),
        find=lambda text, context: context.earlier(text),
        show=lambda job, names: after_text(job.spec.after, names.job),
        comment="after these jobs have succeeded; any:ID, notok:ID",
        of_one_job=True,
    ),
    Option(
        name="mps",
        alone="true",
        help="Share the GPU through NVIDIA MPS, with PCT percent of its threads; needs --vram.",
        metavar="[=PCT]",
        takes_number=True,
        fields=("mps",),
        parse=parse_mps,
        show=lambda job, _: str(job.spec.resources.mps or ""),
        at_submit=True,
    ),
    Option(
        name="mps_optional",
        help="Run without MPS if it is not available.",
        kind="flag",
        fields=("mps_optional",),
        at_submit=True,
    ),
    Option(
        name="array",
        help="Submit an array of tasks: 0-9, 0-15:4; 0-99%8 runs 8 at once.",
        metavar="SPEC",
        short="-a",
        sbatch="array",
        is_list=True,
        takes_number=True,
        fields=("at_once", "array_tasks"),
        parse=parse_array_limits,
        of_one_job=True,
        at_submit=True,
    ),
    Option(
        name="retries",
        help="Retry a failed job up to N times.",
        metavar="N",
        kind="number",
        fields=("retries",),
        parse=check_count,
        built_in=0,
        while_running=True,
    ),
    Option(
        name="retry_on",
        help="Retry only on these results: oom, timeout, failed, exit codes.",
        metavar="WHAT",
        is_list=True,
        takes_number=True,
        fields=("retry_on",),
        parse=parse_retry_on,
        comment="for example oom,timeout,75; empty is any failure",
        while_running=True,
    ),
    Option(
        name="no_requeue",
        help="Do not requeue after a crash of the machine or of Stoker.",
        sbatch="no-requeue",
        kind="flag",
        fields=("requeue",),
        parse=lambda value: not value,
        show=lambda job, _: not job.spec.requeue,
        while_running=True,
    ),
    Option(
        name="preemptible",
        help="Give way to jobs that would wait long: save (the default) saves and leaves, restart begins again.",
        metavar="[save|restart]",
        fields=("preemptible",),
        parse=parse_preemptible,
        comment="save, restart, or no",
        label="gives way",
        while_running=True,
        alone="save",
    ),
    Option(
        name="save_signal",
        help="Signal that asks a preemptible job to save and exit, default USR1.",
        metavar="SIG",
        fields=("save_signal",),
        parse=parse_save_signal,
        comment="asks a preemptible job to save and exit",
        built_in="USR1",
        while_running=True,
        given_to_jobs=True,
    ),
    Option(
        name="save_time",
        help="Time that a preemptible job has to save, default 2m; like -t.",
        metavar="DUR",
        takes_number=True,
        fields=("save_time",),
        parse=parse_duration,
        show=lambda job, _: seconds_text(job.spec.save_time),
        comment="for a preemptible job to save and exit",
        built_in="120s",
        while_running=True,
    ),
    Option(
        name="save_exit",
        help="Exit code that says that the job has saved; default is any but 0, which means done.",
        metavar="CODE",
        kind="number",
        fields=("save_exit",),
        parse=parse_exit_code,
        show=lambda job, _: -1 if job.spec.save_exit is None else job.spec.save_exit,
        comment="exit code for saved; -1 is any but 0",
        built_in=-1,
        while_running=True,
    ),
    Option(
        name="urgent",
        help="If no GPU is free, let preemptible jobs of yours give way.",
        kind="switch",
        fields=("urgent",),
        comment="whether preemptible jobs give way to it",
        label="urgent",
    ),
    Option(
        name="chdir",
        help="Working directory of the jobs.",
        metavar="DIR",
        short="-D",
        sbatch="chdir",
        fields=("cwd",),
    ),
    Option(
        name="freeze",
        help="Run the code as it is now, whatever changes until the start; tree: inside that copy; no: off.",
        metavar="[=tree]",
        fields=("freeze",),
        parse=parse_freeze,
        show=lambda job, _: job.spec.freeze,
        at_submit=True,
    ),
    Option(
        name="warm",
        help="Fork Python from a process that has imported these modules; alone: those that the script imports.",
        metavar="[MODULES]",
        is_list=True,
        fields=("warm",),
        parse=parse_warm,
        show=lambda job, _: ",".join(module.partition(":")[0] for module in job.spec.warm),
        label="warm",
        at_submit=True,
        alone="auto",
    ),
    Option(
        name="env",
        help="Set a variable for the jobs (repeatable).",
        metavar="K=V",
        sbatch="export",
        kind="table",
        fields=("extra_env",),
        parse=_pairs,
        show=_shown_variables,
    ),
    Option(
        name="out",
        help="File for the output; %j is the id, %x the name. - is this terminal.",
        metavar="PAT",
        short="-o",
        sbatch="output",
        fields=("out",),
    ),
    Option(
        name="err",
        help="Separate file for stderr.",
        metavar="PAT",
        short="-e",
        sbatch="error",
        fields=("err",),
    ),
    Option(
        name="name",
        help="Name of the jobs.",
        metavar="NAME",
        short="-J",
        sbatch="job-name",
        show=lambda job, _: job.name,
        of_one_job=True,
        while_running=True,
    ),
    Option(
        name="tag",
        help="Attach a label to the jobs (repeatable).",
        metavar="K=V",
        sbatch="comment",
        kind="table",
        fields=("tags",),
        parse=_pairs,
        label="tags",
        while_running=True,
    ),
    Option(
        name="notify",
        help="Notify when the job, array or list has finished: an apprise URL (ntfy://..., slack://...), or mail.",
        metavar="URL|mail",
        is_list=True,
        fields=("notify",),
        parse=parse_targets,
        show=lambda job, _: ",".join(map(shown_target, job.spec.notify)),
        comment="a URL of apprise, or mail; only the kind of a URL is shown",
        while_running=True,
    ),
)
"""Every job option, in the order of `--help`."""

BY_NAME: Mapping[str, Option] = {option.name: option for option in OPTIONS}
WHILE_RUNNING = tuple(option.name for option in OPTIONS if option.while_running)
TABLES = tuple(option.name for option in OPTIONS if option.kind == "table")
SET_BY_STOKER = frozenset(
    (
        *filter(None, (option.sbatch for option in OPTIONS)),
        *("gpus-per-node", "gpus-per-task", "gres", "requeue"),
        *("hold", "input", "parsable", "test-only", "wait", "wrap"),
    )
)
"""Options of sbatch that follow from options of Stoker, or would change what sbatch prints."""


def merged(base: JobOptions, own: JobOptions) -> JobOptions:
    """The options of a batch, overridden by those of one of its jobs."""
    given = {name: getattr(own, name) for name in own.__struct_fields__ if getattr(own, name) is not None}
    tables = {name: {**getattr(base, name), **getattr(own, name)} for name in TABLES}
    return msgspec.structs.replace(base, **{**given, **tables})


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
