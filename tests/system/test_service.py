"""The engine in the background over time: it leaves when idle and loses nothing, tidies up, and finds late drivers."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from stoker.app.control.engine_process import ensure_engine
from stoker.app.control.requests import ask
from stoker.core.requests import Again
from stoker.store.engine_lock import QUEUE, engine_lives, living_engines
from stoker.store.paths import Paths
from stoker.store.status_file import read_status
from support.background import Background
from support.cli import until
from support.nvml import DRIVER_NOT_LOADED, Bench, FakeGpu, FakeMachine, compiled
from support.wait import wait_until

RACES = 24


def ensure(background: Background) -> None:
    """What every door does after it has left something in the store."""
    ensure_engine(background.paths, ["--sim", background.environment["STOKER_SIM"]], background.environment)


class TestIdle:
    """The engine leaves when there is nothing to do."""

    def test_it_leaves_and_nothing_is_left_of_it(self, background: Background) -> None:
        """After the configured time without a job; the next submit starts another."""
        background.environment["STOKER_IDLE_EXIT"] = "0.2s"
        (first,) = background.submit("true")
        background.wait_over(first)
        wait_until(lambda: not engine_lives(background.paths, QUEUE))
        wait_until(lambda: not background.job_processes())
        assert list(living_engines(background.paths)) == []
        (second,) = background.submit("exit 4")
        background.wait_over(second)
        assert background.ended(second).code == 4

    def test_a_job_that_runs_or_is_held_is_something_to_do(self, background: Background) -> None:
        """It stays while anything of the queue is not over."""
        background.environment["STOKER_IDLE_EXIT"] = "0s"
        (running,) = background.submit(until("go"))
        background.wait_word("running", running)
        pid = background.engine_process
        background.submit("true", held="held by you")
        background.open_gate("go")
        background.wait_over(running)
        (last,) = background.submit("true")
        background.wait_over(last)
        assert background.engine_process == pid

    def test_it_stays_where_it_shall(self, background: Background) -> None:
        """As under systemd, which would not start it again."""
        background.environment["STOKER_IDLE_EXIT"] = "0s"
        assert background("engine", "start", "--stay").code == 0
        pid = background.engine_process
        (job,) = background.submit("true")
        background.wait_over(job)
        assert background.engine_process == pid

    def test_a_submit_at_the_very_moment_is_not_lost(self, background: Background) -> None:
        """Jobs come at random moments around the engine's leaving; each is run once, and engines come and go."""
        background.environment["STOKER_IDLE_EXIT"] = "0s"
        chance = random.Random(3)
        engines = set()
        for number in range(RACES):
            (job,) = background.submit(f"echo {number} >> ran", start=False)
            ensure(background)
            background.wait_over(job)
            engines.add(background.engine_process)
            time.sleep(chance.random() * 0.08)
        assert list(map(int, background.lines("ran"))) == list(range(RACES))
        assert len(engines) > 2

    def test_a_request_at_the_very_moment_is_not_lost(self, background: Background) -> None:
        """Nor is what is asked of a job that was over already."""
        background.environment["STOKER_IDLE_EXIT"] = "0s"
        chance = random.Random(4)
        (job,) = background.submit("echo again >> ran")
        background.wait_over(job)
        for times in range(2, 2 + RACES // 4):
            with background.open_store() as store:
                ask(background.paths, store, [Again(job)], time.time())
            ensure(background)
            background.wait_lines("ran", times)
            background.wait_over(job)
            time.sleep(chance.random() * 0.05)


def test_old_jobs_leave_the_history(background: Background) -> None:
    """At the start of an engine, by what is configured; with the logs that Stoker chose the place for."""
    paths = background.paths
    paths.logs.mkdir()
    (old,) = background.submit("true", out=str(paths.logs / "%j.log"))
    background.wait_over(old)
    log = paths.logs / f"{old}.log"
    assert log.exists()
    background("engine", "stop")
    background.environment["STOKER_KEEP"] = "1s"
    wait_until(lambda: time.time() > background.ended(old).at + 1.5)
    background.start_engine()
    with background.open_store() as store:
        wait_until(lambda: store.job(old) is None)
    wait_until(lambda: not log.exists())
    wait_until(lambda: "1 job removed from the history" in paths.log.read_text())
    (new,) = background.submit("true")
    assert new == old + 1


class Driverless(Background):
    """A queue on a machine with the stand-in driver."""

    def __init__(self, home: Path, bench: Bench) -> None:
        super().__init__(home)
        del self.environment["STOKER_SIM"]
        self.environment |= {name: bench.environment[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")}
        self.paths = Paths(self.paths.state.with_name(self.paths.state.name.removesuffix("-simulated")))
        self.paths.state.mkdir(mode=0o700, exist_ok=True)


def test_a_driver_that_is_loaded_after_the_engine(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Until then jobs wait for the real reason, and start when the GPUs are there."""
    bench = Bench(compiled(tmp_path_factory.getbasetemp()), tmp_path / "nvml")
    bench.write(FakeMachine(init=DRIVER_NOT_LOADED))
    queue = Driverless(tmp_path, bench)
    try:
        (job,) = queue.submit("echo $CUDA_VISIBLE_DEVICES")

        def reasons() -> list[str]:
            view = read_status(queue.paths.status_file(QUEUE))
            return [str(wait.reason) for wait in view.waits] if view else []

        wait_until(lambda: any("the NVIDIA driver is not loaded" in reason for reason in reasons()))
        bench.write(FakeMachine((FakeGpu("GPU-late"),)))
        wait_until(lambda: queue.word(job) == "done", seconds=60)
        assert queue.log(job) == "GPU-late\n"
    finally:
        queue.close()


def test_a_state_directory_that_is_taken_away(background: Background) -> None:
    """The engine leaves, its job goes on, and nothing is made anew in its place."""
    (job,) = background.submit(until("go") + "; echo over > said")
    background.wait_word("running", job)
    pid = background.engine_process
    background.paths.state.rename(background.paths.state.with_name("elsewhere"))
    wait_until(lambda: not Path(f"/proc/{pid}/exe").exists(), seconds=60)
    assert not background.paths.state.exists()
    background.open_gate("go")
    wait_until((background.cwd / "said").exists)


def test_the_log_tells_of_each_engine(background: Background) -> None:
    """Why one left is in the log, whose file is private."""
    background.start_engine()
    background("engine", "stop")
    text = background.paths.log.read_text()
    assert "engine stopped; running jobs continue" in text
    assert os.stat(background.paths.log).st_mode & 0o777 == 0o600
