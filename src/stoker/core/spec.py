"""Job spec: what a user asks for (command, resources, dependencies, array)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Literal, NamedTuple, Protocol, TypeVar, get_args

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.device import Device
from stoker.core.errors import UsageError
from stoker.core.ranges import Ranges, ranges_of, runs
from stoker.core.selectors import parse_selection, quoted, split_outside

Role = Literal["job", "hook"]
CALL_PROGRAM = "/python/function_child.py"
"""End of the path of the program that runs a Python call; function and arguments follow it."""
_PLAIN = r"(?a)(?:[\w@%+=:,./-]|(?<!\$)\{(?:i|id|gpu|name)\})+"
"""A word that needs no quotes; placeholders are replaced before any shell could read them."""
_COPY = r"(?s).*/scripts/[0-9a-f]{32}/([^/]+)"
"""Path of the copy of a script; users know it by its file name."""


class Resources(Struct, frozen=True):
    """The GPUs that a job asks for. Jobs with equal resources are interchangeable to the plan."""

    gpus: int = 1
    memory: int | None = None
    """Bytes on each GPU, which may then be shared; None is the whole GPU, unless `auto`."""
    allowed: tuple[str, ...] = ()
    """Device ids; empty is any."""
    preferred: tuple[str, ...] = ()
    model: str = ""
    """A part of the GPU's name, in lower case."""
    required: tuple[str, ...] = ()
    """Device ids that the job must get, among others."""
    auto: bool = False
    """Whether the memory is learnt from earlier runs."""
    mps: int | None = None
    """Percent of a GPU's threads as a client of MPS; None is no client."""
    predicted: tuple[tuple[str, int], ...] = ()
    """Learnt bytes by GPU model; without them, the first run is exclusive and measured."""
    loads: tuple[tuple[str, int], ...] = ()
    """Learnt load in percent by GPU model."""
    floor: int = 0
    """Bytes that it needs at least, as an attempt showed; overrides what was declared or learnt."""

    @property
    def shares(self) -> bool:
        return self.memory is not None or self.auto


def suits(device: Device, resources: Resources) -> bool:
    """Whether a job with these resources could ever run on the device."""
    if (resources.allowed and device.id not in resources.allowed) or resources.model not in device.model.lower():
        return False
    return resources.memory is None or device.memory is None or resources.memory <= device.memory


def amount_on(resources: Resources, device: Device) -> int | None:
    """The bytes to reserve on a device; None is the whole device."""
    if device.memory is None:
        return None
    amount = dict(resources.predicted).get(device.model) if resources.auto else resources.memory
    if amount is None:
        return None
    amount = max(amount, resources.floor)
    return None if amount > device.memory else amount


def load_on(resources: Resources, device: Device) -> int:
    """The learnt load on a device in percent; 0 if unknown."""
    return dict(resources.loads).get(device.model, 0) if resources.loads else 0


class EarlySignal(Struct, frozen=True):
    """A signal that the worker sends before the time limit, so that a program can save its state."""

    number: int
    seconds: float = 60.0
    """Before the limit."""
    command_only: bool = False
    """Whether only the command gets it, and not the processes that it started."""


Preemptible = Literal["", "save", "restart"]
"""How a job gives way to others: never, after it has saved its state, or so that it starts from the beginning."""


IdleAction = Literal["report", "stop", "preempt"]


class IdleRule(Struct, frozen=True):
    """When a job counts as idle, because its GPUs show no utilisation, and what is done then."""

    seconds: float = 1800.0
    """0 is never."""
    action: IdleAction = "report"
    """Besides the report: end the job, or let it give way to jobs that wait."""


class JobSpec(Struct, frozen=True):
    """How a job runs, apart from its command. Most jobs of a batch share one object."""

    resources: Resources = Resources()
    priority: int = 0
    cwd: str = "/"
    environment: str = ""
    """Digest of the environment in the store."""
    extra_env: tuple[tuple[str, str], ...] = ()
    umask: int = 0o022
    limit: float | None = None
    """Time limit in seconds."""
    signal: EarlySignal | None = None
    first_output: float | None = None
    """Seconds after the start within which it must write something."""
    silent: float | None = None
    """Seconds without new output after which it is ended."""
    idle: IdleRule = IdleRule()
    grace: float = 30.0
    """Seconds between TERM and KILL."""
    retries: int = 0
    requeue: bool = True
    """Whether the job is requeued after its worker died."""
    always_requeue: bool = False
    """Whether that has no limit, as for a process that adds the other jobs of its batch."""
    out: str = ""
    """Path pattern of standard output; "-" is the caller's, empty the log file of the attempt."""
    err: str = ""
    """Path pattern of standard error; empty follows standard output."""
    group: str = ""
    """Jobs of a group share a limit of running jobs, if one is configured."""
    begin: float | None = None
    """Earliest start, in seconds since the epoch."""
    start_within: float | None = None
    """Seconds after submit, or after `begin`, in which it has to start."""
    nonblock: bool = False
    """Whether it has to start at once."""
    after: tuple[Dependency, ...] = ()
    retry_on: tuple[str, ...] = ()
    """Results and exit codes that are retried; empty is any failure."""
    at_once: int | None = None
    """How many tasks of its array, or jobs of its pool, may run at once."""
    pool: str = ""
    """Name of the Python executor whose jobs share `at_once`; empty for an array's own limit."""
    tags: tuple[tuple[str, str], ...] = ()
    commit: str = ""
    """The commit of its directory at submit, with a `*` where files differed from it."""
    freeze: str = ""
    """How the user wants its code to be frozen: `code`, `tree` or `no`; empty is the default."""
    code: str = ""
    """The code that it runs, in the words of the feature that prepares jobs; empty is what is there at its start."""
    warm: tuple[str, ...] = ()
    """Modules that are imported once for all such jobs; empty starts a new Python."""
    fill: bool = False
    """Whether {i}, {id}, {gpu} and {name} in the command are replaced."""
    cap: bool = False
    """Whether PyTorch is limited to the memory reserved for the job."""
    mps_optional: bool = False
    """Whether it may run without MPS where MPS is not available."""
    notify: tuple[str, ...] = ()
    """Where to tell the user that all jobs of its batch have ended: URLs, or `mail`."""
    array_tasks: tuple[int, int, int] | None = None
    """Number of tasks, least and largest index of its array."""
    slurm_submit_dir: str = ""
    """The directory of submit for a script with #SBATCH lines, which gets variables of Slurm; else empty."""
    terminal: str = ""
    """Path of the terminal that the command gets as its own, if it is an interactive session."""
    role: Role = "job"
    """An on-finish job ("hook") is not listed among the jobs."""
    cluster: str = ""
    """Name of the cluster that it runs on; empty is this machine."""
    nodes: int = 1
    """Nodes of the cluster that it runs on at once."""
    slurm: tuple[tuple[str, str], ...] = ()
    """More options for sbatch: long names and values, which are empty for those that take none."""
    parent: str = ""
    """Worker of the job in which its run was started; empty if that was outside of all jobs."""
    preemptible: Preemptible = ""
    save_signal: str = "USR1"
    """Asks a job that can save its state to do so and exit."""
    save_time: float = 120.0
    """Seconds that it has for that."""
    save_exit: int | None = None
    """The exit code that says that it has saved; None is any but 0, which says that it is done."""
    urgent: bool = False
    """Whether it asks for GPUs that preemptible jobs of its user have."""


Spec = TypeVar("Spec", JobSpec, Resources)
LIMIT_FIELDS = ("limit", "grace", "signal", "first_output", "silent")
"""The fields of a spec that a worker keeps for the limits of an attempt."""
RUNNING_FIELDS = (
    *LIMIT_FIELDS,
    "idle",
    *("priority", "retries", "retry_on", "requeue", "tags", "notify"),
    *("preemptible", "save_signal", "save_time", "save_exit"),
)
"""The fields of a spec that a user can change after the job has started."""


def with_fields(spec: Spec, other: Spec, fields: Iterable[str]) -> Spec:
    """The spec, or its resources, with these fields of another one."""
    return replace(spec, **{name: getattr(other, name) for name in fields})


class Command(Struct, frozen=True, gc=False):
    """Words to execute, or one line for a shell."""

    words: tuple[str, ...]
    shell: str = ""
    """The shell that runs the single word; empty executes the words directly."""

    @property
    def text(self) -> str:
        """The command as a user would type it."""
        if self.shell:
            return self.words[0]
        if call := self.call:
            return f"{call.function}({', '.join(call.arguments)})"
        return " ".join(map(_quoted, [*map(_typed, self.words[:2]), *self.words[2:]]))

    @property
    def call(self) -> FunctionCall | None:
        """The Python call that the command runs; None for any other command."""
        if self.shell or len(self.words) < 5 or not self.words[2].endswith(CALL_PROGRAM):
            return None
        return FunctionCall(self.words[4].rpartition(".")[2], self.words[5:])


class FunctionCall(NamedTuple):
    """A Python call as screens show it."""

    function: str
    arguments: tuple[str, ...]
    """Those that are short as text: `lr=0.001`."""


def _quoted(word: str) -> str:
    import shlex

    return word if re.fullmatch(_PLAIN, word) else shlex.quote(word)


PLAIN_SHELL = "/bin/sh"


def shell_of(environment: Mapping[str, str]) -> str:
    return environment.get("SHELL") or PLAIN_SHELL


def _typed(word: str) -> str:
    """A word as the user typed it: for the copy of a script, the name of the script."""
    match = re.fullmatch(_COPY, word) if "/scripts/" in word else None
    return match[1] if match else word


class Member(Struct, frozen=True):
    """The place of a job in a batch whose jobs have numbers and parameters."""

    number: int
    """From 0."""
    params: str
    """Its parameters as a JSON object."""
    batch: int = 0
    """The id by which users name the batch, that of its first job; 0 before the job is in the queue."""
    kind: str = ""
    """The feature that made the batch, as `sweep`."""


class NewJob(Struct, frozen=True, gc=False):
    """A job that has no id yet."""

    command: Command
    spec: JobSpec
    name: str = ""
    task: int | None = None
    """Its index, if it is a task of an array."""
    array: int = 0
    """A number common to the tasks of one array, if several arrays are submitted together."""
    member: Member | None = None
    """Set if the jobs of its batch have parameters."""
    count: int = 1
    """How many tasks of an array it stands for, of which `task` is the first index."""
    step: int = 1
    """Distance of their indices."""


def tasks_of(job: NewJob, indices: Sequence[int]) -> list[NewJob]:
    """An array of a job, in as few items as its indices have runs of equal distances."""
    return [
        replace(job, task=run[0], count=len(run), step=run.step if len(run) > 1 else 1)
        for run in runs(ranges_of(indices).parts)
    ]


def single_jobs(jobs: Iterable[NewJob]) -> Iterator[NewJob]:
    """Each job by itself."""
    for job in jobs:
        if job.count == 1:
            yield job
        else:
            assert job.task is not None
            indices = range(job.task, job.task + job.count * job.step, job.step)
            yield from (replace(job, task=task, count=1, step=1) for task in indices)


def content_of(command: Command, spec: JobSpec, member: Member | None = None) -> bytes:
    """Digest of command, directory and extra variables: equal for jobs, or tasks of one index, that do the same work.

    A job with parameters is known by these in place of its index, so that a larger batch finds those of a smaller one.
    """
    import hashlib  # slow to import, and read-only commands do not need it

    parts = [command.shell and "shell", spec.cwd, str(len(command.words)), *command.words]
    parts += [f"{key}={value}" for key, value in sorted(spec.extra_env)]
    if member is not None:
        parts.append(f"params {member.params}")
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).digest()[:16]


class WorkKey(NamedTuple):
    """The work of a job: equal for jobs that do the same."""

    content: bytes
    task: int | None
    """None also for a job with parameters, which are part of its content."""


class HasWork(Protocol):
    """A job, in the queue or not."""

    @property
    def command(self) -> Command: ...
    @property
    def spec(self) -> JobSpec: ...
    @property
    def task(self) -> int | None: ...
    @property
    def member(self) -> Member | None: ...


def work_of(job: HasWork) -> WorkKey:
    return WorkKey(content_of(job.command, job.spec, job.member), None if job.member else job.task)


def digest_of(variables: Mapping[str, str]) -> str:
    """The key of an environment in the store."""
    import hashlib

    text = "\0".join(f"{key}={value}" for key, value in sorted(variables.items()))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


Kind = Literal["ok", "any", "notok"]
Outcome = Literal["open", "ok", "notok"]
"""How a target ended. An array is ok when all tasks are done, notok when all ended and one is not done."""
Name = Callable[[int], str]
"""From a job's number to the id that users type, which differs for tasks of arrays."""

_KINDS: dict[str, Kind] = {prefix + kind: kind for kind in get_args(Kind) for prefix in ("", "after")}

_AWAITED: dict[Kind, str] = {"ok": "succeed", "any": "finish", "notok": "fail"}
_AFTER_HINT = "write it as 12, any:12, notok:12, ok:12:13 or several of these with commas"


class Dependency(Struct, frozen=True):
    """A job waits until another one, or a whole array, has ended in a certain way."""

    target: int
    kind: Kind = "ok"
    array: bool = False
    """Whether the target is the whole array of this id."""


class Satisfied(Struct, frozen=True):
    """All dependencies are satisfied."""


class Blocked(Struct, frozen=True):
    """Some targets have not ended yet."""

    dependencies: tuple[Dependency, ...]


class NeverSatisfied(Struct, frozen=True):
    """A target ended in the wrong way, so that the job can never start."""

    dependency: Dependency


Verdict = Satisfied | Blocked | NeverSatisfied


def judge(after: Sequence[Dependency], outcome: Callable[[Dependency], Outcome]) -> Verdict:
    """Whether a job with these dependencies may start. One that can never be satisfied decides at once."""
    outcomes = [(dependency, outcome(dependency)) for dependency in after]
    for dependency, result in outcomes:
        if result not in ("open", dependency.kind) and dependency.kind != "any":
            return NeverSatisfied(dependency)
    still_open = tuple(dependency for dependency, result in outcomes if result == "open")
    return Blocked(still_open) if still_open else Satisfied()


def target_text(dependency: Dependency, name: Name = str) -> str:
    """The target as text: `job 12`, `job 12.3`, `array 12`."""
    return f"array {dependency.target}" if dependency.array else f"job {name(dependency.target)}"


def dependency_text(dependency: Dependency, name: Name = str) -> str:
    """The dependency as a screen shows it: `12 (ok)`, `array 12 (any)`."""
    target = target_text(dependency) if dependency.array else name(dependency.target)
    return f"{target} ({dependency.kind})"


def awaited_text(dependency: Dependency, name: Name = str) -> str:
    """The condition for which a job waits: `12 to succeed`, `array 12 to finish`."""
    target = target_text(dependency) if dependency.array else name(dependency.target)
    return f"{target} to {_AWAITED[dependency.kind]}"


def parse_after(text: str) -> tuple[tuple[Kind, str], ...]:
    """The kinds and the ids, as they were typed, of `12,any:13` or of Slurm's `afterok:1:2,afterany:3`."""
    if re.search(r"\?after", text):
        raise UsageError(f"{text!r} waits for one of several jobs", "a job waits for all; join them with commas")
    pairs: list[tuple[Kind, str]] = []
    before: Kind = "ok"
    for item in split_outside(text, ","):
        kind, words = _parse_item(item.strip(), text)
        if kind is None and before != "ok":
            # `any:12,13` could mean any:13 or ok:13, and a wrong guess would start a job too early.
            raise UsageError(
                f"{text!r} is ambiguous: does {before} also apply to {words[0]}?",
                f"write {before}:{words[0]} or ok:{words[0]}",
            )
        before = kind or "ok"
        pairs += [(before, word) for word in words]
    return tuple(dict.fromkeys(pairs))


def _parse_item(item: str, text: str) -> tuple[Kind | None, list[str]]:
    """The kind of `kind:id:id`, None if it has none, and the ids."""
    head, *rest = split_outside(item, ":")
    if not rest:
        return None, [_checked_word(head, text)]
    if head.lower() not in _KINDS:
        raise UsageError(f"in {text!r}, {head!r} is not a kind of dependency", _AFTER_HINT)
    return _KINDS[head.lower()], [_checked_word(word, text) for word in rest]


def _checked_word(word: str, text: str) -> str:
    """The word, unless it cannot be an id or a name."""
    if not word or word.lower() in _KINDS:
        raise UsageError(f"in {text!r} an id is missing", _AFTER_HINT)
    parse_selection([word])
    return word


def never_satisfied_text(verdict: NeverSatisfied, name: Name = str) -> str:
    """Why a job can never start."""
    target = target_text(verdict.dependency, name)
    if verdict.dependency.kind == "ok":
        return f"{target} did not succeed"
    return f"{target} succeeded; this job starts only if it fails"


MOST_TASKS = 1_000_000
_ARRAY_HINT = "write it as 0-9, 0-15:4, 1,3,7-9 or 0-99%8"
_PART = r"(?a)(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?"
_LIMIT = r"(?a)\d{1,9}"


class ArraySpec(Struct, frozen=True):
    """The tasks of an array, in the order of submission."""

    indices: Ranges
    at_once: int | None = None
    """How many of them may run at once; None is no limit."""


def parse_array(text: str) -> ArraySpec:
    """The tasks of `0-9`, `0-15:4`, `1,3,7-9` or `0-99%8` (at most eight at once)."""
    listed, percent, limit = text.strip().partition("%")
    ranges = [_parse_part(part.strip(), text) for part in listed.split(",")]
    count = sum(map(len, ranges))
    if count > MOST_TASKS:
        raise UsageError(
            f"an array of {count} tasks is too large", f"the limit is {MOST_TASKS} tasks; submit several arrays"
        )
    if (twice := _twice(ranges)) is not None:
        raise UsageError(f"{quoted(text)} has task {twice} twice", "name each index once")
    return ArraySpec(Ranges(ranges), _parse_limit(limit, text) if percent else None)


def _twice(ranges: Sequence[range]) -> int | None:
    """An index that is in several ranges; those that do not overlap are not compared one by one."""
    in_order = sorted(ranges, key=lambda part: part[0])
    if all(before[-1] < after[0] for before, after in pairwise(in_order)):
        return None
    [(index, count)] = Counter(chain.from_iterable(ranges)).most_common(1)
    return index if count > 1 else None


def _parse_part(part: str, text: str) -> range:
    match = re.fullmatch(_PART, part)
    if not match:
        raise UsageError(f"{quoted(text)} is not an array", _ARRAY_HINT)
    first, last, step = match.groups()
    if last and int(last) < int(first):
        raise UsageError(f"{part} is a reversed range", f"write it as {last}-{first}")
    if step and int(step) == 0:
        raise UsageError(f"{part} has a step of 0", f"write the step as {first}-{last}:1 or more")
    return range(int(first), int(last or first) + 1, int(step or 1))


def _parse_limit(limit: str, text: str) -> int:
    if not re.fullmatch(_LIMIT, limit.strip()):
        raise UsageError(f"{quoted(text)} has no number after the %", _ARRAY_HINT)
    if int(limit) == 0:
        raise UsageError("%0 would let no task run", "leave out the % for no limit")
    return int(limit)
