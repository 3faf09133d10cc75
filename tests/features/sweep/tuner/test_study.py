"""The Optuna study of a sweep: what is asked and told, crashes, damage, and what is refused."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState

from stoker.core.errors import UsageError
from stoker.core.spec import Command
from stoker.features.sweep.model.grammar import parse_space
from stoker.features.sweep.model.objective import Objective
from stoker.features.sweep.model.record import SweepSpec
from stoker.features.sweep.model.space import Space, is_active
from stoker.features.sweep.tuner.study import Study, StudyRecord, made_sampler
from stoker.features.sweep.tuner_job import StudyLost
from support.disk import small_disk

LOSS = Objective("loss")
PLAIN = parse_space(["lr=1e-5..1e-1:log", "depth=2..8", "act=relu,gelu", "seed=7"])
CONDITIONAL = parse_space(["opt=sgd,adam", "momentum=0.5..0.9 if opt=sgd"])
UNION = parse_space(["m=a", "x=1,2", "+", "m=b", "x=3..5", "y=0.1,0.2"])


def opened(path: Path, space: Space = PLAIN, objectives: Sequence[Objective] = (LOSS,), method: str = "tpe") -> Study:
    """A study of this space."""
    return Study(path, "sweep-1", SweepSpec(space=space, command=Command(("true",)), method=method), objectives)


@pytest.mark.parametrize("space", [PLAIN, CONDITIONAL, UNION])
@pytest.mark.parametrize("method", ["tpe", "cmaes"])
def test_points_are_in_the_space(space: Space, method: str, tmp_path: Path) -> None:
    """Also with conditions and unions; constants are part of each point, and numbers have few digits."""
    study = opened(tmp_path / "study", space, method=method)
    for number in range(12):
        asked, params = study.ask()
        product = next(one for one in space.products if {p.name for p in one.parameters} >= set(params))
        assert asked == number
        assert set(params) == {one.name for one in product.parameters if is_active(one, params)}
        assert all(len(repr(value)) < 12 for value in params.values())
        study.tell(StudyRecord(number, params, values=(float(number),)))
    assert not study.unfinished()


def test_what_a_killed_process_left_is_completed(tmp_path: Path) -> None:
    """A point that was chosen in part, a line that was written in part, and points without a result."""
    study = opened(tmp_path / "study")
    study.ask()
    path = tmp_path / "study"
    lines = path.read_text().splitlines(keepends=True)
    started = next(place for place, line in enumerate(lines) if '"op_code":4' in line)
    path.write_text("".join(lines[: started + 2]) + lines[-1][:20])
    again = opened(path)
    assert list(again.unfinished()) == [0]
    params = again.unfinished()[0]
    assert set(params) == {"lr", "depth", "act", "seed"}
    assert again.unfinished()[0] == params, "it stays what it is"
    again.tell(StudyRecord(0, params, values=(1.0,)))
    assert [trial.state for trial in opened(path).trials()] == [TrialState.COMPLETE]


def test_a_lost_study_is_made_again_from_the_queue(tmp_path: Path) -> None:
    """With all results, curves and numbers; also points that have no result yet."""
    path = tmp_path / "study"
    study = opened(path)
    points = [study.ask() for _ in range(4)]
    path.unlink()
    with pytest.raises(StudyLost):
        study.ask()
    told = [
        StudyRecord(0, points[0][1], values=(0.5,), curve=((1.0, 0.9), (2.0, 0.5))),
        StudyRecord(1, points[1][1], values=(0.7,), curve=((1.0, 0.7),), stopped=True),
        StudyRecord(2, points[2][1], message="exit 1"),
        StudyRecord(3, points[3][1], over=False),
    ]
    again = opened(path)
    assert again.restore(told) == 4
    assert again.restore(told) == 0
    states = [TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING]
    assert [trial.state for trial in again.trials()] == states
    assert again.trials()[0].intermediate_values == {1: 0.9, 2: 0.5}
    assert again.unfinished() == {3: points[3][1]}
    assert again.ask()[0] == 4


@pytest.mark.parametrize("share", [0.0, 0.3, 0.66, 0.9])
def test_a_study_that_is_cut_is_made_again(share: float, tmp_path: Path) -> None:
    """The process that has it open notices at once, and points that are left keep their numbers."""
    path = tmp_path / "1.study"
    study = opened(path)
    points = [study.ask() for _ in range(4)]
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(StudyLost, match="was cut"):
        study.tell(StudyRecord(0, points[0][1], values=(0.5,)))
    again = opened(path)
    again.restore([StudyRecord(number, params, values=(float(number),)) for number, params in points])
    for number in again.unfinished():
        again.tell(StudyRecord(number, points[number][1], values=(float(number),)))
    assert [trial.value for trial in opened(path).trials()] == [0.0, 1.0, 2.0, 3.0]


def test_a_point_keeps_the_parameters_that_its_job_has(tmp_path: Path) -> None:
    """Wherever the study was cut: the queue tells what was chosen, and nothing is chosen a second time."""
    path = tmp_path / "study"
    study = opened(path)
    points = dict(study.ask() for _ in range(3))
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in range(len(lines)):
        path.write_bytes(b"".join(lines[:kept]))
        again = opened(path)
        again.restore([StudyRecord(number, params, over=False) for number, params in points.items()])
        assert again.unfinished() == points


def test_a_line_of_another_process_that_is_not_whole(tmp_path: Path) -> None:
    """The study is lost, not the tuner; the file is put aside."""
    path = tmp_path / "1.study"
    study = opened(path)
    with path.open("a") as file:
        file.write('{"op_code":4,"worker\n{"op_code":4}\n')
    with pytest.raises(StudyLost, match="not whole"):
        study.ask()
    assert opened(path).trials() == []
    assert (tmp_path / "1.damaged").exists()


def test_a_disk_that_is_nearly_full_gets_whole_lines_only(tmp_path: Path) -> None:
    """A point that has no room is not in the file in part; with room, the study goes on."""
    with small_disk(tmp_path / "small", "size=64k") as disk:
        study = opened(disk / "study")
        (disk / "ballast").write_bytes(b"x" * 40_000)
        with pytest.raises(OSError, match="No space"):
            deque((study.ask() for _ in range(1000)), maxlen=0)
        assert (disk / "study").read_bytes().endswith(b"\n")
        (disk / "ballast").unlink()
        again = opened(disk / "study")
        assert len(again.unfinished()) == len(again.trials())
        assert again.ask()[0] == len(again.trials()) - 1


def test_a_result_is_told_once(tmp_path: Path) -> None:
    """A restarted process may tell it again."""
    study = opened(tmp_path / "study")
    _, params = study.ask()
    study.tell(StudyRecord(0, params, values=(0.5,), curve=((1.0, 0.5),)))
    study.tell(StudyRecord(0, params, values=(0.1,)))
    assert study.trials()[0].value == 0.5


def test_others_can_open_the_file(tmp_path: Path) -> None:
    """It is an ordinary journal of Optuna, as optuna-dashboard reads it."""
    study = opened(tmp_path / "study", objectives=(LOSS, Objective("acc", "max")))
    _, params = study.ask()
    study.tell(StudyRecord(0, params, values=(0.5, 0.9)))
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "study")))
    (found,) = optuna.get_all_study_names(storage)
    assert optuna.load_study(study_name=found, storage=storage).best_trials[0].values == [0.5, 0.9]


def test_the_study_of_another_space_is_refused(tmp_path: Path) -> None:
    """The message shows both."""
    opened(tmp_path / "study")
    with pytest.raises(UsageError) as error:
        opened(tmp_path / "study", parse_space(["lr=1e-5..1:log", "depth=2..8", "act=relu,gelu", "seed=7"]))
    assert "it has lr=1e-05..0.1:log" in error.value.message
    assert "this sweep has lr=1e-05..1" in error.value.message
    with pytest.raises(UsageError, match="acc:max"):
        opened(tmp_path / "study", objectives=(Objective("acc", "max"),))


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with the line to type."""
    monkeypatch.setattr("stoker.features.sweep.tuner.study.find_spec", lambda name: None)
    for method, package in {"gp": "torch and scipy", "cmaes": "cmaes"}.items():
        with pytest.raises(UsageError, match=f"needs {package}") as error:
            made_sampler(method, 0, 1)
        assert "pip install" in error.value.hint


def test_cmaes_has_one_objective() -> None:
    """For several objectives there is tpe."""
    with pytest.raises(UsageError, match="one objective"):
        made_sampler("cmaes", 0, 2)


@pytest.mark.parametrize("damage", [b"not json\n", b"{}\n", b"[1]\n", b"\0\0\0\n"])
def test_a_damaged_file_is_put_aside(damage: bytes, tmp_path: Path) -> None:
    """And the study is made again; the damaged file is kept."""
    path = tmp_path / "1.study"
    _, params = opened(path).ask()
    path.write_bytes(damage + path.read_bytes())
    again = opened(path)
    assert again.restore([StudyRecord(0, params, values=(1.0,))]) == 1
    assert (tmp_path / "1.damaged").read_bytes().startswith(damage)


def test_a_restart_does_not_repeat_points(tmp_path: Path) -> None:
    """The source of randomness continues; a repeated one would choose the first points again."""
    first = opened(tmp_path / "study").ask()[1]
    second = opened(tmp_path / "study").ask()[1]
    assert json.dumps(first) != json.dumps(second)
