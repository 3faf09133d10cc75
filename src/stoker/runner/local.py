"""Run attempts as processes of this machine, through workers that survive the engine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import shutil
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stoker.core.errors import StokerError
from stoker.core.launch import LaunchOrder
from stoker.core.spec import LIMIT_FIELDS, JobSpec
from stoker.core.warm import Template
from stoker.runner import journal, processes
from stoker.runner.forkserver_client import Forkserver, Shared
from stoker.runner.inherited import INHERITED, MARKER
from stoker.runner.interface import Event, ShortOfResources, WorkerLost
from stoker.runner.processes import ALLOCATION
from stoker.runner.spawn import is_shortage
from stoker.runner.templates import Templates
from stoker.runner.worker import OUTDATED
from stoker.runner.worker_link import LOCK, WorkerLink, lives

COPIES_LIMIT = 20
"""Copies of damaged journals that are kept."""
LOOK_SECONDS = 5.0
"""Least seconds between two looks for stopped workers; what is stopped at both is continued."""
STOPPED_SECONDS = 600.0
"""For how long users are told of a stopped worker."""
REMEMBERED_SECONDS = 3600.0
"""For how long users are told of a damaged journal after its worker is gone."""

_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class LocalRunner:
    """The workers of one engine; a `WorkerRunner`."""

    def __init__(
        self,
        directory: Path,
        engine: str,
        *,
        share_output: bool = False,
        share_input: bool = False,
        forkserver: Forkserver | None = None,
        copies: Path | None = None,
        tied_to: str = "",
    ) -> None:
        """`copies` is a directory for copies of damaged journals.

        `tied_to` names the allocation with which the engine and all attempts end; without it they outlive the engine.
        """
        self._copies = copies
        self._complaints: dict[str, tuple[float, str]] = {}
        """By worker, what is wrong with it or its journal, and until when users are told (monotonic)."""
        self._look_at = 0.0
        self._doubtful: set[str] = set()
        """Workers that were stopped, or of unknown process, at the last look."""
        self._directory = directory
        self._engine = engine
        self._shared = Shared(input=share_input, output=share_output)
        self._count = 0
        self._marks = {ALLOCATION: tied_to} if tied_to else {}
        self._forkserver = forkserver or Forkserver(self._marks)
        self._templates = Templates(self._marks)
        self._links: dict[str, WorkerLink] = {}
        self._ended: dict[str, WorkerLink] = {}
        """Workers whose connection closed: dead, or about to be."""
        self._unsent: dict[str, WorkerLink] = {}
        self._selector = selectors.EpollSelector()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def fileno(self) -> int:
        """Readable when a worker has a hint."""
        return self._selector.fileno()

    @property
    def next_cleanup(self) -> float | None:
        """Seconds after which `poll` must check a closed worker although no hint comes; None is never."""
        now = time.monotonic()
        return min((max(0.0, link.check_at - now) for link in self._ended.values()), default=None)

    # -- verbs -----------------------------------------------------------------------------------

    def refusal(self, template: Template) -> str:
        """Why a job that wants the template starts cold; empty if workers can have its modules."""
        return self._templates.refusal(template)

    def start_worker(self, template: Template | None = None) -> str:
        """Start a worker, which has the modules of a template, and return its name."""
        self._count += 1
        folder = self._directory / f"{self._engine}-{self._count}"
        try:
            folder.mkdir(mode=0o700)
            self._watch(self._establish(folder, template))
        except StokerError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            kind = ShortOfResources if is_shortage(error) else StokerError
            raise kind(
                f"cannot prepare a worker in {self._directory}: {error.strerror}",
                "check for a full disk, or a limit on processes or open files (ulimit)",
            ) from error
        return folder.name

    def give_lease(self, worker: str, path: str, descriptor: int) -> None:
        """Pass a locked descriptor on; from now on the lease lives as long as the worker holds it."""
        self._send(worker, {"do": "lease", "path": path}, descriptor)

    def start(self, worker: str, order: LaunchOrder, variables: Mapping[str, str]) -> None:
        """Queue an attempt for the worker, behind those it may already have; sent with the next flush.

        Nothing is sent to a dead worker; its loss is reported by `poll`.
        """
        if link := self._links.get(worker):
            link.put_environment(order.environment, variables)
            extra = {**order.extra, **self._marks, MARKER: worker}
            structs = {"signal": _plain(order.signal), "warm": _plain(order.warm)}
            fields = {**msgspec.structs.asdict(order), **structs, "extra": extra, "tied": bool(self._marks)}
            link.put({"do": "run", **fields})
            link.expect(order.attempt)
            self._unsent[worker] = link

    def flush(self) -> None:
        """Send queued attempts: several for one worker are one message."""
        for link in self._unsent.values():
            link.flush()
            self._watch_writing(link)
        self._unsent.clear()

    def stop(self, worker: str, attempt: str, grace: float, signal_number: int = 0) -> None:
        """Send TERM or another signal now, and KILL after the grace, to every process of the attempt.

        What a dead worker left is killed anyway, now at once.
        """
        if link := self._ended.get(worker):
            link.check_at = 0.0
        self._send(worker, {"do": "stop", "attempt": attempt, "grace": grace, "signal": signal_number})

    def give_way(self, worker: str, attempt: str, signal_number: int, seconds: float, *, saves: bool) -> None:
        """Ask an attempt to leave; the worker keeps the time, since the engine may die."""
        order = {"do": "give way", "attempt": attempt, "signal": signal_number, "seconds": seconds, "saves": saves}
        self._send(worker, order)

    def set_limits(self, worker: str, attempt: str, spec: JobSpec) -> None:
        """Give an attempt the limits of a spec; its time limit counts from its start."""
        limits = {name: getattr(spec, name) for name in LIMIT_FIELDS}
        self._send(worker, {"do": "limit", "attempt": attempt, **limits, "signal": _plain(spec.signal)})

    def recall(self, worker: str) -> None:
        """Ask for the attempts back that have not started."""
        self._send(worker, {"do": "recall"})

    def release(self, worker: str) -> None:
        """Let an idle worker release its leases."""
        self._send(worker, {"do": "release"})

    def stop_worker(self, worker: str) -> None:
        """Let the worker exit when it is idle."""
        self._send(worker, {"do": "leave"})

    def account(self, worker: str, attempt: str) -> None:
        """Ask for an attempt that may never have been sent: a worker that does not know it returns it."""
        if link := self._links.get(worker) or self._ended.get(worker):
            link.expect(attempt)
        self._send(worker, {"do": "account", "attempt": attempt})

    def poll(self) -> Iterator[tuple[str, Event]]:
        """Events since the last call, for each worker in order."""
        self.flush()
        for key, _ in self._selector.select(0):
            yield from self._read(key.data)
        now = time.monotonic()
        if now >= self._look_at:
            self._continue_stopped(now)
        for ended in self._templates.look():
            self._retire_template(ended)
        for link in [link for link in self._ended.values() if link.check_at <= now]:
            yield from self._clean_up(link)

    def process_of(self, worker: str, attempt: str) -> int | None:
        """The first process of a worker's newest attempt, if that is the one asked for and it is known."""
        link = self._links.get(worker) or self._ended.get(worker)
        born = link.born if link is not None else None
        return born.pid if born is not None and born.attempt == attempt else None

    def root_of(self, worker: str) -> int | None:
        """The worker's own process, the ancestor of all that it runs, once it has run something."""
        link = self._links.get(worker) or self._ended.get(worker)
        return link.born.worker or None if link is not None and link.born is not None else None

    def journal_is_full(self, worker: str) -> bool:
        """Whether the worker's journal is nearly full, so that another worker should replace it."""
        return worker in self._links and self._links[worker].worn_out

    @property
    def survivors(self) -> Mapping[int, str]:
        """Jobs whose processes outlive their dead worker, each with the reason why they are not over."""
        return {job: why for link in self._ended.values() for job, why in link.survivors.items()}

    @property
    def trouble(self) -> str:
        """Processes that outlive their workers, damaged journals, and workers that were stopped."""
        now = time.monotonic()
        self._complaints = {worker: complaint for worker, complaint in self._complaints.items() if complaint[0] > now}
        survivors = [f"job {job}: {why}" for job, why in self.survivors.items()]
        return "; ".join([*survivors, *(text for _, text in self._complaints.values())])

    def adopt(self, worker: str) -> bool:
        """Take over a worker of a dead engine; its journal is read from the start. False if it left no trace."""
        folder = self._directory / worker
        link = _opened(folder)
        alive = link.alive()
        if link.reader is None and not alive and link.leftovers() is None:
            return False
        self._ended[worker] = link
        if alive:
            self._reconnect(link)
        return True

    def is_dead(self, worker: str) -> bool:
        """Whether a worker of any engine is dead, or never existed."""
        return not lives(self._directory / worker)

    def forget(self, worker: str) -> None:
        """Remove a dead worker's folder, once all its events are recorded."""
        shutil.rmtree(self._directory / worker, ignore_errors=True)

    def close(self) -> None:
        """Leave: busy workers go on, idle ones exit."""
        for link in [*self._links.values(), *self._ended.values()]:
            link.close()
        self._selector.close()
        self._templates.close()
        self._forkserver.close()

    # -- messages --------------------------------------------------------------------------------

    def _send(self, worker: str, order: Mapping[str, Any], descriptor: int | None = None) -> None:
        """Send an order; one whose connection is closed cannot get it any more."""
        link = self._links.get(worker)
        if link is not None:
            link.put(order, descriptor)
            link.flush()
            self._watch_writing(link)
        elif descriptor is not None:
            os.close(descriptor)

    def _watch_writing(self, link: WorkerLink) -> None:
        """Wait for the worker's hints and, while orders did not fit into its socket, for room in that."""
        if link.connection is not None and link.congested != link.waits_to_write:
            link.waits_to_write = link.congested
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.congested else 0)
            self._selector.modify(link.connection, events, link)

    def _watch(self, link: WorkerLink) -> None:
        self._links[link.name] = link
        if link.connection is not None:
            self._selector.register(link.connection, selectors.EVENT_READ, link)

    def _read(self, link: WorkerLink) -> Iterator[tuple[str, journal.Fact]]:
        connection = link.connection
        if connection is None:
            return
        try:
            hint = connection.recv(4096)
        except BlockingIOError:
            hint = b"?"
        except OSError:
            hint = b""
        if OUTDATED in hint:
            self._retire_template(link.template)
            link.outdated = True
        yield from self._news(link)
        if not hint:
            self._selector.unregister(connection)
            link.hang_up()
            self._ended[link.name] = self._links.pop(link.name)
            return
        link.flush()
        self._watch_writing(link)

    def _clean_up(self, link: WorkerLink) -> Iterator[tuple[str, Event]]:
        """Report a worker with a closed connection as lost when its lock is free and its processes are gone."""
        link.check_later()
        if link.alive():
            self._reconnect(link)
            return
        yield from self._news(link)
        if (left := link.leftovers()) is not None:
            processes.send(left, signal.SIGKILL)
            return
        yield from ((link.name, record) for record in link.last_news())
        del self._ended[link.name]
        link.close()
        yield link.name, WorkerLost(self._forkserver.failure(link.folder), bool(link.damage), bool(link.template))

    def _retire_template(self, key: str) -> None:
        """Let a template end, and its workers when they are idle."""
        self._templates.retire(key)
        for link in [link for link in self._links.values() if key and link.template == key]:
            link.outdated = True
            if link.is_idle:
                self._send(link.name, {"do": "leave"})

    def _continue_stopped(self, now: float) -> None:
        """Let stopped workers go on: each would keep its job, its GPUs and the time limit from ending for good."""
        self._look_at = now + LOOK_SECONDS
        before, self._doubtful = self._doubtful, set()
        for link in self._links.values():
            stopped = link.stopped(search=link.name in before)
            if stopped is not None or link.is_nameless:
                self._doubtful.add(link.name)
            if stopped is not None and link.name in before:
                processes.send([stopped], signal.SIGCONT)
                text = (
                    f"worker {link.name} (process {stopped.pid}) was stopped by a signal or a debugger, and continued"
                )
                self._complaints[f"{link.name} stopped"] = now + STOPPED_SECONDS, text

    def _news(self, link: WorkerLink) -> Iterator[tuple[str, journal.Fact]]:
        yield from ((link.name, record) for record in link.news())
        if link.damage and not link.retired:
            self._retire(link)

    def _retire(self, link: WorkerLink) -> None:
        """Keep a copy of a damaged journal, and let its worker leave once it is idle: its last lines tell the rest."""
        link.retired = True
        copy = self._copy(link)
        text = f"the journal of worker {link.name} is damaged ({link.damage}){copy}; its jobs end when the worker exits"
        self._complaints[link.name] = time.monotonic() + REMEMBERED_SECONDS, text
        self._send(link.name, {"do": "leave"})

    def _copy(self, link: WorkerLink) -> str:
        """Copy the journal, and return where to as a part of a sentence."""
        if self._copies is None or link.reader is None:
            return ""
        try:
            self._copies.mkdir(mode=0o700, parents=True, exist_ok=True)
            if len(os.listdir(self._copies)) >= COPIES_LIMIT:
                return ""
            path = self._copies / f"{link.name}.journal"
            path.write_bytes(link.reader.contents())
        except OSError:  # it only serves inspection
            return ""
        return f", a copy is {path}"

    def _reconnect(self, link: WorkerLink) -> None:
        """Connect to a living worker again; one that is just exiting does not answer."""
        with contextlib.suppress(OSError):
            link.connection = _connect(link.folder)
            del self._ended[link.name]
            self._watch(link)
            link.retired = False  # the leave order needs the connection

    # -- starting a worker -----------------------------------------------------------------------

    def _establish(self, folder: Path, template: Template | None) -> WorkerLink:
        """Make a worker's lock, journal and socket, connect to the socket, and only then fork the worker.

        It inherits all of them, so there is no moment at which it lives without its lock.
        """
        with contextlib.ExitStack() as inherited:
            lock, jobs = (_inherited(inherited, _locked_file(folder / name)) for name in (LOCK, INHERITED))
            record = _inherited(inherited, journal.create(str(folder / "journal")))
            listener = inherited.enter_context(_listen(folder))
            link = WorkerLink(folder, journal.JournalReader(str(folder / "journal")))
            try:
                link.connection = _connect(folder)
                descriptors = [listener.fileno(), lock, record, jobs]
                if template is not None and self._templates.fork(template, folder, descriptors, self._shared):
                    link.template = template.key
                else:
                    self._forkserver.fork(folder, descriptors, self._shared)
            except BaseException:
                link.close()
                raise
        return link


def _plain(value: msgspec.Struct | None) -> dict[str, Any] | None:
    return None if value is None else msgspec.structs.asdict(value)


def _opened(folder: Path) -> WorkerLink:
    """The link of a worker that another engine started, whatever its folder is like."""
    try:
        return WorkerLink(folder, journal.JournalReader(str(folder / "journal")))
    except OSError as error:
        return WorkerLink(folder, None, error.strerror or str(error))


def _locked_file(path: Path) -> int:
    descriptor = os.open(path, _NEW_FILE, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _inherited(stack: contextlib.ExitStack, descriptor: int) -> int:
    """Close the descriptor here once the worker has inherited it."""
    stack.callback(os.close, descriptor)
    return descriptor


def _listen(folder: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short_path(folder) as short:
            listener.bind(f"{short}/socket")
        listener.listen(4)
    except OSError:
        listener.close()
        raise
    return listener


def _connect(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)  # a worker that was sent SIGSTOP must not stop the engine
    try:
        with _short_path(folder) as short:
            connection.connect(f"{short}/socket")
    except OSError:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """A name of the folder that fits into a socket address (107 bytes), however long its path is."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
