"""A Slurm of one user's own: the servers it consists of, their ports, and the text of its configuration."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct

from stoker.core.errors import UsageError
from stoker.features.slurm.commands import LIBRARIES, parse_version

MOST_HOSTS = 1024
FIRST_PORT = 26817
"""The first one that is tried; Slurm's own are 6817 and 6818, where another Slurm may be."""
WITHOUT_CGROUPS = (23, 2)
"""The first release that can do without cgroups by a word in cgroup.conf."""
_HOSTS_HINT = "write names such as gpu1,gpu2 or gpu[1-5,8],big[01-04]"
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def expand_hosts(text: str) -> tuple[str, ...]:
    """The names in Slurm's notation: `gpu[1-3],gpu07` is gpu1, gpu2, gpu3 and gpu07; each is kept once."""
    hosts: dict[str, None] = {}
    for word in _outside_brackets(text):
        for host in _expanded(word, text):
            if not _HOST.fullmatch(host):
                raise UsageError(f"{host!r} in {text!r} is not the name of a server", _HOSTS_HINT)
            hosts[host] = None
            if len(hosts) > MOST_HOSTS:
                raise UsageError(f"{text!r} is more than {MOST_HOSTS} servers", _HOSTS_HINT)
    return tuple(hosts)


def _outside_brackets(text: str) -> list[str]:
    """The parts between commas; one inside brackets belongs to a range."""
    return re.split(r",(?![^\[]*\])", text)


def _expanded(word: str, text: str) -> Iterable[str]:
    before, bracket, rest = word.partition("[")
    inside, closing, after = rest.partition("]")
    if not bracket:
        return [word]
    if not closing or "[" in inside:
        raise UsageError(f"{text!r} has a bracket that is not closed", _HOSTS_HINT)
    numbers = [number for part in inside.split(",") for number in _numbers(part, text)]
    return (f"{before}{number}{end}" for number in numbers for end in _expanded(after, text))


def _numbers(part: str, text: str) -> list[str]:
    match = _RANGE.fullmatch(part.strip())
    if not match:
        raise UsageError(f"{part!r} in {text!r} is not a number or a range", _HOSTS_HINT)
    first, last = int(match[1]), int(match[2] or match[1])
    if not first <= last < first + MOST_HOSTS:
        raise UsageError(f"{part!r} in {text!r} is not a range of at most {MOST_HOSTS} numbers", _HOSTS_HINT)
    width = len(match[1]) if match[1].startswith("0") else 0
    return [f"{number:0{width}}" for number in range(first, last + 1)]


def node_names(hosts: Sequence[str]) -> dict[str, str]:
    """A name for Slurm for each server: up to the first dot if that is unique and a name, else with - for dots."""
    short = [host.partition(".")[0] for host in hosts]
    return {
        host: name if short.count(name) == 1 and not name.isdecimal() else host.replace(".", "-")
        for host, name in zip(hosts, short, strict=True)
    }


class Server(Struct, frozen=True):
    """One server of a private Slurm."""

    host: str
    """As the user typed it, and as ssh reaches it; localhost is reached without."""
    node: str
    """Its name in Slurm."""
    address: str
    """Where the other daemons reach it."""
    port: int
    """Of its slurmd."""
    hostname: str
    """The server's own name."""
    cpus: int
    memory_mib: int
    gpus: int = 0
    gpu_files: tuple[str, ...] = ()
    """Device files, if there is one for each GPU."""


class PrivateSlurm(Struct, frozen=True):
    """Everything that makes up a private Slurm; kept beside its slurm.conf."""

    name: str
    user: str
    hostname: str
    """Of the machine with the controller."""
    address: str
    """Where the servers reach the controller."""
    port: int
    """Of the controller."""
    conf: str
    """Path of slurm.conf, in the shared directory."""
    local: str
    """Directory on the own disk of each machine: sockets, process ids, logs, spool, state of the controller."""
    prefix: str
    """Directory of the unpacked Slurm; empty for an installed one."""
    ssh: tuple[str, ...]
    version: str
    servers: tuple[Server, ...]

    @property
    def key(self) -> str:
        """Path of the key that all daemons share."""
        return f"{self.conf.rpartition('/')[0]}/munge.key"

    def server(self, host: str) -> Server | None:
        return next((server for server in self.servers if server.host == host), None)


def slurm_conf(cluster: PrivateSlurm) -> str:
    """The text of slurm.conf."""
    local, names = cluster.local, ",".join(server.node for server in cluster.servers)
    plugins = [f"PluginDir={cluster.prefix}/{LIBRARIES}/slurm-wlm"] if cluster.prefix else []
    gpus = ["GresTypes=gpu"] if any(server.gpus for server in cluster.servers) else []
    return "\n".join(
        [
            "# Written by `stoker cluster make`, which writes it again when servers change.",
            f"ClusterName={cluster.name}",
            f"SlurmctldHost={cluster.hostname}({cluster.address})",
            f"SlurmctldPort={cluster.port}",
            f"SlurmUser={cluster.user}",
            f"SlurmdUser={cluster.user}",
            "AuthType=auth/munge",
            "CredType=cred/munge",
            f"AuthInfo=socket={local}/munge.socket",
            *plugins,
            f"StateSaveLocation={local}/state",
            f"SlurmdSpoolDir={local}/spool.%n",
            f"SlurmctldPidFile={local}/slurmctld.pid",
            f"SlurmdPidFile={local}/slurmd.%n.pid",
            f"SlurmctldLogFile={local}/slurmctld.log",
            f"SlurmdLogFile={local}/slurmd.%n.log",
            # An ordinary user has no cgroups of its own, and starts no process as another user.
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            # A server that was away takes jobs again when it is back, also with less memory than it was made with.
            "ReturnToService=2",
            "SlurmdParameters=config_overrides",
            "SlurmdTimeout=60",
            "MessageTimeout=5",  # seconds after which commands give up on a controller that is down
            "SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=5",
            *gpus,
            *(_node_line(server) for server in cluster.servers),
            f"PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE DefaultTime=UNLIMITED State=UP",
            "",
        ]
    )


def _node_line(server: Server) -> str:
    words = {
        "NodeName": server.node,
        "NodeHostname": server.hostname,
        "NodeAddr": server.address,
        "Port": server.port,
        "CPUs": server.cpus,
        "RealMemory": server.memory_mib,
        **({"Gres": f"gpu:{server.gpus}"} if server.gpus else {}),
    }
    return " ".join(f"{key}={value}" for key, value in words.items())


def cgroup_conf(cluster: PrivateSlurm) -> str:
    """The text of cgroup.conf; empty for releases that do not know how to do without cgroups, and need no word for it.

    slurmd of 24.11 does not start otherwise if the user has no cgroup; that of 22.05 does not start with it.
    """
    version = parse_version(cluster.version)
    return "CgroupPlugin=disabled\n" if version is not None and version >= WITHOUT_CGROUPS else ""


def gres_conf(cluster: PrivateSlurm) -> str:
    """The text of gres.conf: the GPUs of each server."""
    with_gpus = [server for server in cluster.servers if server.gpus]
    lines = (f"NodeName={server.node} Name=gpu File={','.join(gpu_files(cluster, server))}\n" for server in with_gpus)
    return "".join(lines)


def gpu_files(cluster: PrivateSlurm, server: Server) -> tuple[str, ...]:
    """A file for each GPU, without which slurmd reports none: its device, or an empty file that stands for it."""
    place = cluster.conf.rpartition("/")[0]
    return server.gpu_files or tuple(f"{place}/gpu{number}" for number in range(server.gpus))


def choose_port(taken: Collection[int], first: int = FIRST_PORT) -> int:
    """The first port from `first` on that is not taken."""
    free = (port for port in range(first, 32768) if port not in taken)
    if (port := next(free, None)) is None:
        raise UsageError("no port below 32768 is free", "give another --port to begin with")
    return port


class ServerFacts(Struct, frozen=True):
    """The answer of a server to `cluster make`."""

    hostname: str
    cpus: int
    memory_mib: int
    gpus: int
    gpu_files: tuple[str, ...]
    version: str
    """Of its installed Slurm; empty if slurmd or munged is missing."""
    token: str
    """The content of a file of the shared directory; empty if it does not see the file."""
    uid: int
    client: str
    """The address from which it was reached; empty if that was without ssh."""
    ports: frozenset[int]
    """Those on which something listens."""
    running: frozenset[str] = frozenset()
    """Daemons of this cluster that run there: slurmctld, munged, and slurmd by the name of its node."""


def parse_facts(text: str) -> ServerFacts:
    """Lines `key value` as the script prints them; others, such as the greeting of a shell, are skipped."""
    values: Mapping[str, str] = dict(re.findall(r"^stoker:(\w+) ?(.*)$", text, re.MULTILINE))
    try:
        return ServerFacts(
            hostname=values["hostname"],
            cpus=int(values["cpus"]),
            memory_mib=int(values["memory"]) // 1024,
            gpus=int(values["gpus"]),
            gpu_files=tuple(values["files"].split()),
            version=values["version"],
            token=values["token"],
            uid=int(values["uid"]),
            client=values["client"].partition(" ")[0],
            ports=frozenset(int(port, 16) for port in values["ports"].split()),
            running=frozenset(values["running"].split()),
        )
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"it answers, but not as a Linux server would ({error!r})", "see what ssh prints there"
        ) from None


def decode_private(data: bytes) -> PrivateSlurm:
    return msgspec.json.decode(data, type=PrivateSlurm)
