"""A daemon is made ready for a client without waiting, and stopped when the last client is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.devices.mps.client import Client, PendingClient
from stoker.devices.mps.daemon import DaemonPaths, MpsTrouble, lock_client, lock_supervisor, prepare, wait_last_client
from stoker.devices.mps.supervisor import MpsDaemon
from support.mps import GPU, client_words, log_of, scripted, scripted_smi
from support.users import reachable_directory
from support.wait import PATIENCE_SECONDS, ending, wait_until


class Bench:
    """One GPU's daemon, and clients that wait for it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.paths = DaemonPaths(str(directory / "mps/gpu"))
        prepare(self.paths)
        self.program = scripted(directory)
        self.environment = {**os.environ, "PATH": f"{directory}{os.pathsep}{os.environ['PATH']}"}
        self.control = MpsDaemon(self.program, self.paths, self.environment)

    def pending(self, mood: str = "", *, exclusive: bool = False) -> PendingClient:
        """A client that waits for its daemon."""
        environment = {**self.environment, "SCRIPTED_MPS": mood}
        return PendingClient(self.program, self.paths, GPU, environment, exclusive=exclusive)

    def client(self, mood: str = "", *, exclusive: bool = False) -> Client:
        """A client that was admitted."""
        pending = self.pending(mood, exclusive=exclusive)
        found: list[Client] = []

        def answered() -> bool:
            found.extend(filter(None, [pending.poll(time.monotonic())]))
            return bool(found)

        wait_until(answered)
        return found[0]

    def wait_stopped(self) -> None:
        """Wait until the daemon and its supervisor have ended."""
        wait_until(lambda: self.control.holder() is None)
        wait_until(self._is_free)

    def _is_free(self) -> bool:
        lock = lock_supervisor(self.paths)
        if lock is not None:
            os.close(lock)
        return lock is not None


@pytest.fixture
def bench() -> Iterator[Bench]:
    with reachable_directory() as directory:
        made = Bench(directory)
        yield made
        if (holder := made.control.holder()) is not None:
            with suppress(ProcessLookupError):
                os.kill(holder, signal.SIGKILL)
        os.close(wait_last_client(made.paths))


def test_first_and_last(bench: Bench) -> None:
    """The daemon starts for the first client, serves all, and leaves after the last, in whatever order they go."""
    clients = [bench.client() for _ in range(3)]
    assert log_of(bench.paths).count("Starting control daemon") == 1
    for client in clients[1:]:
        os.close(client.lock)
        assert bench.control.alive()
    os.close(clients[0].lock)
    bench.wait_stopped()


def test_killed(bench: Bench) -> None:
    """A daemon that was killed is started again for the next client, and stopped after the last all the same."""
    first = bench.client()
    holder = bench.control.holder()
    assert holder is not None
    os.kill(holder, signal.SIGKILL)
    second = bench.client()
    assert bench.control.alive()
    os.close(first.lock)
    os.close(second.lock)
    bench.wait_stopped()


def test_holder_is_killed(bench: Bench) -> None:
    """A client that dies by any signal counts no more: the kernel lets go for it."""
    client = bench.client()
    with ending(subprocess.Popen(["sleep", "1000"], pass_fds=[client.lock])) as process:
        os.close(client.lock)
        assert bench.control.alive()
        process.kill()
    bench.wait_stopped()


def test_not_wanted_any_more(bench: Bench) -> None:
    """A client that is given up leaves no daemon behind."""
    pending = bench.pending()
    pending.poll(time.monotonic())
    pending.close()
    bench.wait_stopped()


def test_while_one_is_being_stopped(bench: Bench) -> None:
    """A client that comes while a daemon is stopped waits until that is over."""
    stopping = wait_last_client(bench.paths)
    pending = bench.pending()
    assert pending.poll(0.0) is None
    assert pending.poll(1.0) is None
    assert lock_client(bench.paths) is None
    os.close(stopping)
    pending.close()


def test_refused(bench: Bench) -> None:
    """A daemon that does not start is an error after a few attempts; meanwhile the trouble is known."""
    pending = bench.pending("refuse")
    with pytest.raises(MpsTrouble, match="does not start: Cannot access"):
        wait_until(lambda: pending.poll(time.monotonic()) and False)
    assert pending.trouble is not None
    bench.wait_stopped()


def test_exclusive(bench: Bench) -> None:
    """The compute mode is changed while there is a daemon, and changed back when that has left."""
    scripted_smi(bench.directory)
    client = bench.client(exclusive=True)
    assert client.note == ""
    os.close(client.lock)
    bench.wait_stopped()
    asked = (bench.directory / "asked").read_text().splitlines()
    assert [line.split()[2:] for line in asked] == [
        ["--query-gpu=compute_mode", "--format=csv,noheader"],
        ["-c", "EXCLUSIVE_PROCESS"],
        ["-c", "DEFAULT"],
    ]
    assert all(line.startswith(f"-i {GPU} ") for line in asked)


def test_exclusive_already(bench: Bench) -> None:
    """A mode that was chosen before is left alone."""
    scripted_smi(bench.directory, "echo Exclusive_Process")
    client = bench.client(exclusive=True)
    os.close(client.lock)
    bench.wait_stopped()
    assert len((bench.directory / "asked").read_text().splitlines()) == 1


def test_not_permitted(bench: Bench) -> None:
    """Where the mode cannot be changed, that is noted, and all else goes on."""
    scripted_smi(
        bench.directory, 'case "$*" in *query*) echo Default;; *) echo "Insufficient Permissions"; exit 4;; esac'
    )
    client = bench.client(exclusive=True)
    assert client.note == f"cannot change the compute mode of {GPU}: Insufficient Permissions"
    os.close(client.lock)
    bench.wait_stopped()
    assert "DEFAULT" not in (bench.directory / "asked").read_text()


def test_terminate(bench: Bench) -> None:
    """The command that ends the work of a client ends that of no other."""
    client = bench.client()
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": bench.paths.pipe}
    paths = [bench.directory / "one", bench.directory / "two"]
    working = [subprocess.Popen(client_words(path), env=environment, stdout=subprocess.DEVNULL) for path in paths]
    for path in paths:
        wait_until(path.exists)
    subprocess.run([*client.mps_terminate, str(working[0].pid), "1"], check=True, env={}, timeout=60)
    terminated = [line.split()[-1] for line in log_of(bench.paths).splitlines() if "terminate_client" in line]
    assert terminated == [str(working[0].pid)]
    for process in working:
        process.kill()
        process.wait(PATIENCE_SECONDS)
    os.close(client.lock)
    bench.wait_stopped()
