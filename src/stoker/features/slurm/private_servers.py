"""Make, start and stop a Slurm of one user's own on several servers, without root."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec import Struct

from stoker.app.service.ssh import OWN_EXIT_CODE, QUIET_OPTIONS, ssh_trouble
from stoker.core.errors import StokerError, UsageError
from stoker.core.settings import ClusterSettings
from stoker.features.slurm.commands import ask
from stoker.features.slurm.packages import missing_programs, unpack
from stoker.features.slurm.private import (
    FIRST_PORT,
    PrivateSlurm,
    Server,
    ServerFacts,
    cgroup_conf,
    choose_port,
    decode_private,
    expand_hosts,
    gpu_files,
    gres_conf,
    node_names,
    parse_facts,
    slurm_conf,
)
from stoker.store.paths import replace_file
from stoker.store.waiting import Backoff, wait_until

SCRIPT = Path(__file__).with_name("slurm_server.sh")
SERVER_SECONDS = 60.0
"""How long a server may take to answer."""
READY_SECONDS = 20.0
CONTROLLER = "slurmctld"
LONGEST_LOCAL = 90
"""Bytes: the path of a socket below it must fit into 107."""
_PLAIN_PATH = re.compile(r"[\w./@+-]+", re.ASCII)


class ServerAnswer(Struct, frozen=True):
    """The facts of a server, or why it could not be asked."""

    host: str
    text: str = ""
    trouble: str = ""


class ClusterRequest(Struct, frozen=True):
    """The options of `cluster make`."""

    name: str
    hosts: str
    shared: Path
    local: str = ""
    gpus: int | None = None
    """GPUs of each server; None is what each server says."""
    port: int = FIRST_PORT
    address: str = ""
    """Where servers reach this machine; empty is the address that they see."""
    ssh: tuple[str, ...] = ("ssh",)


class ClusterResult(Struct, frozen=True):
    """A private Slurm, and servers that are not part of it."""

    cluster: PrivateSlurm
    troubles: dict[str, str]


def folder(shared: Path, name: str) -> Path:
    """Where a private Slurm keeps its configuration and key."""
    return shared / "slurm" / name


def read_private(settings: ClusterSettings, name: str) -> PrivateSlurm:
    """The description that `make` wrote."""
    path = folder(Path(settings.shared), name) / "cluster.json"
    try:
        return decode_private(path.read_bytes())
    except FileNotFoundError:
        raise StokerError(f"{path} is missing", f"make the cluster again: stoker cluster make {name} SERVERS") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise StokerError(f"{path} is damaged: {error}", f"remove it and make {name} again") from None


# -- make ----------------------------------------------------------------------------------------


def make(request: ClusterRequest, say: Callable[[str], None]) -> ClusterResult:
    """Ask the servers, get a Slurm, and write its configuration; start nothing."""
    hosts = expand_hosts(request.hosts)
    local = request.local or f"/var/tmp/stoker-slurm-{os.geteuid()}/{request.name}"
    if not local.startswith("/") or len(os.fsencode(local)) > LONGEST_LOCAL:
        what = f"--local {local} is not a path from / of at most {LONGEST_LOCAL} bytes"
        raise UsageError(what, "it holds sockets, whose paths must be short")
    place = folder(request.shared, request.name)
    for path in (local, str(place)):
        if not _PLAIN_PATH.fullmatch(path):
            raise UsageError(
                f"{path!r} has characters that slurm.conf cannot hold", "choose another --shared or --local"
            )
    token = _token(place)
    here, answers = _ask(request.ssh, hosts, ["probe", local, str(place / "token")])
    facts, troubles = _facts(answers, token)
    if not facts:
        raise StokerError(f"no server can be used: {_listed(troubles)}", "see ssh to one of them by hand")
    before = _before(place)
    prefix, version = _find_slurm(request.shared / "slurm/unpacked", facts, say)
    servers = _servers(request, hosts, facts, here, before)
    cluster = PrivateSlurm(
        name=request.name,
        user=getpass.getuser(),
        hostname=here.hostname,
        address=request.address or _address(facts),
        port=_kept_port(before.port if before else None, CONTROLLER, here, _taken(servers, facts, here), request.port),
        conf=str(place / "slurm.conf"),
        local=local,
        prefix=prefix,
        ssh=request.ssh,
        version=version,
        servers=servers,
    )
    _write_all(cluster, place, before)
    return ClusterResult(cluster, troubles)


def _token(place: Path) -> str:
    """A fresh word in the shared directory: a server that cannot read it does not share the directory."""
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    token = secrets.token_hex(8)
    replace_file(place / "token", token.encode())
    return token


def _ask(ssh: Sequence[str], hosts: Sequence[str], words: Sequence[str]) -> tuple[ServerFacts, list[ServerAnswer]]:
    """Ask this machine and all servers at once."""
    answers = on_servers(ssh, ["localhost", *hosts], lambda _: words)
    if answers[0].trouble:
        raise StokerError(f"this machine cannot be asked: {answers[0].trouble}", "see what `sh` prints here")
    return parse_facts(answers[0].text), answers[1:]


def _facts(answers: Iterable[ServerAnswer], token: str) -> tuple[dict[str, ServerFacts], dict[str, str]]:
    """Facts of usable servers, and why the others cannot be used."""
    facts: dict[str, ServerFacts] = {}
    troubles: dict[str, str] = {}
    for answer in answers:
        trouble = answer.trouble
        if not trouble:
            try:
                facts[answer.host] = parse_facts(answer.text)
                trouble = _unsuitable(facts[answer.host], token)
            except UsageError as error:
                trouble = error.message
        if trouble:
            facts.pop(answer.host, None)
            troubles[answer.host] = trouble
    return facts, troubles


def _unsuitable(facts: ServerFacts, token: str) -> str:
    if facts.uid != os.geteuid():
        return f"you are user {facts.uid} there and {os.geteuid()} here; Slurm needs the same number"
    if facts.token != token:
        return "it does not see the shared directory of this machine; give one that it sees with --shared"
    return ""


def _find_slurm(prefix: Path, facts: Mapping[str, ServerFacts], say: Callable[[str], None]) -> tuple[str, str]:
    """Where Slurm was unpacked, empty for an installed one, and its release."""
    if not missing_programs(os.environ):
        own = _version(ClusterSettings())
        if own and all(server_facts.version == own for server_facts in facts.values()):
            return "", own
        versions = ", ".join(f"{host}: {server_facts.version or 'none'}" for host, server_facts in facts.items())
        say(f"not all servers have the Slurm of this machine ({own}; {versions})")
    unpack(prefix, say)
    return str(prefix), _version(ClusterSettings(prefix=str(prefix)))


def _version(settings: ClusterSettings) -> str:
    return ask(settings, "slurmd", "-V").out.strip()


def _servers(
    request: ClusterRequest,
    hosts: Sequence[str],
    facts: Mapping[str, ServerFacts],
    here: ServerFacts,
    before: PrivateSlurm | None,
) -> tuple[Server, ...]:
    """The servers that answered; one that did not, and was part before, stays as it was."""
    names, servers = node_names(hosts), list[Server]()
    addresses = _resolved(request.ssh, [host for host in facts if not is_local(host)])
    for host in hosts:
        old = before.server(host) if before else None
        if host not in facts:
            servers += [old] if old else []
            continue
        server_facts = facts[host]
        gpus = server_facts.gpus if request.gpus is None else request.gpus
        taken = _taken(servers, facts, here)
        servers.append(
            Server(
                host=host,
                node=names[host],
                address=addresses.get(host) or _address(facts),
                port=_kept_port(old.port if old else None, names[host], server_facts, taken, request.port + 1),
                hostname=server_facts.hostname,
                cpus=server_facts.cpus,
                memory_mib=server_facts.memory_mib,
                gpus=gpus,
                gpu_files=server_facts.gpu_files[:gpus] if len(server_facts.gpu_files) >= gpus else (),
            )
        )
    return tuple(servers)


def _taken(servers: Iterable[Server], facts: Mapping[str, ServerFacts], here: ServerFacts) -> frozenset[int]:
    """Ports in use on any machine; the same for all, since two names may be one machine."""
    listening = here.ports.union(*(server_facts.ports for server_facts in facts.values()))
    return listening | {server.port for server in servers}


def _kept_port(old: int | None, name: str, facts: ServerFacts, taken: frozenset[int], first: int) -> int:
    """The port that a daemon has, if it runs or could have it again; else a free one."""
    if old is not None and (name in facts.running or old not in taken):
        return old
    return choose_port(taken, first)


def _address(facts: Mapping[str, ServerFacts]) -> str:
    """The address of this machine for servers: the one from which ssh reached them."""
    return next((server_facts.client for server_facts in facts.values() if server_facts.client), "127.0.0.1")


def _resolved(ssh: Sequence[str], hosts: Sequence[str]) -> dict[str, str]:
    """The addresses behind names of ssh's configuration."""

    def resolved(host: str) -> str:
        done = subprocess.run([*ssh, "-G", host], check=False, capture_output=True, text=True, timeout=SERVER_SECONDS)
        match = re.search(r"^hostname (\S+)$", done.stdout, re.MULTILINE)
        return match[1] if match else host

    with ThreadPoolExecutor(32) as pool:
        return dict(zip(hosts, pool.map(resolved, hosts), strict=True))


def _before(place: Path) -> PrivateSlurm | None:
    try:
        return decode_private((place / "cluster.json").read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None


def _write_all(cluster: PrivateSlurm, place: Path, before: PrivateSlurm | None) -> None:
    """Write what changed. Daemons read slurm.conf only when they start: stop them, and their jobs go on."""
    key = Path(cluster.key)
    if not key.exists():
        replace_file(key, secrets.token_bytes(128))
    if before is not None and slurm_conf(before) != slurm_conf(cluster):
        down(before)
    for file in {
        file for server in cluster.servers for file in gpu_files(cluster, server) if file not in server.gpu_files
    }:
        Path(file).touch(0o600)
    replace_file(place / "slurm.conf", slurm_conf(cluster).encode())
    replace_file(place / "gres.conf", gres_conf(cluster).encode())
    if text := cgroup_conf(cluster):
        replace_file(place / "cgroup.conf", text.encode())
    replace_file(place / "cluster.json", msgspec.json.format(msgspec.json.encode(cluster)))


# -- up and down ---------------------------------------------------------------------------------


def up(cluster: PrivateSlurm) -> dict[str, str]:
    """Start every daemon that does not run; returns the trouble of each server that cannot."""
    first = ["start", cluster.local, cluster.conf, cluster.prefix]
    [controller] = on_servers((), ["localhost"], lambda _: [*first, CONTROLLER, str(cluster.port), ""])
    if trouble := _failure(controller):
        raise StokerError(
            f"the controller does not start: {trouble}",
            f"see {cluster.local}/slurmctld.log; with other ports: stoker cluster make {cluster.name} SERVERS",
        )
    by_host = {server.host: server for server in cluster.servers}

    def words(host: str) -> list[str]:
        return [*first, "slurmd", str(by_host[host].port), by_host[host].node]

    answers = on_servers(cluster.ssh, list(by_host), words)
    return {answer.host: trouble for answer in answers if (trouble := _failure(answer))}


def down(cluster: PrivateSlurm) -> dict[str, str]:
    """Stop every daemon; jobs that run go on. Returns the trouble of each server that could not be asked."""
    nodes = {server.host: server.node for server in cluster.servers}
    answers = [
        *on_servers((), ["localhost"], lambda _: ["stop", cluster.local, CONTROLLER]),
        *on_servers(cluster.ssh, list(nodes), lambda host: ["stop", cluster.local, nodes[host]]),
    ]
    return {answer.host: trouble for answer in answers if (trouble := _failure(answer))}


def running(cluster: PrivateSlurm) -> list[str]:
    """Machines on which daemons of it run."""
    hosts = ["localhost", *(server.host for server in cluster.servers if not is_local(server.host))]
    answers = on_servers(cluster.ssh, hosts, lambda _: ["running_daemons", cluster.local])
    return [answer.host for answer in answers if re.search(r"^stoker:running \S", answer.text, re.MULTILINE)]


def complaints(cluster: PrivateSlurm, servers: Iterable[Server]) -> dict[str, str]:
    """The last error that slurmd of each server wrote; empty if there is none, or the server does not answer."""
    nodes = {server.host: server.node for server in servers}
    answers = on_servers(cluster.ssh, list(nodes), lambda host: ["complaint", cluster.local, nodes[host]])
    matches = ((answer.host, re.search(r"^stoker:complaint (.+)$", answer.text, re.MULTILINE)) for answer in answers)
    return {host: match[1].strip() if match else "" for host, match in matches}


def clean(cluster: PrivateSlurm) -> dict[str, str]:
    """Remove its files here and on all servers; returns the trouble of servers on which they stay."""
    hosts = ["localhost", *(server.host for server in cluster.servers if not is_local(server.host))]
    answers = on_servers(cluster.ssh, hosts, lambda _: ["clean", cluster.local])
    shutil.rmtree(Path(cluster.conf).parent, ignore_errors=True)
    return {answer.host: trouble for answer in answers if (trouble := _failure(answer))}


def wait_ready(nodes: Iterable[str], query: Callable[[], Iterable[str]]) -> set[str]:
    """Wait until Slurm calls these nodes usable; returns those that are not. `query` names the usable ones."""
    missing = set(nodes)

    def all_ready() -> bool:
        missing.difference_update(query())
        return not missing

    if missing:
        wait_until(all_ready, READY_SECONDS, Backoff(0.05, 0.05))
    return missing


def _failure(answer: ServerAnswer) -> str:
    match = re.search(r"^stoker:failed (.*)$", answer.text, re.MULTILINE)
    return answer.trouble or (match[1] if match else "")


# -- servers -------------------------------------------------------------------------------------


def is_local(host: str) -> bool:
    return host in {"localhost", "127.0.0.1", socket.gethostname(), socket.gethostname().partition(".")[0]}


def on_servers(ssh: Sequence[str], hosts: Sequence[str], words: Callable[[str], Sequence[str]]) -> list[ServerAnswer]:
    """Run the script on all servers at once, with the words for each."""
    if not hosts:
        return []
    with ThreadPoolExecutor(min(32, len(hosts))) as pool:
        return list(pool.map(lambda host: _on_server(ssh, host, words(host)), hosts))


def _on_server(ssh: Sequence[str], host: str, words: Sequence[str]) -> ServerAnswer:
    command = ["sh", "-s", "--", *words]
    if not is_local(host):
        command = [*ssh, *QUIET_OPTIONS, host, shlex.join(command)]
    try:
        done = subprocess.run(
            command,
            input=SCRIPT.read_text(),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=SERVER_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return ServerAnswer(host, trouble=f"it does not answer within {SERVER_SECONDS:g} s")
    except OSError as error:
        return ServerAnswer(host, trouble=f"{command[0]} cannot be run: {error.strerror}")
    if done.returncode == OWN_EXIT_CODE or (done.returncode and "stoker:" not in done.stdout):
        return ServerAnswer(host, trouble=ssh_trouble(done.stderr, host))
    return ServerAnswer(host, done.stdout)


def _listed(troubles: Mapping[str, str]) -> str:
    return "; ".join(f"{host}: {why}" for host, why in troubles.items())
