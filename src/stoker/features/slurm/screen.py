"""Text of `stoker cluster status`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stoker.cli.console import print_line
from stoker.cli.options import Screen, write_json
from stoker.core.settings import ClusterSettings
from stoker.core.units import count_text
from stoker.features.slurm.status import Clusters, ClusterStatus, Nodes, cluster_status, jobs_on_nodes


def print_clusters(found: Sequence[ClusterStatus]) -> None:
    for place, cluster in enumerate(found):
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
        write_json(Clusters("stoker.cluster-status/1", [status]))
        return
    print_clusters([status])
    for node, jobs in jobs_on_nodes(paths, name).items():
        print_line(f"  {node}: {', '.join(f'GPU {gpu}: job {job}' for gpu, job in jobs)}")
