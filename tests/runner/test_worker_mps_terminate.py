"""The farewell of a worker: what is run before anything of an attempt is killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from stoker.core.spec import JobSpec
from stoker.runner.journal import AttemptExited, AttemptReturned, AttemptStarted
from stoker.runner.worker import MPS_TERMINATE_SECONDS
from support.local import Yard, lives, wait_pid
from support.wait import wait_until

STUBBORN = "trap '' TERM; echo $$ > pid; while :; do sleep 0.01; done"
TELLS = "#!/bin/sh\nfor pid in $*; do kill -0 $pid && echo $pid >> {0}/doomed; done\necho $# > {0}/said\n"


def test_comes_before_the_kill(works: Yard) -> None:
    """After TERM and the grace, the program is told the processes while they all live, and then they are killed."""
    worker = works.begin(STUBBORN, shell="/bin/sh", mps_terminate=_program(works, TELLS))
    pid = wait_pid(works.directory / "pid")
    works.runner.stop(worker, "1.1", 0.2)
    over = works.wait_over()
    assert (over.signal, over.why) == (signal.SIGKILL, "stopped")
    assert str(pid) in (works.directory / "doomed").read_text().split()


def test_comes_before_a_kill_without_grace(works: Yard) -> None:
    """A stop that gives no time at all leaves time for the farewell."""
    worker = works.begin(STUBBORN, shell="/bin/sh", mps_terminate=_program(works, TELLS))
    pid = wait_pid(works.directory / "pid")
    works.runner.stop(worker, "1.1", 0.0)
    assert works.wait_over().signal == signal.SIGKILL
    assert str(pid) in (works.directory / "doomed").read_text().split()


def test_holds_without_an_engine(tmp_path: Path) -> None:
    """At a time limit it is said too, also where no engine is left."""
    works = Yard(tmp_path)
    worker = works.begin(STUBBORN, shell="/bin/sh", limit=1000.0, mps_terminate=_program(works, TELLS))
    pid = wait_pid(works.directory / "pid")
    (began,) = works.records(AttemptStarted)
    works.runner.set_limits(worker, "1.1", JobSpec(limit=time.time() - began.at + 1.0, grace=0.1))
    works.runner.close()
    wait_until(lambda: not lives(pid))
    assert str(pid) in (works.directory / "doomed").read_text().split()


def test_not_needed(works: Yard) -> None:
    """Who ends at TERM needs no farewell."""
    worker = works.begin("echo $$ > pid; exec sleep 1000", shell="/bin/sh", mps_terminate=_program(works, TELLS))
    wait_pid(works.directory / "pid")
    works.runner.stop(worker, "1.1", 30.0)
    assert works.wait_over().signal == signal.SIGTERM
    assert not (works.directory / "said").exists()


def test_cannot_be_started(works: Yard) -> None:
    """A program that is not there keeps nothing alive."""
    worker = works.begin(STUBBORN, shell="/bin/sh", mps_terminate=("/nowhere/to/be/found",))
    wait_pid(works.directory / "pid")
    works.runner.stop(worker, "1.1", 0.1)
    assert works.wait_over().signal == signal.SIGKILL


def test_hangs(works: Yard) -> None:
    """A program that hangs is killed together with the rest, an impatient second stop or not; orders are heard."""
    worker = works.begin(STUBBORN, shell="/bin/sh", mps_terminate=_program(works, TELLS + "exec sleep 1000\n"))
    wait_pid(works.directory / "pid")
    asked = time.time()
    works.runner.stop(worker, "1.1", 0.0)
    wait_until((works.directory / "said").exists)
    works.runner.stop(worker, "1.1", 0.0)
    works.start(worker, "2.1", "true")
    works.runner.recall(worker)
    works.wait_back("2.1")
    over = works.wait_over()
    said = [type(record) for record in works.said[worker] if isinstance(record, AttemptReturned | AttemptExited)]
    assert said == [AttemptReturned, AttemptExited], "it heard nothing while the program hung"
    assert over.signal == signal.SIGKILL
    assert over.at - asked >= MPS_TERMINATE_SECONDS - 0.1


def _program(works: Yard, text: str) -> tuple[str, ...]:
    path = works.directory / "mps_terminate"
    path.write_text(text.format(works.directory))
    path.chmod(0o755)
    assert os.access(path, os.X_OK)
    return (str(path),)
