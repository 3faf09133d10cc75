"""Another version of the program beside running jobs: upgrade, downgrade, and both at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.background import Background
from support.cli import Stoker, until
from support.storm.witness import read_witness, write_script
from support.versions import BEFORE_SCHEMA_4, code_of, missing_history
from support.wait import wait_until


@pytest.fixture(scope="module", params=[BEFORE_SCHEMA_4], ids=["before-schema-4"])
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which `stoker` is an older version."""
    if why := missing_history(request.param):
        pytest.skip(why)
    return {"PYTHONPATH": str(code_of(request.param, tmp_path_factory.mktemp("older")))}


def counted(number: int, gate: str, code: int) -> str:
    """Shell text of a job that writes down its start and its end."""
    return f"echo start {number} >> runs; {until(gate)}; echo end {number} >> runs; exit {code}"


def submit(stoker: Stoker, text: str, **environment: str) -> int:
    """Type a submit."""
    answer = stoker.typed(f"stoker submit --parsable '{text}'", **environment)
    assert answer.code == 0, answer.err
    return int(answer.out)


def files(queue: Background) -> dict[str, bytes]:
    """The files of the database; the index of its log is rebuilt by each reader."""
    return {path.name: path.read_bytes() for path in queue.paths.state.glob("queue.db*") if path.suffix != ".db-shm"}


def test_an_upgrade_takes_over_running_and_waiting_jobs(background: Background, older: dict[str, str]) -> None:
    """Jobs of the old engine end once with their own codes, as does what the new version submits beside it."""
    ids = [submit(background, counted(number, "gate", 10 + number), **older) for number in range(4)]
    background.wait_lines("runs", 2)
    ids.append(submit(background, counted(4, "gate", 14)))
    background.open_gate("gate")
    background.wait_over(*ids)
    assert [background.ended(job).code for job in ids] == [10, 11, 12, 13, 14]
    assert sorted(background.lines("runs")) == sorted(f"{word} {at}" for word in ("start", "end") for at in range(5))


def test_a_downgrade_is_refused_and_harms_nothing(background: Background, older: dict[str, str]) -> None:
    """The older version says that the queue is newer and changes no byte of it; what runs goes on."""
    running, waiting = background.submit(counted(0, "gate", 3), counted(1, "gate", 4))
    background.wait_lines("runs", 2)
    background.kill_engine()
    before = files(background)
    for words in ("submit true", "status", "engine start", f"cancel {running}"):
        answer = background.typed(f"stoker {words}", **older)
        assert answer.code != 0
        assert "newer" in answer.err
    assert files(background) == before
    background.start_engine()
    background.open_gate("gate")
    background.wait_over(running, waiting)
    assert [background.ended(job).code for job in (running, waiting)] == [3, 4]
    assert len(background.lines("runs")) == 4


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Stoker, Stoker]]:
    """Two queues with one ledger, whose jobs work in one directory."""
    with contextlib.ExitStack() as closing:
        made = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            stoker = closing.enter_context(contextlib.closing(Stoker(tmp_path / name)))
            stoker.cwd = tmp_path
            stoker.environment |= {"STOKER_LEDGER": str(tmp_path / "ledger"), "STOKER_DEVICES": "a,b"}
            made.append(stoker)
        yield made[0], made[1]


def test_two_versions_at_once_never_give_one_gpu_twice(
    two: tuple[Stoker, Stoker], tmp_path: Path, older: dict[str, str]
) -> None:
    """Engines of both versions share GPUs by one ledger; the kernel would see two jobs on one."""
    write_script(tmp_path)
    for stoker, first, version in ((two[0], 0, {}), (two[1], 100, older)):
        answer = stoker.typed(
            f"stoker submit -a 0-7 'exec sh job.sh $(({first} + STOKER_JOB_ID)) 0 0.15 plain'", **version
        )
        assert answer.code == 0, answer.err
    # A job that finds the lock of its GPU held writes nothing.
    wait_until(lambda: len({each.number for each in read_witness(tmp_path) if each.word == "end"}) == 16)
    assert len([each for each in read_witness(tmp_path) if each.word == "start"]) == 16
