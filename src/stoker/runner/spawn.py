"""Start one command as a process, or refuse it with the exit code that a shell would give.

Standard library only: workers are forked from a process that must stay small.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

INHERIT = "-"
_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY
_DEFAULT_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
_MACHINE_WIDE = frozenset((errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE))
_OF_A_DISK = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE))
_FileAction = tuple[Any, ...]


class Refused(Exception):
    """The attempt cannot be started; carries the exit code that a shell would give."""

    def __init__(self, code: int, note: str) -> None:
        super().__init__(note)
        self.code = code
        self.note = note


class StartDeferred(Exception):
    """The attempt cannot be started now, because the machine is short of something or a disk does not work."""

    def __init__(self, error: OSError, note: str) -> None:
        super().__init__(note)
        self.errno = error.errno or 0
        self.note = note


class ForkedJob(BaseException):
    """Raised in a process that was forked from a template, so that it leaves all that its worker was doing."""

    def __init__(self, order: Mapping[str, Any], environment: Mapping[str, str], words: Sequence[str]) -> None:
        super().__init__(order, environment, words)
        self.job = order, environment, words


class Image(Protocol):
    """The modules of a template, in a worker that the template forked."""

    def outdated(self) -> str:
        """The file that has changed since its import; empty if none has."""

    def refusal(self, order: Mapping[str, Any]) -> str:
        """Why an order's process cannot be forked here; empty if it can."""


def is_shortage(error: OSError) -> bool:
    """Whether an error is the machine's and not the job's, so that the same start may succeed later."""
    return error.errno in _MACHINE_WIDE or error.errno in _OF_A_DISK


def is_machine_wide(error_number: int) -> bool:
    """Whether a shortage concerns every start, and not only those that use the same disk."""
    return error_number in _MACHINE_WIDE


def launch(order: Mapping[str, Any], environment: Mapping[str, str], image: Image | None = None) -> int:
    """Start an order's command and return its process id; fork it if the order wants that and the image allows it."""
    os.umask(order["umask"])
    terminal = order.get("terminal", "")
    paths = (_within(order["cwd"], terminal or order[name]) for name in ("out", "err"))
    out, err = _open_outputs(*paths, own=order.get("own_log", False))
    try:
        _enter(order["cwd"])
        if order.get("warm") and image is not None and not (refusal := image.refusal(order)):
            return _fork(order, environment, out, err)
        if cold := order.get("cold") or (order.get("warm") and (refusal if image else "it has no template")):
            with contextlib.suppress(OSError):
                os.write(err, f"stoker: started cold: {cold}\n".encode(errors="backslashreplace"))
        return _spawn(order, environment, out, err)
    except Refused as refusal:
        with contextlib.suppress(OSError):  # a full disk or a closed terminal must not cost the exit code
            os.write(err, f"stoker: {refusal.note}\n".encode(errors="backslashreplace"))
        raise
    finally:
        os.chdir("/")  # a worker that stayed there would keep a directory from being unmounted
        for descriptor in {out, err} - {1, 2}:
            os.close(descriptor)


def spawn_silently(words: list[str]) -> int | None:
    """Start a program of our own with all streams on /dev/null, and return its process id; None if that fails."""
    streams = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    try:
        return os.posix_spawn(words[0], words, {}, file_actions=streams, setsigmask=[], setsigdef=_DEFAULT_SIGNALS)
    except OSError:
        return None


def _within(directory: str, path: str) -> str:
    """A path relative to the command's directory; that may not exist, which is reported in the log."""
    return path if path == INHERIT else os.path.join(directory, path)


def _enter(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise _failure(error, f"cannot enter {directory}: {error.strerror}") from None


def _open_outputs(out: str, err: str, *, own: bool) -> tuple[int, int]:
    """Descriptors for standard output and error; the same one where both go to one place."""
    first = _open_output(out, 1, own=own)
    if err == out and out != INHERIT:
        return first, first
    try:
        return first, _open_output(err, 2)
    except (Refused, StartDeferred):
        if first != 1:
            os.close(first)
        raise


def _open_output(path: str, inherited: int, *, own: bool = False) -> int:
    if path == INHERIT:
        return inherited
    try:
        # Without O_NONBLOCK a FIFO without a reader would block the worker for ever.
        descriptor = os.open(path, _APPENDING | os.O_NONBLOCK, 0o666)
    except OSError as error:
        note = f"cannot write its output to {path}: {error.strerror}"
        raise (StartDeferred(error, note) if own else _failure(error, note)) from None
    os.set_blocking(descriptor, True)
    return descriptor


def _spawn(order: Mapping[str, Any], environment: Mapping[str, str], out: int, err: int) -> int:
    words = [order["shell"], "-c", *order["words"]] if order["shell"] else order["words"]
    actions: list[_FileAction] = [
        (os.POSIX_SPAWN_DUP2, source, target) for source, target in ((out, 1), (err, 2)) if source != target
    ]
    if order.get("again") and not _can_reread(0):
        actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
    if order.get("terminal"):  # the first that the leader of a new session opens becomes the controlling one
        actions.insert(0, (os.POSIX_SPAWN_OPEN, 0, order["terminal"], os.O_RDWR, 0))
    program = _find_program(words[0], environment)
    try:
        return _spawn_apart(program, words, environment, actions)
    except (OSError, ValueError) as error:
        raise _refusal(error, words) from None


def _fork(order: Mapping[str, Any], environment: Mapping[str, str], out: int, err: int) -> int:
    """Fork a process that has the worker's modules; in it, raise. Signals wait until it is like a new one."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        raise _refusal(error, order["words"]) from None
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        return pid
    signal.set_wakeup_fd(-1)
    for source, target in ((out, 1), (err, 2)):
        if source != target:
            os.dup2(source, target)
    raise ForkedJob(order, environment, order["words"])


def drop_half_read_input(order: Mapping[str, Any]) -> None:
    """Give this process no input, if an earlier attempt has read a part of it."""
    if order.get("again") and not _can_reread(0):
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)


def _can_reread(descriptor: int) -> bool:
    """Whether a retry finds the same input: a file from its start, or a terminal. The rest of a pipe would be half."""
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.lseek(descriptor, 0, os.SEEK_SET)
            return True
    return os.isatty(descriptor)


def _spawn_apart(program: str, words: list[str], environment: Mapping[str, str], actions: Sequence[_FileAction]) -> int:
    """Spawn in a new session; a Python built for an older C library, as conda's, supports only process groups."""
    try:
        return os.posix_spawn(
            program,
            words,
            environment,
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=_DEFAULT_SIGNALS,
        )
    except NotImplementedError:
        if any(action[0] == os.POSIX_SPAWN_OPEN for action in actions):  # a terminal needs a session
            return _fork_apart(program, words, environment, actions)
        return os.posix_spawn(
            program,
            words,
            environment,
            file_actions=actions,
            setpgroup=0,
            setsigmask=[],
            setsigdef=_DEFAULT_SIGNALS,
        )


def _fork_apart(program: str, words: list[str], environment: Mapping[str, str], actions: Sequence[_FileAction]) -> int:
    """Fork, open a session and execute: safe, since a worker has one thread."""
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        for signal_number in _DEFAULT_SIGNALS:
            signal.signal(signal_number, signal.SIG_DFL)
        for kind, *details in actions:
            if kind == os.POSIX_SPAWN_OPEN:
                os.dup2(os.open(*details[1:]), details[0])
            else:
                os.dup2(*details)
        os.execve(program, words, environment)  # noqa: S606
    finally:
        os._exit(126)


def _find_program(name: str, environment: Mapping[str, str]) -> str:
    if "/" in name:
        return name
    path = environment.get("PATH", os.defpath)
    if program := _on_path(name, path, os.F_OK | os.X_OK):
        return program
    if _on_path(name, path, os.F_OK):
        raise Refused(126, f"{name}: not executable")
    _raise_shortage(name, path)
    raise Refused(127, f"{name}: command not found")


def _on_path(name: str, path: str, mode: int) -> str | None:
    """As shutil.which, whose import would load all compressors."""
    candidates = [os.path.join(directory, name) for directory in path.split(os.pathsep)] if path else []
    return next((file for file in candidates if os.access(file, mode) and not os.path.isdir(file)), None)


def _raise_shortage(name: str, path: str) -> None:
    """A program is not missing if a directory of the path cannot be read for the moment."""
    for directory in path.split(os.pathsep):
        try:
            os.stat(os.path.join(directory, name))
        except OSError as error:
            if is_shortage(error):
                raise StartDeferred(error, f"cannot look for {name} in {directory}: {error.strerror}") from None


def _failure(error: OSError, note: str) -> Refused | StartDeferred:
    return StartDeferred(error, note) if is_shortage(error) else Refused(126, note)


def _refusal(error: OSError | ValueError, words: list[str]) -> Refused | StartDeferred:
    if isinstance(error, ValueError):
        return Refused(126, "the command contains a NUL byte, which cannot be passed to a program")
    if error.errno == errno.ENOENT:
        return Refused(127, f"{words[0]}: command not found")
    if error.errno == errno.E2BIG:
        length = max(len(word.encode(errors="surrogateescape")) for word in words)
        return Refused(126, f"the command is too long for the kernel ({length} bytes); put it in a script")
    if error.errno in _MACHINE_WIDE:
        return StartDeferred(error, f"cannot start a process: {error.strerror}")
    return _failure(error, f"{words[0]}: {error.strerror}")
