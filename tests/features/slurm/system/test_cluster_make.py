"""A Slurm of one user's own on several servers: made, mended, checked, stopped and removed, through a real sshd."""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.cli import Stoker
from support.reaper import is_alive
from support.slurm import require_slurm
from support.sshd import Login, logged_in
from support.users import made_users, reachable_directory


@pytest.fixture(scope="module")
def login() -> Iterator[Login]:
    """An ordinary user with ssh to three servers, and no cluster."""
    require_slurm()
    with made_users(1) as [user], logged_in(user) as found:
        yield found


def make(login: Login, name: str, servers: str, *options: str) -> str:
    return f"stoker cluster make {name} '{servers}' --gpus 4 --ssh 'ssh -F {login.config}' {' '.join(options)}"


def daemons(login: Login) -> dict[int, int]:
    """Kilobytes in memory of every daemon of the user, by its process id."""
    out = login("ps -u $(id -u) -o pid=,rss=,args=").out
    found = [
        line.split(None, 2) for line in out.splitlines() if re.search("slurmctld|slurmd|munged|slurmscriptd", line)
    ]
    return {int(pid): int(size) for pid, size, _ in found}


def test_from_nothing_to_nothing(login: Login) -> None:
    """Servers become a cluster that runs jobs; repeating changes nothing; down and remove leave nothing behind."""
    made = login(make(login, "gpus", "gpu[1-3]"))
    assert (made.code, made.err) == (0, "")
    assert re.findall(r"^  (gpu\d) .* 4 GPUs$", made.out, re.MULTILINE) == ["gpu1", "gpu2", "gpu3"]
    before = daemons(login)
    assert len(before) == 6  # munged, slurmctld with slurmscriptd, and slurmd of three nodes
    assert sum(before.values()) <= 40_000
    place = login.home / ".stoker-shared/slurm/gpus"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (place, *place.iterdir())}
    assert set(modes.values()) == {0o600, 0o700}, modes

    again = login(make(login, "gpus", "gpu[1-3]"))
    assert (again.code, again.out) == (0, made.out)
    assert set(daemons(login)) == set(before)

    checked = login("stoker cluster check gpus")
    assert (checked.code, checked.err) == (0, ""), checked
    assert "sees " in checked.out
    assert login("stoker cluster status gpus").out.startswith("gpus: private Slurm, answers;")

    conf = f"SLURM_CONF={place}/slurm.conf"
    assert login(f"{conf} srun -N3 hostname").out.splitlines() == [socket.gethostname()] * 3
    assert login(f"{conf} sbatch --output=/dev/null --wrap 'sleep 1000'").code == 0
    refused = login("stoker cluster down gpus")
    assert (refused.code, "gpus has 1 job in Slurm" in refused.err) == (125, True)
    kept = login("stoker cluster remove gpus")
    assert (kept.code, "daemons of gpus run on localhost, gpu1, gpu2, gpu3" in kept.err) == (125, True)
    assert login("stoker cluster down gpus --jobs").code == 0
    assert not any(map(is_alive, before))
    assert login("stoker cluster remove gpus").code == 0
    assert not place.exists()
    assert not Path(f"/var/tmp/stoker-slurm-{login.user.uid}").exists()


def test_servers_that_cannot_be_used(login: Login) -> None:
    """One that is away and one that wants a password are named, and the others work; later they can be added."""
    made = login(make(login, "some", "gpu1,away,closed"))
    assert made.code == 0, "a script goes on with what there is"
    assert re.search(r"^  gpu1 .*4 GPUs$", made.out, re.MULTILINE)
    assert re.search(r"^  away .*ssh does not reach it: .*Connection refused", made.out, re.MULTILINE)
    assert re.search(r"^  closed .*asks for a password.*ssh-copy-id closed$", made.out, re.MULTILINE)
    assert "2 servers cannot be used; the others can" in made.err

    more = login(make(login, "some", "gpu[1-2]"))
    assert more.code == 0, more
    nodes = login(f"SLURM_CONF={login.home}/.stoker-shared/slurm/some/slurm.conf sinfo -h -N -o '%N %t'").out
    assert nodes.splitlines() == ["gpu1 idle", "gpu2 idle"]
    assert login("stoker cluster remove some --force").code == 0
    assert not daemons(login)

    none = login(make(login, "none", "away"))
    assert (none.code, "no server can be used: away: ssh does not reach it" in none.err) == (125, True)
    assert "cluster.none" not in (login.home / ".config/stoker/config.toml").read_text()


def test_ports_in_use(login: Login) -> None:
    """Ports of other programs are passed over; one that is taken later is named by `up`, and `make` finds another."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        first = login(make(login, "ports", "localhost", f"--port {min(port, 32766)}"))
        assert first.code == 0, first
    conf = login.home / ".stoker-shared/slurm/ports/slurm.conf"
    assert login("stoker cluster down ports").code == 0
    [own] = re.findall(r"NodeName=.* Port=(\d+)", conf.read_text())
    with socket.create_server(("0.0.0.0", int(own))):
        late = login("stoker cluster up ports")
        assert (late.code, f"port {own} is in use by another program" in late.out) == (1, True), late
        again = login(make(login, "ports", "localhost"))
        assert again.code == 0, again
        assert re.findall(r"NodeName=.* Port=(\d+)", conf.read_text()) != [own]
    assert login("stoker cluster remove ports --force").code == 0


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("make gpus 'gpu[1-'", 2, "a bracket that is not closed"),
        ("make gpus 'gpu[3-1]'", 2, "not a range"),
        ("make gpus -- -oProxyCommand=x", 2, "is not the name of a server"),
        ("make ../gpus gpu1", 2, "is not the name of a cluster"),
        ("make gpus gpu1 --local var", 2, "not a path from /"),
        ("make gpus gpu1 --shared var", 2, "shared under [cluster.gpus] is 'var', not a path"),
        ("make gpus gpu1 --shared '/tmp/a b'", 2, "has characters that slurm.conf cannot hold"),
        ("up lab", 2, "there is no cluster 'lab'"),
    ],
)
def test_bad_input(stoker: Stoker, line: str, code: int, said: str) -> None:
    """Nothing is made of what cannot be meant."""
    found = stoker.typed(f"stoker cluster {line}", XDG_CONFIG_HOME=str(stoker.home / "config"))
    assert (found.code, said in found.err) == (code, True), found


def hidden(*paths: str) -> list[str]:
    """Words that start a program in a world without these files and directories."""
    mounts = [f"mount {'-t tmpfs none' if os.path.isdir(path) else '--bind /dev/null'} {path}" for path in paths]
    return ["unshare", "-m", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh"]


def installed(*patterns: str) -> list[str]:
    return sorted({str(path.resolve()) for pattern in patterns for path in Path("/").glob(pattern)})


SLURM = ("usr/sbin/slurm*d", "usr/sbin/munged", "usr/bin/sbatch", "usr/lib/*/slurm-wlm", "usr/lib/*/libmunge.so.2")


def test_unpacked() -> None:
    """Without an installed Slurm, Debian's packages are unpacked and run without root."""
    with made_users(1) as [user], logged_in(user, hidden(*installed(*SLURM))) as login:
        made = login(make(login, "gpus", "gpu[1-2]"))
        assert made.code == 0, made
        assert "unpacking Slurm into" in made.err
        prefix = login.home / ".stoker-shared/slurm/unpacked"
        checked = login("stoker cluster check gpus")
        assert checked.code == 0, checked
        programs = {os.readlink(f"/proc/{pid}/exe") for pid in daemons(login)}
        assert all(program.startswith(str(prefix)) for program in programs), programs
        assert login("stoker cluster remove gpus --force").code == 0


def test_no_way_to_get_slurm() -> None:
    """Without Slurm and without apt-get, the message says what to install."""
    with made_users(1) as [user], logged_in(user, hidden(*installed(*SLURM, "usr/bin/apt-get"))) as login:
        made = login(make(login, "gpus", "gpu1"))
        assert made.code == 125
        assert "Slurm is not installed on all servers, and this machine has no apt-get" in made.err
        assert "install slurmctld, slurmd, slurm-client and munge on all servers" in made.err


def test_two_users_share_the_gpus_of_a_server() -> None:
    """Each has a Slurm of his own, which knows nothing of the other; the pilots share by the ledger of the node."""
    with ExitStack() as stack:
        logins = [stack.enter_context(logged_in(user)) for user in stack.enter_context(made_users(2))]
        place = stack.enter_context(reachable_directory())
        place.chmod(0o1777)
        for name in ("ran", "doubles", *(f"gpu.{index}" for index in range(4))):
            (place / name).touch()
            (place / name).chmod(0o666)
        variables = {"STOKER_SIM": "4x24G", "STOKER_LEDGER": str(place / "ledger")}
        note = f"exec 9>>{place}/gpu.$STOKER_GPU_IDS; flock -n 9 || echo $STOKER_GPU_IDS >> {place}/doubles"
        job = f"{note}; echo $(id -un) $STOKER_JOB_ID >> {place}/ran; sleep 0.4"
        for login in logins:
            made = login("stoker cluster make own localhost --gpus 4")
            assert made.code == 0, made
            sent = login(f"stoker submit -M own -a 0-9 -- sh -c {shlex.quote(job)}", **variables)
            assert sent.code == 0, sent
        for login in logins:
            waited = login("stoker wait last", **variables)
            assert waited.code == 0, waited
        runs = (place / "ran").read_text().splitlines()
        assert sorted(runs) == sorted(f"{login.user.name} {number}" for login in logins for number in range(1, 11))
        assert (place / "doubles").read_text() == ""
        first = {line.split()[0] for line in runs[: len(runs) // 2 + 4]}
        assert len(first) == 2, "nobody waits until the other has done"
        for login in logins:
            assert login("stoker cluster remove own --force", **variables).code == 0
