"""The MPS control program, NVIDIA's own and a scripted one: how it is started, asked and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.devices.mps.daemon import DaemonPaths, MpsTrouble, prepare
from stoker.devices.mps.supervisor import Deadlines, MpsDaemon
from support.mps import GPU, client_words, log_of, perform, real, scripted
from support.mps.dialogues import DIALOGUES, SHORT
from support.users import made_users, reachable_directory, run_as
from support.wait import PATIENCE_SECONDS, ending, line_from, wait_until

each_dialogue = pytest.mark.parametrize("dialogue", DIALOGUES, ids=lambda each: each.__name__)


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for that of a socket."""
    with reachable_directory() as directory:
        yield directory
        if (left := MpsDaemon("", DaemonPaths(str(directory / "mps/gpu")), {}).holder()) is not None:
            os.kill(left, signal.SIGKILL)  # of a test that failed


@each_dialogue
def test_scripted(dialogue: Callable[[str, str], None], short: Path) -> None:
    """The scripted program does what NVIDIA's does."""
    perform(dialogue, scripted(short), short / "mps/gpu")


@each_dialogue
def test_real(dialogue: Callable[[str, str], None], short: Path) -> None:
    """NVIDIA's program, as an ordinary user: as root it would make device files."""
    program = real(short)
    if os.geteuid() != 0:
        perform(dialogue, program, short / "mps/gpu")
        return
    short.chmod(0o1777)
    with made_users(1) as (user,):
        run_as(user, dialogue, program, short / "mps/gpu")


class TestTrouble:
    """Programs that do not do what they should."""

    def test_hangs(self, short: Path) -> None:
        """A program that never returns takes no longer than the deadlines."""
        control = _control(short, "hang")
        begun = time.monotonic()
        assert not control.alive()
        with pytest.raises(MpsTrouble, match="does not start: the program hangs"):
            control.start(GPU)
        control.quit()
        assert control.terminate({1}, 0.3) == []
        assert time.monotonic() - begun < PATIENCE_SECONDS

    def test_refuses(self, short: Path) -> None:
        """The error has what the program says when it does not start the daemon."""
        with pytest.raises(MpsTrouble, match="does not start: Cannot access CUDA_MPS_PIPE_DIRECTORY="):
            _control(short, "refuse").start(GPU)

    def test_deaf(self, short: Path) -> None:
        """A daemon that starts and never answers is no daemon, and is killed in the end."""
        control = _control(short, "deaf")
        with pytest.raises(MpsTrouble, match="does not answer"):
            control.start(GPU)
        assert control.holder() is not None
        control.quit()
        assert control.holder() is None

    def test_missing(self, short: Path) -> None:
        """A program that is not there is said to be missing."""
        control = MpsDaemon(str(short / "none"), DaemonPaths(str(short / "mps/gpu")), os.environ)
        with pytest.raises(MpsTrouble, match="No such file"):
            control.start(GPU)


class TestTerminate:
    """Ending the work of clients."""

    def test_only_those(self, short: Path) -> None:
        """The clients among the processes are terminated, and no others."""
        control = _control(short)
        control.start(GPU)
        with _client(short, "one") as one, _client(short, "two") as two:
            assert control.terminate({one.pid, 1}, 5.0) == []
            assert [line_from(one.stdout) for _ in range(2)] == ["welcome\n", "terminated\n"]
        log = log_of(DaemonPaths(str(short / "mps/gpu")))
        control.quit()
        assert "terminate_client" in log
        assert f" {two.pid}\n" not in "".join(line for line in log.splitlines(True) if "terminate_client" in line)

    def test_environment(self, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The daemon sees its GPU only, and nothing that the user meant for another daemon."""
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/tmp/another")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
        control = _control(short)
        control.start(GPU)
        assert f"CUDA_VISIBLE_DEVICES={GPU}\n" in log_of(DaemonPaths(str(short / "mps/gpu")))
        control.quit()


def _control(directory: Path, mood: str = "") -> MpsDaemon:
    paths = DaemonPaths(str(directory / "mps/gpu"))
    prepare(paths)
    return MpsDaemon(scripted(directory), paths, {**os.environ, "SCRIPTED_MPS": mood}, SHORT if mood else Deadlines())


@contextmanager
def _client(directory: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(directory / "mps/gpu/pipe")}
    words = client_words(directory / name)
    with ending(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)) as client:
        wait_until((directory / name).exists)
        try:
            yield client
        finally:
            client.kill()
