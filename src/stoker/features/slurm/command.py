"""`stoker cluster`: clusters of the configuration, and private ones; each command imports what it needs late."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.console import print_line, say, tell
from stoker.cli.main import LazyGroup
from stoker.cli.options import json_option
from stoker.core.errors import StokerError, UsageError, did_you_mean

if TYPE_CHECKING:
    from stoker.core.settings import ClusterSettings
    from stoker.features.slurm.private import PrivateSlurm

COMMANDS = {
    "add": "Add a Slurm cluster to your configuration.",
    "make": "Make a Slurm of your own on several servers, without root.",
    "up": "Start the daemons of a private cluster that do not run.",
    "down": "Stop the daemons of a private cluster.",
    "status": "Show clusters: their controllers, nodes and your jobs.",
    "check": "Tell whether jobs can run on a cluster, and what to do if they cannot.",
    "remove": "Take a cluster out of your configuration.",
}
SECTION = "cluster"
"""Of the configuration."""
NOT_ALL = 1
"""Exit code if no server can be used, or some could not be asked."""


@click.group(name="cluster", cls=LazyGroup, sentences=COMMANDS)
def command() -> None:
    """Run jobs on a Slurm cluster: that of your lab, or one of your own on servers that have none.

    \b
      stoker cluster add lab --slurm --partition gpu     the Slurm of this login node
      stoker cluster make gpus gpu[1-5]                  a private one on five servers, through ssh
      stoker cluster check lab                           can jobs run there?
      stoker submit --cluster lab -- python3 train.py
    """


_shared = click.option("--shared", metavar="DIR", help="Directory that this machine and all nodes see.")
_python = click.option("--python", metavar="PATH", help="Interpreter with stoker on the nodes; else the one used here.")


def _settings(name: str) -> ClusterSettings:
    from stoker.app.jobs.config import load_config

    return load_config(os.environ, None).cluster(name)


def _private(name: str) -> tuple[ClusterSettings, PrivateSlurm]:
    from stoker.features.slurm.private_servers import read_private

    settings = _settings(name)
    if not settings.private:
        raise UsageError(f"{name} is not a private cluster", "its administrators start and stop it")
    return settings, read_private(settings, name)


@command.command(name="add")
@click.argument("name")
@click.option("--slurm", "kind", flag_value="slurm", help="It is a Slurm; no other kind is known.")
@_shared
@click.option("--partition", metavar="NAME", help="Partition for jobs; else Slurm's default.")
@click.option("--account", metavar="NAME")
@click.option("--qos", metavar="NAME")
@click.option("--option", "options", metavar="WORD", multiple=True, help="For sbatch; can be given several times.")
@click.option("--pilots", metavar="auto|never|always", help="Run jobs inside allocations that Stoker packs.")
@click.option("--pilot-time", metavar="DUR", help="Time limit of a pilot.")
@click.option("--pilots-max", type=int, metavar="N", help="Pilots at once.")
@click.option("--poll", metavar="DUR", help="Between two calls of squeue.")
@click.option("--queued-max", type=int, metavar="N", help="Jobs that wait in Slurm at once.")
@_python
@click.option("--conf", metavar="FILE", help="slurm.conf, if it is not the one that Slurm finds by itself.")
def add(name: str, kind: str | None, **given: Any) -> int:
    """Add a Slurm cluster to your configuration, or replace what it says of that cluster.

    \b
      stoker cluster add lab --slurm
      stoker cluster add lab --slurm --partition gpu --account vision --option=--constraint=a100
    """
    from stoker.app.jobs.config_file import own_file, write_table
    from stoker.app.jobs.config_tables import check_cluster_name

    if kind is None:
        raise UsageError("what kind of cluster?", f"type stoker cluster add {name} --slurm")
    check_cluster_name(name)
    table = {"kind": kind, **{key: value for key, value in given.items() if value not in (None, ())}}
    path = own_file(os.environ)
    settings = _tried(name, table)
    trouble = _partition_trouble(settings)
    write_table(path, SECTION, name, table)
    say(f"{name} is in {path}; check it: stoker cluster check {name}")
    if trouble:
        say(f"warning: {trouble}")
    return 0


def _tried(name: str, table: Mapping[str, Any]) -> ClusterSettings:
    """The settings as they will be read, with what other files say of the cluster."""
    from stoker.app.jobs.config import read_cluster

    return read_cluster(os.environ, name, table)


def _partition_trouble(settings: ClusterSettings) -> str:
    """Why the cluster cannot be used now; refuses a partition that it does not have."""
    from stoker.features.slurm.status import partitions

    groups = partitions(settings)
    if isinstance(groups, str):
        return f"Slurm does not answer: {groups}"
    names = list(dict.fromkeys(group.partition for group in groups))
    if settings.partition and settings.partition not in names:
        hint = did_you_mean(settings.partition, names, f"known are {', '.join(names)}")
        raise UsageError(f"Slurm has no partition {settings.partition!r}", hint)
    return ""


@command.command(name="make")
@click.argument("name")
@click.argument("servers")
@_shared
@click.option("--gpus", type=click.IntRange(0, 64), metavar="N", help="GPUs of each server; else what each tells.")
@_python
@click.option("--ssh", metavar="COMMAND", help="How to reach servers, for example 'ssh -F FILE'.")
@click.option("--local", metavar="DIR", help="Directory on the own disk of each server; else below /var/tmp.")
@click.option("--port", type=click.IntRange(1024, 32767), metavar="N", help="First port that is tried.")
@click.option("--address", metavar="ADDR", help="Where servers reach this machine; else where ssh comes from.")
def make(name: str, servers: str, **given: Any) -> int:
    """Make a Slurm of your own on several servers, without root, and start it. Again: add servers, or mend it.

    Servers are reached through ssh, which must not ask for a password; `localhost` is this machine. They need the same
    Slurm installed, or this machine Debian's apt-get, and a directory that all of them see.

    \b
      stoker cluster make gpus gpu[1-5],big01 --shared /nfs/me/stoker
      stoker cluster make here localhost --gpus 4
    """
    from stoker.app.jobs.config_file import own_file, table_in, write_table
    from stoker.app.jobs.config_tables import check_cluster_name
    from stoker.features.slurm.private_servers import ClusterRequest
    from stoker.features.slurm.private_servers import make as made_of

    check_cluster_name(name)
    path = own_file(os.environ)
    before = table_in(path, SECTION, name)
    if before is not None and not before.get("private"):
        raise UsageError(f"{name} is in {path}, and is not a private cluster", "choose another name")
    kept: dict[str, Any] = {key: value for key, value in (before or {}).items() if key in ("shared", "python", "ssh")}
    table = kept | {key: given[key] for key in ("shared", "python", "ssh") if given[key]}
    settings = _tried(name, {"private": True, **table})
    request = {key: given[key] for key in ("local", "gpus", "port", "address") if given[key] is not None}
    wanted = ClusterRequest(name=name, hosts=servers, shared=Path(settings.shared), ssh=settings.ssh, **request)
    made = made_of(wanted, say)
    cluster = made.cluster
    table |= {"ssh": settings.ssh} if "ssh" in table else {}
    own = {"kind": "slurm", "private": True, "pilots": "always", **table, "conf": cluster.conf}
    write_table(path, SECTION, name, own | ({"prefix": cluster.prefix} if cluster.prefix else {}))
    print(f"{name}: {cluster.version}, controller on {cluster.hostname} port {cluster.port}")
    return _start(_settings(name), cluster, made.troubles)


def _start(settings: ClusterSettings, cluster: PrivateSlurm, troubles: Mapping[str, str]) -> int:
    """Start what does not run, say how each server stands; the exit code tells whether any can be used."""
    from stoker.core.units import count_text
    from stoker.features.slurm.private_servers import complaints, up, wait_ready
    from stoker.features.slurm.status import usable_nodes

    troubles = {**troubles, **up(cluster)}
    started = [server for server in cluster.servers if server.host not in troubles]
    late = wait_ready([server.node for server in started], lambda: usable_nodes(settings))
    errors = complaints(cluster, [server for server in started if server.node in late])
    unused = f"Slurm does not use it yet; see stoker cluster status {cluster.name}"
    troubles |= {host: f"{unused}; {words}" if words else unused for host, words in errors.items()}
    for server in cluster.servers:
        if server.host not in troubles:
            print(f"  {server.host:16} {count_text(server.cpus, 'core')}, {count_text(server.gpus, 'GPU')}")
    for host, trouble in troubles.items():
        print_line(f"  {host:16} cannot be used: {trouble}")
    usable = any(server.host not in troubles for server in cluster.servers)
    if troubles:
        others = "; the others can" if usable else ""
        say(f"{count_text(len(troubles), 'server')} cannot be used{others}. Mend that, and repeat the command")
    return 0 if usable else NOT_ALL


@command.command(name="up")
@click.argument("name")
def up(name: str) -> int:
    """Start the daemons of a private cluster that do not run, as after a reboot."""
    return _start(*_private(name), {})


@command.command(name="down")
@click.argument("name")
@click.option("--jobs", is_flag=True, help="End all jobs on it first.")
@click.option("--force", is_flag=True, help="Leave jobs running; Slurm finds them again after `up`.")
def down(name: str, jobs: bool, force: bool) -> int:
    """Stop the daemons of a private cluster, on all servers."""
    from stoker.core.units import count_text
    from stoker.features.slurm.commands import ask
    from stoker.features.slurm.private_servers import down as stopped

    settings, cluster = _private(name)
    running = ask(settings, "squeue", "-h", "-o", "%i").out.split()
    if jobs and running:
        _end_jobs(settings)
    elif running and not force:
        what = f"{name} has {count_text(len(running), 'job')} in Slurm"
        raise StokerError(what, "wait for them; --jobs ends them, --force leaves them running")
    troubles = stopped(cluster)
    for host, trouble in troubles.items():
        print_line(f"  {host:16} could not be asked: {trouble}")
    tell(f"{name} is down")
    return NOT_ALL if troubles else 0


def _end_jobs(settings: ClusterSettings) -> None:
    from stoker.features.slurm.commands import ask
    from stoker.store.waiting import Backoff, wait_until

    ask(settings, "scancel", "--me", "--full")
    if not wait_until(lambda: not ask(settings, "squeue", "-h", "-o", "%i").out.strip(), 60.0, Backoff(0.2, 0.2)):
        raise StokerError("jobs do not end within 60 s", "see squeue; --force leaves them running")


@command.command(name="status")
@click.argument("name", required=False)
@json_option
def status(name: str | None, as_json: bool) -> int:
    """Show clusters: their controllers, nodes and your jobs. Exit code 3 if a controller does not answer."""
    from stoker.app.jobs.config import load_config
    from stoker.cli.options import wants_json, write_json
    from stoker.features.slurm.status import SCHEMA, Clusters, cluster_status, print_clusters
    from stoker.store.paths import paths_for

    config, paths = load_config(os.environ, None), paths_for()
    chosen = {name: config.cluster(name)} if name else config.clusters
    clusters = [cluster_status(cluster, settings, paths) for cluster, settings in chosen.items()]
    if wants_json(as_json):
        write_json(Clusters(SCHEMA, clusters))
    elif clusters:
        print_clusters(clusters)
    else:
        tell("there is no cluster; add one: stoker cluster add NAME --slurm")
    return 0 if all(cluster.answers for cluster in clusters) else 3


@command.command(name="check")
@click.argument("name")
@click.option("--timeout", default="60s", metavar="DUR", help="How long a node may take to run the job of the check.")
@json_option
def check(name: str, timeout: str, as_json: bool) -> int:
    """Tell whether jobs can run on a cluster, by a job of a few seconds. Exit code 1 if there is a problem."""
    from stoker.cli.options import wants_json
    from stoker.cli.screens.engine import report_check
    from stoker.core.units import parse_duration
    from stoker.features.slurm.check import check_cluster

    findings = check_cluster(name, _settings(name), parse_duration(timeout))
    return 1 if report_check(findings, "stoker.cluster-check/1", as_json=wants_json(as_json)) else 0


@command.command(name="remove")
@click.argument("name")
@click.option("--force", is_flag=True, help="Also if it has jobs, or daemons that run.")
def remove(name: str, force: bool) -> int:
    """Take a cluster out of your configuration; of a private one also its files."""
    from stoker.app.jobs.config_file import own_file, remove_table, table_in
    from stoker.core.units import count_text
    from stoker.features.slurm.status import cluster_load
    from stoker.store.paths import paths_for

    settings, path = _settings(name), own_file(os.environ)
    if table_in(path, SECTION, name) is None:
        raise UsageError(
            f"{name} is not in {path}, but in the file of this machine", "its administrators can remove it"
        )
    left = cluster_load(paths_for(), name).open
    if left and not force:
        what = f"{name} has {count_text(left, 'job')} that {'is' if left == 1 else 'are'} not over"
        raise StokerError(what, f"wait for them, or cancel them; --force keeps them until {name} is added again")
    if settings.private:
        _remove_private(name, force=force)
    remove_table(path, SECTION, name)
    say(f"{name} is no longer in {path}")
    if left:
        stay = "stays" if left == 1 else "stay"
        say(f"{count_text(left, 'job')} {stay} in the queue until {name} is added again, or until you cancel")
    return 0


def _remove_private(name: str, *, force: bool) -> None:
    from stoker.features.slurm.private_servers import clean, down, running

    try:
        _, cluster = _private(name)
    except StokerError:
        if not force:
            raise
        return
    if alive := running(cluster):
        if not force:
            raise StokerError(f"daemons of {name} run on {', '.join(alive)}", f"stop them: stoker cluster down {name}")
        down(cluster)
    for host, trouble in clean(cluster).items():
        say(f"warning: files in {cluster.local} on {host} stay: {trouble}")
