"""One connection to each server, shared by all commands for a minute; ssh itself keeps and ends it.

Every command that runs on a server is a short script for sh. It looks for Stoker there and prints a mark: text before
the mark comes from the login shell of the user.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import shlex
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from stoker.app.service.ssh import OWN_EXIT_CODE, QUIET_OPTIONS, ssh_trouble
from stoker.core.errors import StokerError
from stoker.features.servers.settings import SshServer

KEEP_SECONDS = 60
"""How long an unused connection stays open."""
CONNECT_SECONDS = 30.0
CALL_SECONDS = 60.0
_WORD = "--stoker-answers--"
MARK = f"\n{_WORD}\n".encode()
"""Printed before the output of Stoker."""
_ABSENT = 97
"""Exit code of the script if there is no Stoker."""
_ALIVE = ("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "LogLevel=ERROR")
_LONGEST_FOLDER = 60
"""Bytes: ssh adds a name of 12 and a suffix of 17 for a moment, and a path of a socket has at most 107."""
_PASSED = ("STOKER_OUTPUT", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
"""Variables of this machine that decide how output looks."""
_PLACES = ("stoker", '"$HOME/.local/bin/stoker"', '"$HOME/.local/share/stoker/venv/bin/stoker"')
"""Where Stoker may be: ssh often has a shorter PATH than a login."""


class Unreachable(StokerError):
    """A server cannot be reached."""

    exit_code = 3


class ConnectionLost(Unreachable):
    """The connection broke before the answer: the server may have done what it was asked, or not."""


class Answer(NamedTuple):
    """The end of a command there."""

    code: int
    out: bytes
    err: str


def call(server: SshServer, words: Sequence[str], data: bytes = b"", seconds: float = CALL_SECONDS) -> Answer:
    """Run `stoker WORDS` there and wait for its end; raises Unreachable, and ConnectionLost if it may have begun."""
    with shared_connection(server) as prefix:
        command = [*prefix, quoted_for_any_shell(_script(server, words)) if server.ssh else _script(server, words)]
        try:
            done = subprocess.run(command, input=data, capture_output=True, check=False, timeout=seconds)
        except subprocess.TimeoutExpired:
            close(server)
            raise ConnectionLost(f"{server.name} does not answer within {seconds:g} s", "try again later") from None
        except OSError as error:
            raise Unreachable(f"{command[0]} cannot be run: {error.strerror}", "install openssh-client") from None
    noise, mark, out = done.stdout.partition(MARK)
    said = done.stderr.decode(errors="replace")
    if server.ssh and done.returncode == OWN_EXIT_CODE and not is_open(server):
        close(server)
        raise ConnectionLost(f"the connection to {server.name} was lost", "try again")
    if not mark:
        raise _without_mark(server, done.returncode, said or noise.decode(errors="replace"))
    return Answer(done.returncode, out, said)


@contextlib.contextmanager
def streamed(server: SshServer, words: Sequence[str], data: bytes) -> Iterator[tuple[bytes, IO[bytes]]]:
    """Run `stoker WORDS` there: the first of its output, and a stream of the rest."""
    with shared_connection(server) as prefix:
        script = _script(server, words)
        command = [*prefix, quoted_for_any_shell(script) if server.ssh else script]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin
            assert process.stdout
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(data)
                process.stdin.close()
            try:
                yield _after_mark(process.stdout), process.stdout
            finally:
                process.kill()
                close_lost(server)


def close_lost(server: SshServer) -> None:
    """Forget a connection that is gone."""
    if server.ssh and not is_open(server):
        close(server)


def run_attached(server: SshServer, words: Sequence[str], *, terminal: bool) -> int:
    """Run `stoker WORDS` there with the terminal of the user, or with its output; the exit code.

    Without a terminal the command there ends as soon as this process or the connection does.
    """
    script = _script(server, words, terminal=terminal, watched=not terminal)
    with shared_connection(server, *(("-t",) if terminal else ())) as prefix:
        command = [*prefix, quoted_for_any_shell(script) if server.ssh else script]
    if terminal:
        code = subprocess.run(command, check=False).returncode
    else:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout
            _relay(process.stdout)
        code = process.returncode
    if code == OWN_EXIT_CODE and server.ssh and not is_open(server):
        close(server)
        raise ConnectionLost(f"the connection to {server.name} was lost; its jobs go on", "type the same command again")
    if code == _ABSENT:
        raise _absent(server)
    return code


def _relay(source: IO[bytes]) -> None:
    """Copy what comes after the mark to standard output."""
    _write(_after_mark(source))
    while chunk := os.read(source.fileno(), 65536):
        _write(chunk)


def _after_mark(source: IO[bytes]) -> bytes:
    """Read on until the mark, and return the bytes behind it; at least one, unless the stream ends."""
    held = b""
    while chunk := os.read(source.fileno(), 65536):
        held += chunk
        _, mark, rest = held.partition(MARK)
        if mark and rest:
            return rest
    return b""


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


# -- the script --------------------------------------------------------------------------------


def _script(server: SshServer, words: Sequence[str], *, terminal: bool = False, watched: bool = False) -> str:
    """The lines that sh runs there. A watched command has no input, and ends when the connection does."""
    variables = " ".join(f"{name}={shlex.quote(os.environ[name])}" for name in _PASSED if name in os.environ)
    start = f'"$stoker" {shlex.join(words)}'
    watch = (
        f"exec 3<&0; {start} </dev/null 3<&- & job=$!; "
        "{ cat >/dev/null; kill $job; } <&3 >/dev/null 2>&1 & watch=$!; "
        "exec 3<&-; wait $job; code=$?; kill $watch 2>/dev/null; exit $code"
    )
    lines = [
        server.before,
        f"export {variables}" if variables else "",
        f'for stoker in {" ".join(_PLACES)}; do command -v "$stoker" >/dev/null 2>&1 && break; stoker=; done',
        f'[ "$stoker" ] || exit {_ABSENT}',
        "" if terminal else f"printf '\\n%s\\n' {_WORD}",
        watch if watched else f"exec {start}",
    ]
    return "\n".join(filter(None, lines))


def quoted_for_any_shell(script: str) -> str:
    """One line that csh, fish and all others read alike."""
    packed = base64.b64encode(script.encode(errors="surrogateescape")).decode()
    return f"exec sh -c 'eval \"$(echo {packed} | base64 -d)\"'"


# -- the shared connection ---------------------------------------------------------------------


@contextlib.contextmanager
def shared_connection(server: SshServer, *options: str) -> Iterator[list[str]]:
    """The words before a script that use the connection; it is opened first if it is not open."""
    if not server.ssh:
        yield ["sh", "-c"]
        return
    _open(server)
    yield _ssh(server, "-o", "ControlMaster=no", *options)


def _ssh(server: SshServer, *options: str) -> list[str]:
    """The words of ssh, up to the host; what the user gave comes first, and so overrides the rest."""
    *given, host = server.ssh
    return [*given, *QUIET_OPTIONS, *_ALIVE, "-o", f"ControlPath={_socket(server)}", *options, host]


def is_open(server: SshServer) -> bool:
    """Whether a connection is there."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.connect(str(_socket(server)))
        return True
    return False


def close(server: SshServer) -> None:
    """End the shared connection, as when it does not answer any more."""
    if server.ssh:
        command = _ssh(server, "-O", "exit")
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=5)
        _socket(server).unlink(missing_ok=True)


def _open(server: SshServer) -> None:
    """Open the connection, unless another command has done that; raises Unreachable."""
    with open(_socket(server).with_suffix(".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_open(server):
            return
        _socket(server).unlink(missing_ok=True)  # of one that was killed
        command = _ssh(server, "-o", "ControlMaster=yes", "-o", f"ControlPersist={KEEP_SECONDS}", "-N")
        # Not a pipe: the process that keeps the connection inherits standard error.
        with tempfile.TemporaryFile() as said:
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    check=False,
                    timeout=CONNECT_SECONDS,
                    start_new_session=True,
                )
            except subprocess.TimeoutExpired:
                raise Unreachable(
                    f"{server.name} does not answer within {CONNECT_SECONDS:g} s", "try again later"
                ) from None
            except OSError as error:
                raise Unreachable(f"{command[0]} cannot be run: {error.strerror}", "install openssh-client") from None
            said.seek(0)
            if done.returncode:
                raise _trouble(server, said.read().decode(errors="replace"))


def _socket(server: SshServer) -> Path:
    return control_folder() / hashlib.sha256("\0".join(server.ssh).encode(errors="surrogateescape")).hexdigest()[:12]


def control_folder() -> Path:
    """A private directory with a short path, for the sockets of connections."""
    run = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = run.startswith("/") and len(os.fsencode(run)) < _LONGEST_FOLDER - 20 and os.access(run, os.W_OK)
    folder = Path(run if usable else "/tmp", f"stoker-ssh-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise StokerError(f"{folder} is not a private directory of yours", "remove it, or set XDG_RUNTIME_DIR")
    return folder


# -- troubles ----------------------------------------------------------------------------------


def _trouble(server: SshServer, said: str) -> Unreachable:
    what, _, advice = ssh_trouble(said, server.host).partition("; ")
    return Unreachable(f"{server.name}: {what}", advice or f"see by hand: ssh {server.host}")


def _without_mark(server: SshServer, code: int, said: str) -> StokerError:
    if code == _ABSENT:
        return _absent(server)
    if server.ssh and code == OWN_EXIT_CODE:
        return _trouble(server, said)
    last = said.strip().splitlines()[-1] if said.strip() else f"exit code {code}"
    return Unreachable(f"{server.name} runs no commands: {last}", f"see by hand: ssh {server.host} true")


def _absent(server: SshServer) -> Unreachable:
    if not server.ssh:
        return Unreachable(f"there is no stoker on {server.name}", "put its directory on PATH, or give --before")
    where = f"ssh {server.host} 'mkdir -p stoker-source && tar xC stoker-source && pipx install ./stoker-source'"
    return Unreachable(
        f"there is no stoker on {server.name}", f"install it, in the directory of its sources here: tar c . | {where}"
    )
