"""Slurm's commands: the variables that they need, how they are run, and what their output means.

Nothing else runs a command of the scheduler: another scheduler would be another module of this size.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Literal, NamedTuple

from msgspec import Struct

from stoker.core.settings import ClusterSettings
from stoker.core.text import printable
from stoker.features.slurm.cluster import ENDED_STATES, SlurmFact

TESTED = (22, 5)
"""The release that the tests of this project run."""
LIBRARIES = "libraries"
"""Directory of links to the libraries of an unpacked Slurm, below its prefix."""
SINFO_FORMAT = "%P|%a|%l|%D|%t|%G"
"""Partition, up or down, time limit, nodes, their state, generic resources; for `parse_sinfo`."""
SLURM_SECONDS = 30.0
"""How long `ask` waits for a command; without a controller they give up after about ten seconds."""

Kind = Literal["submit", "query", "cancel", "configuration", "nodes", "drained"]
Answer = Literal["ok", "refused", "limit", "away"]
"""`refused` stays so, `limit` may pass when other jobs have ended, `away` may pass at any time."""
PATIENCE_SECONDS = 120.0
"""A command that takes longer is killed, and counts as unanswered."""
IDS_AT_ONCE = 500
TAG = "stoker:"
"""All tags begin with it."""
CANNOT_RUN = "cannot run"
_FORMAT = "%i|%T|%r|%S|%k|%N"
"""Id, state, reason, start, comment and node: fields that every release since 2.6 has, without a width."""
_AWAY = re.compile(
    "unable to contact slurm controller|socket timed out|connection refused|try again|temporarily|too many|"
    "throttl|unable to allocate|protocol authentication|zero bytes were transmitted|communications connection|"
    "insane message length|incompatible version|message receive failure|header lengths are longer|"
    f"in standby mode|slurm backup|slurmctld is not|{CANNOT_RUN}",
    re.IGNORECASE,
)
"""Errors that have nothing to do with the job, also of commands and a controller of different releases."""
_LIMIT = re.compile(r"job submit limit|\b((?:Assoc|QOS)(?:Max|Grp)\w+)", re.IGNORECASE)
"""Limits of the accounting: those of submitted jobs pass when some have ended, those of one job do not."""
_SUBMIT_LIMIT = re.compile("MaxSubmit|GrpSubmit|SubmitJob", re.IGNORECASE)


def slurm_environment(settings: ClusterSettings, base: Mapping[str, str]) -> dict[str, str]:
    """The variables for Slurm's commands of a cluster: its slurm.conf, and its programs if they are unpacked."""
    variables = dict(base)
    path = base.get("PATH", "/usr/bin:/bin")
    if settings.prefix:
        path = f"{settings.prefix}/usr/bin:{settings.prefix}/usr/sbin:{path}"
        own = f"{settings.prefix}/{LIBRARIES}"
        variables["LD_LIBRARY_PATH"] = ":".join(
            filter(None, (own, f"{own}/slurm-wlm", base.get("LD_LIBRARY_PATH", "")))
        )
    if settings.conf:
        variables["SLURM_CONF"] = settings.conf
    return {**variables, "PATH": f"{path}:/usr/sbin:/sbin"}  # daemons are there, and often not on a user's path


# -- commands that are waited for ------------------------------------------------------------------


class Reply(NamedTuple):
    """How one of Slurm's commands ended."""

    ok: bool
    out: str
    error: str
    """Its errors, or why it could not be run."""


def ask(settings: ClusterSettings, *words: str, given: str = "", seconds: float = SLURM_SECONDS) -> Reply:
    """Run one of Slurm's commands for a cluster."""
    environment = slurm_environment(settings, os.environ)
    if (program := shutil.which(words[0], path=environment["PATH"])) is None:
        return Reply(False, "", f"{words[0]} is not on the PATH of this machine")
    try:
        done = subprocess.run(
            [program, *words[1:]],
            input=given,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        return Reply(False, "", f"{words[0]} {f'takes longer than {seconds:g} s' if late else error}")
    return Reply(done.returncode == 0, done.stdout, read_error(done.stderr))


# -- commands that run beside the engine -----------------------------------------------------------


class Done(NamedTuple):
    """A command that has ended."""

    kind: Kind
    subject: str
    """The tag of a submit."""
    ok: bool
    out: str
    error: str
    """The errors on standard error; an administrator's own words come before those of Slurm."""
    began: float
    """When it was started."""
    seconds: float

    @property
    def answer(self) -> Answer:
        if self.ok:
            return "ok"
        if not self.error or _AWAY.search(self.error):
            return "away"
        return "limit" if _LIMIT.search(self.error) and _may_pass(self.limit) else "refused"

    @property
    def limit(self) -> str:
        """Slurm's name of the limit that is reached; empty if it gives none."""
        return next((name for name in _LIMIT.findall(self.error) if name), "")


def _may_pass(limit: str) -> bool:
    return not limit or bool(_SUBMIT_LIMIT.search(limit))


class _Running(NamedTuple):
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]
    kind: Kind
    subject: str
    began: float


class SlurmCommands:
    """Runs one command at a time; `finished` tells when it has ended."""

    def __init__(self, environment: Mapping[str, str], user: int, clock: Callable[[], float]) -> None:
        """`environment` is all that the commands get; `user` is whose jobs are asked for."""
        self._clock = clock
        self._environment = {**environment, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
        self._user = user
        self._running: _Running | None = None
        self._failed: Done | None = None
        """A command that could not even be started."""

    @property
    def busy(self) -> bool:
        return self._running is not None or self._failed is not None

    def submit(self, tag: str, options: Sequence[str], script: str) -> None:
        fixed = ["--parsable", "--no-requeue", f"--comment={tag}", "--output=/dev/null", "--error=/dev/null"]
        self._start("submit", tag, ["sbatch", *fixed, "--chdir=/", *options], script)

    def query(self) -> None:
        """Ask for all jobs of this user, also those that have just ended."""
        self._start("query", "", ["squeue", "-h", "-t", "all", "-u", str(self._user), "-o", _FORMAT])

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel at most IDS_AT_ONCE jobs, tasks or whole arrays."""
        self._start("cancel", "", ["scancel", *ids])

    def signal(self, ids: Sequence[str], name: str) -> None:
        """Send a signal to the programs of at most IDS_AT_ONCE tasks, and not to what these started."""
        self._start("cancel", "", ["scancel", "--batch", f"--signal={name}", *ids])

    def configuration(self) -> None:
        self._start("configuration", "", ["scontrol", "show", "config"])

    def nodes(self, partition: str) -> None:
        """Ask what the nodes of a partition have."""
        self._start("nodes", "", ["sinfo", "-h", *(["-p", partition] if partition else []), "-o", "%G|%m|%c"])

    def drained(self) -> None:
        """Ask for the names of the nodes that take no more jobs, or will not when those that run there are over."""
        self._start("drained", "", ["sinfo", "-h", "-N", "-t", "drained,draining", "-o", "%N"])

    def finished(self) -> Done | None:
        """The command that has ended since the last call; None while it runs, or if none does."""
        failed, self._failed = self._failed, None
        if failed is not None or self._running is None:
            return failed
        process, out, err, kind, subject, began = self._running
        code, seconds = process.poll(), self._clock() - began
        if code is None:
            if seconds > PATIENCE_SECONDS:
                process.kill()
            return None
        self._running = None
        with out, err:
            error = read_error(_text(err))
            # squeue exits with 0 if the controller goes away between its two questions, jobs and partitions.
            ok = code == 0 and (kind == "submit" or not _AWAY.search(error))
            return Done(kind, subject, ok, _text(out), error, began, seconds)

    def close(self) -> None:
        """Leave; a command under way ends by itself."""
        if self._running is not None:
            self._running.process.returncode = 0  # Popen must not warn of it
            self._running.out.close()
            self._running.err.close()
            self._running = None

    def _start(self, kind: Kind, subject: str, words: list[str], given: str = "") -> None:
        assert not self.busy
        began = self._clock()
        try:
            self._running = _Running(*self._spawn(words, given), kind, subject, began)
        except OSError as error:
            problem = f"{CANNOT_RUN} {words[0]}: {error.strerror}"
            self._failed = Done(kind, subject, False, "", problem, began, 0.0)

    def _spawn(self, words: list[str], given: str) -> tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
        """The process and the files that it writes to; a pipe would stop it when it is full."""
        program = shutil.which(words[0], path=self._environment.get("PATH", os.defpath)) or words[0]
        with contextlib.ExitStack() as stack:
            stdin, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            stdin.write(given.encode(errors="surrogateescape"))
            stdin.seek(0)
            process = subprocess.Popen(
                [program, *words[1:]], stdin=stdin, stdout=out, stderr=err, env=self._environment, cwd="/"
            )
            stack.pop_all()
        stdin.close()
        return process, out, err


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


# -- what they print -------------------------------------------------------------------------------


def read_error(text: str) -> str:
    """All errors of a command in one line for screens, without its name; else its last words."""
    errors = [error.strip() for _, mark, error in (line.partition("error: ") for line in text.splitlines()) if mark]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return printable("; ".join(dict.fromkeys(errors)) or (lines[-1] if lines else ""))


def has_alive(text: str) -> bool:
    """Whether Slurm goes on with any job of the user, ours or not, as `query` printed it."""
    states = (fields[1].strip() for line in text.splitlines() if len(fields := line.split("|")) > 1)
    return any(state.partition(" ")[0] not in ENDED_STATES for state in states)


def read_facts(text: str) -> dict[tuple[str, int], SlurmFact]:
    """The tasks with a tag of ours, by tag and index, as `query` printed them."""
    facts: dict[tuple[str, int], SlurmFact] = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < 5 or not fields[4].startswith(TAG):
            continue
        job, state, reason, start, tag, node, *_ = (field.strip() for field in (*fields, ""))
        base, _, tasks = job.partition("_")
        for index in indices(tasks) if tasks else (None,):
            shown = base if index is None else f"{base}_{index}"
            fact = SlurmFact(state.partition(" ")[0], reason, shown, _moment(start), node)
            other = facts.get((tag, index or 0))
            if other is None or other.is_over:  # a requeued or doubled task: the one that lives counts
                facts[tag, index or 0] = fact
    return facts


def indices(text: str) -> list[int]:
    """The indices of `3`, `[3-7,9]` or `[0-99:4%8]`."""
    numbers: list[int] = []
    for part in text.strip("[]").partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match:
            first, last, step = match.groups()
            numbers += range(int(first), int(last or first) + 1, int(step or 1))
    return numbers


def _moment(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


def parse_version(text: str) -> tuple[int, int, int] | None:
    """The release in `slurm 23.02.7` or `slurm-wlm 22.05.8`; None if there is none."""
    match = re.search(r"\bslurm\S* (\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def version_text(version: tuple[int, ...]) -> str:
    """As Slurm writes it: 22.05.8."""
    return ".".join(f"{part:02}" if place == 1 else str(part) for place, part in enumerate(version))


class Limits(NamedTuple):
    """Numbers of a controller that matter to jobs; None if it does not tell."""

    max_array: int | None
    """One more than the largest index of an array."""
    min_job_age: int | None
    """Seconds for which a job that is over can be asked for."""
    max_jobs: int | None
    confines: bool = False
    """Whether it keeps the processes of a job in a cgroup, which none of them can leave."""


def parse_config(text: str) -> Limits:
    """The limits in the output of `scontrol show config`."""
    values = dict(re.findall(r"^(\w+)\s*= *(\d+)", text, re.MULTILINE))
    array, age, jobs = (
        int(values[key]) if key in values else None for key in ("MaxArraySize", "MinJobAge", "MaxJobCount")
    )
    confines = re.search(r"^ProctrackType\s*= *proctrack/cgroup", text, re.MULTILINE) is not None
    return Limits(array, age, jobs, confines)


class Nodes(Struct, frozen=True):
    """Nodes of a partition that are alike and in the same state: a line of sinfo."""

    partition: str
    default: bool
    up: bool
    time_limit: str
    """In Slurm's own words."""
    nodes: int
    state: str
    """Without the sign that Slurm appends for a node that does not answer, sleeps or is reserved."""
    responds: bool
    gpus: int
    """Of each node."""


USABLE = frozenset(("alloc", "comp", "idle", "mix", "plnd"))
"""States of nodes that take jobs, now or when those that run are over; `plnd` is idle until a large job starts."""


def is_usable(state: str) -> bool:
    """Whether a node in that state, as sinfo prints it, answers and takes jobs."""
    return _plain_state(state) in USABLE and not state.endswith("*")


def _plain_state(state: str) -> str:
    return state.rstrip("*~#!%$@^-+")


def parse_sinfo(text: str) -> list[Nodes]:
    """The lines of `sinfo -h -o SINFO_FORMAT`; others are skipped."""
    groups = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|", 5)]
        if len(fields) == 6 and fields[3].isdecimal():
            groups.append(_nodes(fields))
    return groups


def _nodes(fields: list[str]) -> Nodes:
    partition, up, limit, nodes, state, gres = fields
    return Nodes(
        partition=partition.removesuffix("*"),
        default=partition.endswith("*"),
        up=up == "up",
        time_limit=limit,
        nodes=int(nodes),
        state=_plain_state(state),
        responds=not state.endswith("*"),
        gpus=parse_gres(gres),
    )


def parse_gres(text: str) -> int:
    """The GPUs in `gpu:4`, `gpu:a100:4(S:0-1)` or `(null)`, of all types together."""
    plain = re.sub(r"\([^)]*\)", "", text)
    words = [word.split(":") for word in plain.split(",")]
    return sum(int(word[-1]) if word[-1].isdecimal() else 1 for word in words if word[0] == "gpu")


class JobReport(NamedTuple):
    """How a job stands, from `scontrol show job`."""

    state: str
    reason: str
    code: int | None
    node: str


def parse_job(text: str) -> JobReport | None:
    """Read `scontrol show job`; None if Slurm does not know the job."""
    values: dict[str, str] = dict(re.findall(r"(\w+)=(\S*)", text))
    if "JobState" not in values:
        return None
    code = values.get("ExitCode", "").partition(":")[0]
    node = values.get("BatchHost", values.get("NodeList", ""))
    return JobReport(values["JobState"], values.get("Reason", ""), int(code) if code.isdecimal() else None, node)


class NodeSize(NamedTuple):
    """GPUs, memory and cores of one node."""

    gpus: int
    memory: int
    """MiB."""
    cpus: int


def read_nodes(text: str) -> NodeSize:
    """The largest of the nodes that `nodes` printed; without GPUs if none has any."""
    rows = [line.strip().rsplit("|", 2) for line in text.splitlines()]
    sizes = [
        NodeSize(parse_gres(gres), *(int(re.sub(r"\D.*", "", size) or 0) for size in rest))
        for gres, *rest in rows
        if len(rest) == 2
    ]
    return max(sizes, default=NodeSize(0, 0, 0))


def read_submitted(text: str) -> str:
    """The id that `sbatch --parsable` printed; the name of a cluster may follow it."""
    return text.strip().splitlines()[-1].partition(";")[0] if text.strip() else ""
