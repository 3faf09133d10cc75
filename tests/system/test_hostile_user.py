"""A queue beside a hostile user of the same machine."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.job import Running
from stoker.core.spec import Resources
from stoker.ledger import prepare_ledger
from support import ledger_programs as programs
from support.background import Background
from support.ledger_files import GOOD, lease_name
from support.users import User, made_users, next_line, reachable_directory, run_as, running_as


@pytest.fixture(scope="module")
def evil() -> Iterator[User]:
    with made_users(1) as (made,):
        yield made


@pytest.fixture
def ledger(background: Background) -> Iterator[Path]:
    """A ledger that root made, which the queue uses and all users can reach."""
    with reachable_directory() as directory:
        path = prepare_ledger(directory / "ledger")
        background.environment["STOKER_LEDGER"] = str(path)
        yield path


def test_work_goes_on_beside_a_hostile_user(background: Background, ledger: Path, evil: User) -> None:
    """It leaves many files and a lease with a far date; jobs, cancels and screens work."""
    run_as(evil, programs.litter, ledger, evil.uid, "1500")
    claims = '[{"name":"sim:0"},{"name":"A"}]'
    far = GOOD.replace('[{"name":"A"}]', claims).replace('"since":1.0', '"since":1e300')
    with running_as(evil, programs.plant, ledger, lease_name(evil.uid), far) as planter:
        next_line(planter)
        with_gpu, stays = background.submit("exit 3", "sleep 60")
        (without,) = background.submit("exit 4", resources=Resources(0))
        background.wait_over(without, with_gpu)
        assert [background.ended(job).code for job in (without, with_gpu)] == [4, 3]
        background.wait_word("running", stays)
        assert isinstance(background.job(stays).state, Running)
        assert background("cancel", str(stays)).code == 0
        background.wait_over(stays)
        for words in (["status"], ["status", "--json"], ["gpus"], ["gpus", "--json"], ["gpus", "--plain"]):
            shown = background(*words)
            assert (shown.code, "Traceback" in shown.err) == (0, False)
        notes = [line for line in background("engine", "check").out.splitlines() if "ignored" in line]
        assert [f"1,501 of {evil.name}" in note for note in notes] == [True]


def test_a_planted_ledger_keeps_only_gpus_waiting(background: Background, evil: User) -> None:
    """A file in the place of the ledger stops neither the engine nor jobs without GPUs; the others say why."""
    with reachable_directory() as directory:
        directory.chmod(0o1777)
        path = directory / "ledger"
        run_as(evil, programs.plant, directory, "ledger", "mine")
        background.environment["STOKER_LEDGER"] = str(path)
        (with_gpu,) = background.submit("true")
        (without,) = background.submit("true", resources=Resources(0))
        background.wait_over(without)
        status = json.loads(background("status", "--json").out)
        (why,) = [job["why"] for job in status["jobs"] if job["id"] == with_gpu]
        assert why == f"{path} is a file or a symbolic link, not a directory"
        path.unlink()
        background.wait_over(with_gpu)


def test_state_is_private(evil: User) -> None:
    """Another user cannot enter the directory of the queue, its logs and the environments of its jobs."""
    with reachable_directory() as home, contextlib.closing(Background(home)) as background:
        (job,) = background.submit("echo secret")
        background.wait_over(job)
        assert run_as(evil, programs.enter, background.paths.state) == "PermissionError\n"
        assert run_as(evil, programs.enter, background.paths.database) == "PermissionError\n"
