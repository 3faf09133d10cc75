"""The engine's end of templates: start them, give them workers to fork, and end those that are not used."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from stoker.core.errors import StokerError
from stoker.core.warm import Template
from stoker.runner.forkserver_client import PACKAGE_PARENT, Shared, message_of
from stoker.runner.inherited import FAILED, MARKER, READY, inherited_locks

MOST = 2
"""Templates of an engine at a time, each with the memory of its modules."""
IDLE_SECONDS = 300.0
"""A template ends if no worker was forked from it for so long."""
BUSY_SECONDS = 10.0
"""A template that forked a worker within this time does not make room for another one."""
FAILED_SECONDS = 600.0
"""For how long jobs start cold after a template has failed."""
LEAST_FREE = 0.1
"""The part of the machine's memory below which templates end."""
LOOK_SECONDS = 1.0
_ROOM = 4096
"""Characters for the words of a job, and of its worker's name: what `ps` shows of a process that runs no program."""
_PROGRAM = """import sys
if sys.version_info < (3, 11):
    import os; os.write(int(sys.argv[2]), b"!its Python is older than 3.11"); sys.exit(1)
sys.path.insert(0, sys.argv.pop(1))
from stoker.runner.template import main
del sys.path[0]
main()"""


class _Running:
    """One template."""

    def __init__(self, template: Template, marks: Mapping[str, str]) -> None:
        self.key = template.key
        self.used_at = time.monotonic()
        self.ready = False
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program, *options = template.start
        words = [program, *options, "-c", _PROGRAM, PACKAGE_PARENT, str(theirs.fileno()), " " * _ROOM]
        settings = {
            "key": self.key,
            "modules": template.modules,
            "search_path": template.search_path,
            "script": template.script,
        }
        try:
            with theirs:
                self.process = subprocess.Popen(
                    words,
                    cwd=template.directory,
                    env={**dict(template.environment), **marks, MARKER: " " * _ROOM},
                    pass_fds=[theirs.fileno(), *inherited_locks()],
                    start_new_session=True,
                )
            self.control.send(json.dumps(settings).encode())
        except BaseException:
            self.control.close()
            raise

    def news(self) -> str | None:
        """Why it is of no use any more; None if it is."""
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    message = self.control.recv(4096, socket.MSG_DONTWAIT)
                except ConnectionResetError:  # it did not read all; the kernel says so once, before its last message
                    continue
                if not message:
                    return self._end()
                if message.startswith(FAILED):
                    return message[1:].decode(errors="replace")
                self.ready = self.ready or message.startswith(READY)
        return None

    def _end(self) -> str:
        code = self.process.wait()  # it closed its end, so it is about to exit
        when = "while it waited" if self.ready else "while it imported"
        if code < 0:
            return f"its template was ended by {signal.Signals(-code).name} {when}"
        return f"its template exited with code {code} {when}"


class Templates:
    """The templates of one engine."""

    def __init__(self, marks: Mapping[str, str] = {}) -> None:
        self._marks = marks
        self._running: dict[str, _Running] = {}
        self._failures: dict[str, tuple[float, str]] = {}
        """By key, until when jobs start cold (monotonic), and why."""
        self._ending: list[subprocess.Popen[bytes]] = []
        self._look_at = 0.0

    def refusal(self, template: Template) -> str:
        """Why a job that wants the template starts cold; empty if there is one, or may be one."""
        self._read(template.key)
        until, why = self._failures.get(template.key, (0.0, ""))
        if why and time.monotonic() < until:
            return why
        if template.key in self._running or len(self._running) < MOST or self._oldest() is not None:
            return ""
        return f"{MOST} other templates are in use"

    def fork(self, template: Template, folder: Path, descriptors: list[int], shared: Shared) -> bool:
        """Let the template fork a worker, now or once it has its modules; False if it cannot."""
        if self.refusal(template):
            return False
        try:
            running = self._running.get(template.key) or self._start(template)
            socket.send_fds(running.control, [message_of(folder, shared)], descriptors, socket.MSG_DONTWAIT)
        except (OSError, ValueError, StokerError) as error:
            self._fail(template.key, f"its template cannot be started or reached ({error})")
            return False
        running.used_at = time.monotonic()
        return True

    def look(self) -> list[str]:
        """Keys of templates that have ended since the last look; ends those that are idle or take scarce memory."""
        now = time.monotonic()
        if now < self._look_at:
            return []
        self._look_at = now + LOOK_SECONDS
        self._ending = [process for process in self._ending if process.poll() is None]
        before = list(self._running)
        is_short = bool(self._running) and free_memory() < LEAST_FREE
        for key, running in list(self._running.items()):
            self._read(key)
            patience = BUSY_SECONDS if is_short else IDLE_SECONDS
            if running.ready and now - running.used_at > patience:
                self.retire(key)
        return [key for key in before if key not in self._running]

    def retire(self, key: str) -> None:
        """Let a template exit; it forks the workers first that it was given."""
        if running := self._running.pop(key, None):
            running.control.close()
            self._ending.append(running.process)

    def close(self) -> None:
        """Let all exit; workers live on."""
        for key in list(self._running):
            self.retire(key)
        for process in self._ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_SECONDS)
            process.returncode = process.returncode or 0  # one that still imports ends by itself
        self._ending.clear()

    def _start(self, template: Template) -> _Running:
        if len(self._running) >= MOST and (oldest := self._oldest()):
            self.retire(oldest)
        self._running[template.key] = running = _Running(template, self._marks)
        return running

    def _oldest(self) -> str | None:
        """The one that makes room."""
        until = time.monotonic() - BUSY_SECONDS
        idle = [running for running in self._running.values() if running.ready and running.used_at < until]
        return min(idle, key=lambda running: running.used_at).key if idle else None

    def _read(self, key: str) -> None:
        running = self._running.get(key)
        if running is not None and (why := running.news()) is not None:
            self.retire(key)
            self._fail(key, why)

    def _fail(self, key: str, why: str) -> None:
        self._failures[key] = time.monotonic() + FAILED_SECONDS, why


def free_memory() -> float:
    """The free part of the machine's memory; 1 if it is not known."""
    with contextlib.suppress(OSError, ValueError, LookupError), open("/proc/meminfo") as file:
        amounts = dict(line.split(":") for line in file)
        return int(amounts["MemAvailable"].split()[0]) / int(amounts["MemTotal"].split()[0])
    return 1.0
