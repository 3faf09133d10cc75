"""Slurm as seen from its commands: the variables they need, and what their output means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from stoker.core.settings import ClusterSettings

TESTED = (22, 5)
"""The release that the tests of this project run."""
LIBRARIES = "libraries"
"""Directory of links to the libraries of an unpacked Slurm, below its prefix."""
SINFO_FORMAT = "%P|%a|%l|%D|%t|%G"
"""Partition, up or down, time limit, nodes, their state, generic resources; for `parse_sinfo`."""


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


class NodeGroup(NamedTuple):
    """Nodes of a partition that are in the same state and alike: a line of sinfo."""

    partition: str
    is_default: bool
    is_up: bool
    time_limit: str
    """In Slurm's own words."""
    nodes: int
    state: str
    """Without the sign that Slurm appends for a node that does not answer, sleeps or is reserved."""
    responds: bool
    """Whether the node answers."""
    gpus: int
    """Of each node."""


USABLE = frozenset(("alloc", "comp", "idle", "mix", "plnd"))
"""States of nodes that take jobs, now or when those that run are over; `plnd` is idle until a large job starts."""


def is_usable(state: str) -> bool:
    """Whether a node in that state, as sinfo prints it, answers and takes jobs."""
    return _plain_state(state) in USABLE and not state.endswith("*")


def _plain_state(state: str) -> str:
    return state.rstrip("*~#!%$@^-+")


def parse_sinfo(text: str) -> list[NodeGroup]:
    """The lines of `sinfo -h -o SINFO_FORMAT`; others are skipped."""
    groups = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|", 5)]
        if len(fields) == 6 and fields[3].isdecimal():
            groups.append(_node_group(fields))
    return groups


def _node_group(fields: list[str]) -> NodeGroup:
    partition, up, limit, nodes, state, gres = fields
    return NodeGroup(
        partition=partition.removesuffix("*"),
        is_default=partition.endswith("*"),
        is_up=up == "up",
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
