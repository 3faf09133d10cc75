"""Names of servers, ports and configuration text of a private Slurm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import UsageError
from stoker.features.slurm.private import (
    PrivateSlurm,
    Server,
    cgroup_conf,
    choose_port,
    expand_hosts,
    gres_conf,
    node_names,
    parse_facts,
    slurm_conf,
)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu1", "gpu1"),
        ("gpu[1-3],gpu07", "gpu1 gpu2 gpu3 gpu07"),
        ("gpu[08-10,12]", "gpu08 gpu09 gpu10 gpu12"),
        ("r[1-2]n[1-2].lab", "r1n1.lab r1n2.lab r2n1.lab r2n2.lab"),
        ("a,a,b", "a b"),
        ("10.0.0.[1-2]", "10.0.0.1 10.0.0.2"),
    ],
)
def test_hosts(text: str, hosts: str) -> None:
    """Slurm's notation; a range keeps its zeros, and a name counts once."""
    assert list(expand_hosts(text)) == hosts.split()


@pytest.mark.parametrize(
    "text",
    ["", "gpu[1-", "gpu[3-1]", "gpu[]", "gpu[a]", "a,,b", "-oProxyCommand=x", "me@gpu1", "a b", "g[1-9999]", "g[[1]]"],
)
def test_hosts_refused(text: str) -> None:
    """What is no list of names is refused, above all what ssh would take for an option."""
    with pytest.raises(UsageError):
        expand_hosts(text)


@given(st.text("ag1-9[],0.", max_size=12))
def test_hosts_never_fail_otherwise(text: str) -> None:
    """Any text is a list of safe names, or refused."""
    try:
        hosts = expand_hosts(text)
    except UsageError:
        return
    assert hosts
    assert not any(host.startswith("-") or " " in host for host in hosts)


def test_node_names() -> None:
    """Nodes have short names, unless two would be the same or no name at all."""
    assert node_names(["gpu1.lab.org", "gpu2"]) == {"gpu1.lab.org": "gpu1", "gpu2": "gpu2"}
    assert node_names(["n.a", "n.b", "10.0.0.1"]) == {"n.a": "n-a", "n.b": "n-b", "10.0.0.1": "10-0-0-1"}


def test_ports() -> None:
    """Taken ports are passed over, and there is an end."""
    assert choose_port({26817, 26818}) == 26819
    with pytest.raises(UsageError, match="no port"):
        choose_port(range(32000, 40000), 32000)


def cluster(**changes: object) -> PrivateSlurm:
    servers = (
        Server("gpu1", "gpu1", "10.0.0.1", 26818, "gpu1", 8, 1000, 2, ("/dev/nvidia0", "/dev/nvidia1")),
        Server("gpu2", "gpu2", "10.0.0.2", 26819, "box", 4, 2000, 1),
        Server("cpu", "cpu", "10.0.0.3", 26820, "cpu", 4, 2000),
    )
    fields = {
        "name": "gpus",
        "user": "me",
        "hostname": "head",
        "address": "10.0.0.9",
        "port": 26817,
        "conf": "/s/gpus/slurm.conf",
        "local": "/var/tmp/x",
        "prefix": "",
        "ssh": ("ssh",),
        "version": "slurm-wlm 22.05.8",
        "servers": servers,
    }
    return PrivateSlurm(**{**fields, **changes})  # type: ignore[arg-type]


def test_conf() -> None:
    """Each server has a line with its own address, port and GPUs; an unpacked Slurm names its plugins."""
    lines = slurm_conf(cluster()).splitlines()
    assert "SlurmctldHost=head(10.0.0.9)" in lines
    assert "NodeName=gpu2 NodeHostname=box NodeAddr=10.0.0.2 Port=26819 CPUs=4 RealMemory=2000 Gres=gpu:1" in lines
    assert "NodeName=cpu NodeHostname=cpu NodeAddr=10.0.0.3 Port=26820 CPUs=4 RealMemory=2000" in lines
    assert not any(line.startswith("PluginDir") for line in lines)
    assert "PluginDir=/s/unpacked/libraries/slurm-wlm" in slurm_conf(cluster(prefix="/s/unpacked"))


def test_cgroups() -> None:
    """Newer releases are told to do without; older ones would not start if they were."""
    assert cgroup_conf(cluster()) == ""
    assert cgroup_conf(cluster(version="slurm-wlm 24.11.5")) == "CgroupPlugin=disabled\n"


def test_gres() -> None:
    """GPUs are their device files, or empty files where there are none."""
    assert gres_conf(cluster()).splitlines() == [
        "NodeName=gpu1 Name=gpu File=/dev/nvidia0,/dev/nvidia1",
        "NodeName=gpu2 Name=gpu File=/s/gpus/gpu0",
    ]


FACTS = """\
Welcome to gpu1
stoker:hostname gpu1
stoker:cpus 8
stoker:memory 2048000
stoker:gpus 2
stoker:files /dev/nvidia0 /dev/nvidia1
stoker:version slurm-wlm 22.05.8
stoker:token abc
stoker:uid 1000
stoker:client 10.0.0.9 5000 10.0.0.1 22
stoker:ports 0016 68C1
stoker:running munged gpu1
"""


def test_facts() -> None:
    """What a server says is read between the greetings of its shell."""
    facts = parse_facts(FACTS)
    assert (facts.hostname, facts.memory_mib, facts.client) == ("gpu1", 2000, "10.0.0.9")
    assert facts.ports == {22, 26817}
    assert facts.running == {"munged", "gpu1"}


def test_facts_of_something_else() -> None:
    """A machine that answers nonsense is no server."""
    with pytest.raises(UsageError, match="not as a Linux server would"):
        parse_facts("This account is currently not available.")
