"""Three servers with a real sshd each, on ports of loopback, with homes, queues and, for root, host names."""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from support.cli import Outcome, Stoker
from support.interpreter import reachable_bin
from support.optional import require, search_path
from support.reaper import Reaper
from support.slurm import free_ports
from support.sshd import require_ssh
from support.users import User, made_users, reachable_directory, typed_by
from support.wait import PATIENCE_SECONDS, wait_until

CUTTER = Path(__file__).with_name("cutter.py")
NAMES = ("gpu1", "gpu2", "gpu3")


class Lab:
    """A machine of the user with three servers in its configuration of ssh."""

    def __init__(self, stoker: Stoker, directory: Path, user: User, ports: Mapping[str, int]) -> None:
        self.stoker = stoker
        self.directory = directory
        self.config = directory / "config"
        """For ssh: the servers, `away` where nobody answers, `closed` which wants a password."""
        self.user = user
        self.ports = ports
        self.homes = {name: directory / name for name in NAMES}
        self.stoker.environment |= {
            "XDG_CONFIG_HOME": str(stoker.home / "config"),
            "XDG_RUNTIME_DIR": str(directory / "run"),
            "HOME": str(stoker.home),
        }

    def write_config(self, **more: str) -> None:
        """`more` are options of ssh for all servers."""
        options = {
            "HostName": "127.0.0.1",
            "User": self.user.name,
            "UserKnownHostsFile": self.directory / "known",
            "StrictHostKeyChecking": "no",
            "IdentitiesOnly": "yes",
            **more,
        }
        common = "".join(f"  {name} {value}\n" for name, value in options.items())
        keys = {"closed": "other-key"}
        hosts = [
            f"Host {name}\n{common}  IdentityFile {self.directory / keys.get(name, 'key')}\n  Port {port}\n"
            for name, port in self.ports.items()
        ]
        self.config.write_text("".join(hosts))

    def cut(self, *numbers: int) -> None:
        """Let the next new connections break, each after so many bytes in both directions; those open now end."""
        cuts = self.directory / "cuts"
        cuts.write_text("\n".join(map(str, numbers)))
        self.write_config(ProxyCommand=f"{sys.executable} {CUTTER} %p {cuts}")
        close_connections(self)

    def __call__(self, line: str, **environment: str) -> Outcome:
        """Type a line on the user's machine."""
        return self.stoker.typed(line, **environment)

    def on(self, name: str, line: str) -> Outcome:
        """Type a line into a login on a server, in the home there."""
        return self(f"ssh -F {self.config} -o LogLevel=ERROR {name} {shlex.quote(f'cd && {line}')}")

    def add(self, *names: str) -> None:
        for name in names:
            added = self(f"stoker servers add {name} --ssh 'ssh -F {self.config} {name}'")
            assert added.code == 0, added


@contextmanager
def lab_of(stoker: Stoker) -> Iterator[Lab]:
    """The servers run until the end, and everything that was started on them ends with them."""
    require_ssh()
    with ExitStack() as stack:
        directory = stack.enter_context(reachable_directory())
        user = _user(stack, directory)
        *ports, closed = free_ports(len(NAMES) + 1)
        lab = Lab(stoker, directory, user, {**dict(zip(NAMES, ports, strict=True)), "away": closed, "closed": ports[0]})
        (directory / "run").mkdir(mode=0o700)
        for name in ("key", "other-key", "host-key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
            subprocess.run(command, check=True, timeout=PATIENCE_SECONDS)
        shutil.copy(directory / "key.pub", directory / "authorized")
        for home in lab.homes.values():
            home.mkdir()
        lab.write_config()
        if os.geteuid() == 0:
            for path in (directory / "host-key", directory / "authorized", *lab.homes.values()):
                os.chown(path, user.uid, user.gid)
        reaper = Reaper()
        stack.callback(reaper.close)
        environment = {**os.environ, "PATH": search_path()}
        for name in NAMES:
            reaper.start(_sshd(lab, name), environment, directory / f"{name}.log")
        stack.callback(close_connections, lab)
        for name in NAMES:
            wait_until(partial(_answers, lab, name))
        yield lab


def _answers(lab: Lab, name: str) -> bool:
    return lab.on(name, "true").code == 0


def _user(stack: ExitStack, home: Path) -> User:
    """An ordinary user, as which the servers run: this one, or for root a new one with no password."""
    if os.geteuid() != 0:
        entry = pwd.getpwuid(os.geteuid())
        return User(entry.pw_name, entry.pw_uid, entry.pw_gid)
    [user] = stack.enter_context(made_users(1))
    change = [require("usermod"), "-p", "*", "-d", str(home), user.name]
    subprocess.run(change, check=True, timeout=PATIENCE_SECONDS)
    return user


def _sshd(lab: Lab, name: str) -> list[str]:
    home = lab.homes[name]
    variables = {
        "HOME": home,
        "PATH": f"{reachable_bin()}:/usr/bin:/bin",
        "STOKER_STATE": home / "state",
        "STOKER_LEDGER": home / "ledger",
        "STOKER_SIM": "2x24G",
        "XDG_CONFIG_HOME": home / "config",
    }
    options = {
        "ListenAddress": "127.0.0.1",
        "Port": lab.ports[name],
        "HostKey": lab.directory / "host-key",
        "AuthorizedKeysFile": lab.directory / "authorized",
        "PidFile": "none",
        "UsePAM": "no",
        "StrictModes": "no",
        "PasswordAuthentication": "yes",
        "MaxStartups": 100,
        "MaxSessions": 100,
        "PrintMotd": "no",
        "SetEnv": " ".join(f"{variable}={value}" for variable, value in variables.items()),
    }
    words = [word for option, value in options.items() for word in ("-o", f"{option}={value}")]
    command = [require("sshd"), "-D", "-e", "-f", "/dev/null", *words]
    if os.geteuid() != 0:
        return command
    script = f"hostname {name}; exec {shlex.join(typed_by(lab.user, *command))}"
    return [require("unshare"), "--uts", "sh", "-c", script]


def close_connections(lab: Lab) -> None:
    """End the shared connections, which outlive the commands that opened them."""
    for path in (lab.directory / "run").glob("stoker-ssh-*/*"):
        if path.is_socket():
            subprocess.run(
                ["ssh", "-o", f"ControlPath={path}", "-O", "exit", "any"], check=False, capture_output=True, timeout=10
            )


@contextmanager
def fresh_lab(home: Path) -> Iterator[Lab]:
    with closing(Stoker(home)) as stoker, lab_of(stoker) as lab:
        yield lab
