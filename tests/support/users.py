"""Real users of this machine for tests, and programs that run as one of them."""

from __future__ import annotations

import importlib
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from support.interpreter import reachable_bin
from support.optional import refuse, require, search_path
from support.wait import PATIENCE_SECONDS, ending, line_from


class User(Struct, frozen=True):
    """A user made for the tests, with a group of the same name and nothing else."""

    name: str
    uid: int
    gid: int


@contextmanager
def made_users(count: int) -> Iterator[tuple[User, ...]]:
    """Users who did not exist before and are removed afterwards."""
    require_root()
    with ExitStack() as stack:
        yield tuple(stack.enter_context(_made_user()) for _ in range(count))


def require_root() -> None:
    """Skip the test for those who cannot make users; on CI, where a skip goes unnoticed, fail."""
    if os.geteuid() != 0:
        refuse("only root can make users")


@contextmanager
def reachable_directory() -> Iterator[Path]:
    """A fresh directory that every user can enter, which pytest's own are not."""
    path = Path(tempfile.mkdtemp(prefix="stoker-test-", dir="/tmp"))
    try:
        path.chmod(0o755)
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def running_as(
    user: User, program: Callable[..., None], *arguments: object, umask: int = 0o077
) -> Iterator[subprocess.Popen[str]]:
    """A process of the user that calls a module's function with the arguments as text; killed at the end.

    The interpreter and the source may lie where only root can read. So the process starts as root,
    imports the module with all it needs, and becomes the user for good before the call.
    """
    words = [user.uid, user.gid, umask, program.__module__, program.__name__, *arguments]
    command = [sys.executable, __file__, *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with ending(
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def run_as(user: User, program: Callable[..., None], *arguments: object, umask: int = 0o077) -> str:
    """What the program printed, after it ended well in a process of the user."""
    with running_as(user, program, *arguments, umask=umask) as process:
        return finish(process)


def next_line(process: subprocess.Popen[str]) -> str:
    """The next line that the process prints, as soon as there is one."""
    line = line_from(process.stdout)
    assert line, process.communicate(timeout=PATIENCE_SECONDS)[1]
    return line.strip()


def finish(process: subprocess.Popen[str]) -> str:
    """What the process still prints until it ends, which it must do well."""
    output, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints
    return output


def typed_by(user: User, *words: str) -> list[str]:
    """Return the words of a command as the user types it, without any right that the user does not have.

    Programs beside the interpreter of the tests are those of an interpreter that users can reach.
    """
    own = f"{Path(sys.executable).parent}/"
    reached = [str(reachable_bin() / word.removeprefix(own)) if word.startswith(own) else word for word in words]
    become = [f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    return [require("setpriv"), *become, *reached]


@contextmanager
def _made_user() -> Iterator[User]:
    name = f"stoker-{secrets.token_hex(4)}"
    # Programs remember the name of a number: one that was given before would bring back a user who is gone.
    number = str(20_000 + secrets.randbelow(40_000))
    options = ["--no-create-home", "--user-group", "--uid", number]
    subprocess.run([require("useradd"), *options, name], check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    try:
        entry = pwd.getpwnam(name)
        yield User(name, entry.pw_uid, entry.pw_gid)
    finally:
        # A daemon of the user that is just ending, or that init has not reaped yet, does not keep the user.
        command = [_program("userdel"), "--force", name]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)


def _become(uid: int, gid: int, umask: int) -> None:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    os.umask(umask)
    os.chdir("/")


def _main(uid: str, gid: str, umask: str, module: str, name: str, *arguments: str) -> None:
    program = getattr(importlib.import_module(module), name)
    _become(int(uid), int(gid), int(umask))
    program(*arguments)


if __name__ == "__main__":
    _main(*sys.argv[1:])


def _program(name: str) -> str:
    """A program of the administrator's, whose directory may not be on the path."""
    found = shutil.which(name, path=search_path())
    assert found, f"{name} is missing"
    return found
