"""`stoker cluster status`: clusters and their nodes, as data and as text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from msgspec import Struct

from stoker.cli.console import print_line
from stoker.cli.options import Screen, write_json
from stoker.core.device import node_gpu
from stoker.core.job import Active, id_text
from stoker.core.settings import ClusterSettings
from stoker.core.units import count_text
from stoker.features.slurm.commands import SINFO_FORMAT, Nodes, ask, is_usable, parse_sinfo
from stoker.store import queries
from stoker.store.engine_lock import engine_of
from stoker.store.paths import Paths
from stoker.store.writer import open_store

SCHEMA = "stoker.cluster-status/1"


class ClusterStatus(Struct, frozen=True):
    """One cluster: `stoker cluster status`."""

    name: str
    kind: str
    private: bool
    shared: str
    answers: bool
    trouble: str
    """Why the controller does not answer."""
    nodes: list[Nodes]
    jobs: int
    """Jobs of this queue for it that are not over."""
    active: int
    """Those of them that were handed to Slurm."""


class Clusters(Struct, frozen=True):
    """`stoker cluster status --json`."""

    schema: str
    clusters: list[ClusterStatus]


def cluster_status(name: str, settings: ClusterSettings, paths: Paths) -> ClusterStatus:
    nodes = partitions(settings)
    load = cluster_load(paths, name)
    return ClusterStatus(
        name=name,
        kind=settings.kind,
        private=settings.private,
        shared=settings.shared,
        answers=not isinstance(nodes, str),
        trouble=nodes if isinstance(nodes, str) else "",
        nodes=[] if isinstance(nodes, str) else nodes,
        jobs=load.open,
        active=load.active,
    )


def partitions(settings: ClusterSettings) -> list[Nodes] | str:
    """The partitions of a controller, or why it does not answer."""
    reply = ask(settings, "sinfo", "-h", "-o", SINFO_FORMAT)
    return parse_sinfo(reply.out) if reply.ok else reply.error


def usable_nodes(settings: ClusterSettings) -> list[str]:
    """Names of the nodes that answer and take jobs."""
    lines = [line.split() for line in ask(settings, "sinfo", "-h", "-N", "-o", "%N %t").out.splitlines()]
    return [line[0] for line in lines if len(line) == 2 and is_usable(line[1])]


def jobs_on_nodes(paths: Paths, name: str) -> dict[str, list[tuple[str, str]]]:
    """GPU and job of all that runs on the cluster, by node."""
    on_nodes: dict[str, list[tuple[str, str]]] = {}
    with contextlib.closing(open_store(paths)) as store:
        active = [owned.job for owned in queries.all_active(store) if owned.job.spec.cluster == name]
    for job in active:
        for gpu in map(node_gpu, job.state.devices if isinstance(job.state, Active) else ()):
            if gpu is not None:
                on_nodes.setdefault(gpu.node, []).append((gpu.gpu, id_text(job)))
    return {node: sorted(jobs) for node, jobs in sorted(on_nodes.items())}


def cluster_load(paths: Paths, name: str) -> queries.Load:
    """Open jobs of this queue that belong to the cluster."""
    if not paths.database.exists():
        return queries.Load(0, 0, 0)
    with contextlib.closing(open_store(paths)) as store:
        return queries.loads(store).get(engine_of(name), queries.Load(0, 0, 0))


# -- the text --------------------------------------------------------------------------------------


def print_clusters(clusters: Sequence[ClusterStatus]) -> None:
    for place, cluster in enumerate(clusters):
        if place:
            print_line("")
        for line in cluster_lines(cluster):
            print_line(line)


def cluster_lines(cluster: ClusterStatus) -> Iterator[str]:
    """The head line with what matters most, then the nodes."""
    kind = "private Slurm" if cluster.private else "Slurm"
    state = "answers" if cluster.answers else "does not answer"
    waiting = cluster.jobs - cluster.active
    yield f"{cluster.name}: {kind}, {state}; {cluster.active} of your jobs in Slurm, {waiting} waiting here"
    if cluster.trouble:
        yield f"  {cluster.trouble}"
        start = f"stoker cluster up {cluster.name}" if cluster.private else f"stoker cluster check {cluster.name}"
        yield f"  see {start}; running jobs continue"
    yield f"  shared directory {cluster.shared}"
    for nodes in cluster.nodes:
        yield f"  {_nodes(nodes)}"


def _nodes(nodes: Nodes) -> str:
    name = nodes.partition + ("*" if nodes.default else "")
    gpus = f", {count_text(nodes.gpus, 'GPU')} each" if nodes.gpus else ""
    silent = "" if nodes.responds else ", not answering"
    down = "" if nodes.up else ", partition down"
    return f"{name:12} {count_text(nodes.nodes, 'node'):9} {nodes.state}{silent}{gpus}, limit {nodes.time_limit}{down}"


def show_nodes(name: str, settings: ClusterSettings, screen: Screen) -> None:
    """Show the nodes of a cluster, and the jobs of this queue on their GPUs."""
    paths = screen.paths
    status = cluster_status(name, settings, paths)
    if screen.form == "json":
        write_json(Clusters(SCHEMA, [status]))
        return
    print_clusters([status])
    for node, jobs in jobs_on_nodes(paths, name).items():
        print_line(f"  {node}: {', '.join(f'GPU {gpu}: job {job}' for gpu, job in jobs)}")
