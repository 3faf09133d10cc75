"""A real sshd on loopback that runs as an ordinary user, and names of servers that all lead to it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from support.cli import Outcome
from support.interpreter import reachable_bin
from support.optional import require, search_path
from support.reaper import Reaper
from support.slurm import free_ports
from support.users import User, reachable_directory, typed_by
from support.wait import PATIENCE_SECONDS, wait_until

SERVERS = ("gpu1", "gpu2", "gpu3")


class Login:
    """Types lines into a session of the user; everything that they start ends with the sshd."""

    def __init__(self, user: User, directory: Path, port: int) -> None:
        self.user = user
        self.directory = directory
        self.home = directory / "home"
        self.config = directory / "config"
        """For ssh: the servers, `away` where nobody answers, `closed` which wants a password."""
        self._port = port

    def write_config(self, closed_port: int) -> None:
        common = f"  HostName 127.0.0.1\n  User {self.user.name}\n  UserKnownHostsFile {self.directory}/known\n"
        key = f"  StrictHostKeyChecking no\n  LogLevel ERROR\n  IdentitiesOnly yes\n  IdentityFile {self.directory}"
        hosts = {
            " ".join(("head", *SERVERS)): (self._port, "key"),
            "away": (closed_port, "key"),
            "closed": (self._port, "other-key"),
        }
        text = "".join(f"Host {name}\n{common}{key}/{file}\n  Port {port}\n" for name, (port, file) in hosts.items())
        self.config.write_text(text)

    def __call__(self, line: str, **variables: str) -> Outcome:
        """Type a line on the head."""
        own = {"HOME": str(self.home), "PATH": f"{reachable_bin()}:/usr/bin:/bin", **variables}
        given = " ".join(f"{name}={shlex.quote(value)}" for name, value in own.items())
        done = subprocess.run(
            ["ssh", "-F", self.config, "head", f"env -i {given} sh -c {shlex.quote(line)}"],
            check=False,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_SECONDS,
            stdin=subprocess.DEVNULL,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)


@contextmanager
def logged_in(user: User, wrapper: Sequence[str] = ()) -> Iterator[Login]:
    """An sshd of the user, started by the words of `wrapper`, as root, if there are any."""
    require_ssh()
    with ExitStack() as stack:
        directory = stack.enter_context(reachable_directory())
        stack.callback(shutil.rmtree, f"/var/tmp/stoker-slurm-{user.uid}", ignore_errors=True)  # of a test that failed
        port, closed = free_ports(2)
        login = Login(user, directory, port)
        login.home.mkdir()
        # A password, so that it is not locked: sshd looks, where a user of the tests may read all files.
        change = ["usermod", "-p", "*", "-d", str(login.home), user.name]
        subprocess.run(change, check=True, timeout=PATIENCE_SECONDS, env=_environment())
        for name in ("key", "other-key", "host-key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
            subprocess.run(command, check=True, timeout=PATIENCE_SECONDS)
        login.write_config(closed)
        (directory / "authorized").write_text((directory / "key.pub").read_text())
        _give(directory, user)
        reaper = Reaper()
        stack.callback(reaper.close)
        reaper.start([*wrapper, *typed_by(user, *_sshd(directory, port))], _environment(), directory / "sshd.log")
        wait_until(lambda: login("true").code == 0)
        yield login


def require_ssh() -> None:
    require("ssh", "sshd", "ssh-keygen")


def _sshd(directory: Path, port: int) -> list[str]:
    options = {
        "ListenAddress": "127.0.0.1",
        "Port": port,
        "HostKey": directory / "host-key",
        "AuthorizedKeysFile": directory / "authorized",
        "PidFile": "none",
        "UsePAM": "no",
        "StrictModes": "no",
        "PasswordAuthentication": "yes",
        "MaxStartups": 100,
        "PrintMotd": "no",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return [require("sshd"), "-D", "-e", "-f", "/dev/null", *words]


def _environment() -> Mapping[str, str]:
    return {**os.environ, "PATH": search_path()}


def _give(directory: Path, user: User) -> None:
    for path in (directory, *directory.rglob("*")):
        os.chown(path, user.uid, user.gid)
