"""Sweeps that choose and stop trials: real engines, jobs and studies."""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from features.sweep.storm import SweepStorm
from features.sweep.sweeps import (
    LOSS,
    SPACE,
    broken_promises,
    is_over,
    start_sweep,
    stored_trials,
    sweep_status,
    wait_sweep,
)
from stoker.app.control.requests import ask
from stoker.core.requests import Cancel
from stoker.core.spec import Dependency, Resources
from stoker.features.sweep.store import all_trials, find_sweep, study_path, trial_results
from stoker.store.writer import Store
from support.background import Background
from support.cli import until
from support.disk import small_disk
from support.wait import wait_until

WHOLE = Resources(gpus=2)


def stop_early(background: Background, *ids: int) -> None:
    """Ask the engine to end jobs early, as a sweep does."""
    with background.open_store() as store:
        ask(background.paths, store, [Cancel(job, note="not good", result="stopped") for job in ids], time.time())


def test_a_job_that_is_stopped_early_did_not_fail(background: Background) -> None:
    """It gets TERM, ends as stopped also with code 0, frees its GPUs for the next job, and `wait` succeeds."""
    saves = f"trap 'echo saved; exit 0' TERM; touch ready; {until('never')}"
    running, following = background.submit(saves, "true", resources=WHOLE)
    dependant, afterwards = background.submit("true", resources=Resources(0), after=(Dependency(running),)) + (
        background.submit("true", resources=Resources(0), after=(Dependency(running, "any"),))
    )
    wait_until((background.cwd / "ready").exists)
    stop_early(background, running)
    background.wait_over(running, following, dependant, afterwards)
    ended = background.ended(running)
    assert (ended.result, ended.code, ended.note) == ("stopped", 0, "not good")
    assert background.log(running).endswith("saved\n")  # the shell may name the signal that ended its sleep
    assert [background.word(job) for job in (following, dependant, afterwards)] == ["done", "skipped", "done"]
    assert background("wait", str(running)).code == 0
    (row,) = json.loads(background("history", "--state", "stopped", "--json").out)["jobs"]
    assert (row["state"], row["note"]) == ("stopped", "not good")


def test_a_search_stops_bad_trials_and_finds_a_good_one(background: Background, tmp_path: Path) -> None:
    """All trials are in the queue and in the study; screens, tables and charts show them."""
    sweep = start_sweep(background, "--method", "tpe", "-N", "14", "--pruner", "asha:min=2", "--name", "toy")
    view = wait_sweep(background, sweep)
    assert broken_promises(background, sweep, 14) == []
    assert view["counts"]["stopped"] >= 4
    assert view["gpu_hours_saved"] > 0
    assert view["importance"]["lr"] > 0.2
    best = view["best"][0]
    assert best["values"]["loss"] == min(one["values"]["loss"] for one in view["trials"] if one["state"] == "done")
    shown = background("sweep", "status", "--table").out
    assert "14 of 14 trials over" in shown
    assert "early stopping saved about" in shown
    assert f"trial {best['trials'][0]}" in background("sweep", "best", "toy", "--table").out
    rows = list(csv.DictReader(background("sweep", "table", "--sort", "value", "--csv").out.splitlines()))
    assert [float(row["loss"]) for row in rows] == sorted(float(row["loss"]) for row in rows)
    assert {row["state"] for row in rows} == {"done", "stopped"}
    assert "best so far" in background("sweep", "plot").out
    for kind in ("best", "parallel", "parameter", "curves"):
        assert background("sweep", "plot", "--kind", kind, "-o", str(tmp_path / f"{kind}.svg")).code == 0
        assert ElementTree.parse(tmp_path / f"{kind}.svg").getroot().tag.endswith("svg")
    assert background("sweep", "plot", "-p", "lr", "-o", str(tmp_path / "lr.png")).code == 0
    assert (tmp_path / "lr.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("seed", [1, 4])
def test_a_storm_over_a_sweep_does_no_harm(background: Background, seed: int) -> None:
    """Tuner, engine, workers and trials are killed: no trial is double, forgotten, or without an end."""
    storm = SweepStorm(background, seed)
    assert storm.run(kills=6) == [], "once more: make faults FAULTS='--only storm-of-sweeps --rounds 1'"
    assert storm.disruptions.total() > 0


@pytest.mark.parametrize("seed", [2, 3])
def test_a_tuner_that_is_killed_again_and_again_stops_bad_trials(background: Background, seed: int) -> None:
    """Each one judges anew by the values of all trials; what it asked for before its death happens once."""
    storm = SweepStorm(background, seed)
    assert storm.run(kills=5, targets=("tuner",)) == []
    assert storm.disruptions["tuner"] > 2
    assert storm.stopped > 0


WRITER = """\
import csv, json, os, sys
import stoker
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
x, folder = float(stoker.params()["x"]), os.environ["OUT"]
os.makedirs(folder, exist_ok=True)
events = EventFileWriter(folder)
with open(f"{folder}/m.csv", "w") as table, open(f"{folder}/m.jsonl", "w") as lines:
    print("epoch,latency", file=table)
    for step in (1, 2, 3):
        if x != 3:
            stoker.report(step=step, acc=x / step)
        print(f"{step},{x * step}", file=table)
        loss = float("nan") if x == 2 and step == 3 else x + step
        print(json.dumps({"epoch": step, "eval": {"loss": loss}}), file=lines)
        value = Summary.Value(tag="val/f", simple_value=x * 10 + step)
        events.add_event(Event(wall_time=__import__("time").time(), step=step, summary=Summary(value=[value])))
events.close()
"""


def test_values_come_from_reports_files_and_tensorboard(background: Background) -> None:
    """Four objectives of a grid; nan and a value that never comes make a trial fail, with the reason."""
    (background.cwd / "w.py").write_text(WRITER)
    objectives = [
        "acc:max",
        "latency=csv:out {trial}/m.csv",
        "eval.loss=jsonl:out {trial}/m.jsonl",
        "val/f=tensorboard:out {trial}",
    ]
    words = [word for text in objectives for word in ("--objective", text)]
    command = ["--env", "OUT=out {trial}", "-G", "0", "--style", "none", "--", sys.executable, "w.py"]
    said = background("sweep", "--parsable", "x=1,2,3,4", *words, *command)
    assert said.code == 0, said.err
    view = wait_sweep(background, int(said.out))
    first, nan, never, last = view["trials"]
    assert first["values"] == {"acc": pytest.approx(1 / 3), "latency": 3.0, "eval.loss": 4.0, "val/f": 13.0}
    assert (nan["state"], nan["message"]) == ("failed", "the value of eval.loss is nan or infinite")
    assert (never["state"], never["values"]["val/f"]) == ("failed", 33.0)
    assert "no value of acc: nothing came from stoker.report(acc=...)" in never["message"]
    assert [one["trials"] for one in view["best"]] == [[last["number"]], [first["number"]]]


def test_a_sweep_is_stopped_and_extended(background: Background) -> None:
    """What waits is withdrawn, running trials finish; extended, it goes on with the same study, even a deleted one."""
    sweep = start_sweep(background, "--method", "tpe", "-N", "50", steps=3, pause=0.1)
    wait_until(lambda: sum(state == "done" for _, state, _ in stored_trials(background, sweep)) >= 3)
    assert "stopped: " in background("sweep", "stop").out
    stopped = wait_sweep(background, sweep)
    count = len(stopped["trials"])
    assert stopped["state"] == "stopped"
    assert set(stopped["counts"]) <= {"done", "stopped"}
    study_path(background.paths, sweep).unlink()
    said = background("sweep", "extend", str(sweep), "3")
    assert said.out == f"sweep {sweep}: 3 trials more, {count + 3} in all\n", said.err
    wait_until(lambda: len(stored_trials(background, sweep)) == count + 3)
    wait_sweep(background, sweep)
    assert broken_promises(background, sweep, count + 3) == []
    assert "the study had lost" in background("logs", str(sweep)).out


def test_a_sweep_is_paused(background: Background) -> None:
    """Waiting trials are held, running ones finish, and none is added until it is resumed."""
    words = ["x=0.1..1", "--method", "tpe", "-N", "8", "--max-parallel", "4", "--objective", LOSS]
    trial = f"{until('gate')}; echo loss=1"
    sweep = int(background("sweep", "--parsable", *words, "--", "sh", "-c", trial).out)
    wait_until(lambda: _states(background, sweep).count("running") == 2 and "waiting" in _states(background, sweep))
    paused = background("pause", str(sweep))
    assert (paused.code, paused.err) == (0, "")
    assert f"still at work: {sweep}, the tuner; it adds no trial while one is held\n" in paused.out
    assert "(running)\n" in paused.out
    background("pause", str(sweep))  # the tuner may have been adding one meanwhile
    held = _states(background, sweep).count("held")
    assert held
    background.open_gate("gate")
    wait_until(lambda: len(_results_of(background, sweep)) == 2)
    assert sorted(_states(background, sweep)) == ["done"] * 2 + ["held"] * held
    resumed = background("resume", str(sweep))
    assert (resumed.code, resumed.err) == (0, "")
    wait_sweep(background, sweep)
    assert _states(background, sweep) == ["done"] * 8


def _states(background: Background, sweep: int) -> list[str]:
    return [state for _, state, _ in stored_trials(background, sweep)]


def _batch(store: Store, sweep: int) -> int:
    stored = find_sweep(store, sweep)
    assert stored is not None
    return stored.batch


def _results_of(background: Background, sweep: int) -> list[int]:
    """The trials whose end the tuner has recorded."""
    with background.open_store() as store:
        return [number for number, body in trial_results(store, _batch(store, sweep)).items() if body.get("over")]


def test_the_retry_of_an_adaptive_sweep_leaves_good_trials_alone(background: Background) -> None:
    """Its id means the tuner and what failed; `wait` and others know the sweep by its name."""
    (background.cwd / "t.sh").write_text("echo $1 >> ran; test $1 = 1 || test -e fixed || exit 3; echo loss=0.25")
    words = ["x=1,2", "--method", "tpe", "-N", "6", "-G", "0", "--name", "toy", "--objective", LOSS]
    sweep = int(background("sweep", "--parsable", *words, "--", "sh", "t.sh", "{x}").out)
    wait_until(lambda: is_over(background, sweep))
    states = [state for _, state, _ in stored_trials(background, sweep)]
    assert set(states) == {"done", "failed"}
    (background.cwd / "fixed").touch()
    assert background("retry", str(sweep)).code == 0
    assert background("wait", "toy").code == 0
    assert {state for _, state, _ in stored_trials(background, sweep)} == {"done"}
    assert len((background.cwd / "ran").read_text().splitlines()) == 6 + states.count("failed")
    assert background("wait", "tyo").code == 4


def test_an_optuna_that_is_too_old_is_refused_at_submit(background: Background, tmp_path: Path) -> None:
    """As hydra-optuna-sweeper installs it; the tuner could not import it."""
    information = tmp_path / "packages" / "optuna-2.10.1.dist-info" / "METADATA"
    information.parent.mkdir(parents=True)
    information.write_text("Metadata-Version: 2.1\nName: optuna\nVersion: 2.10.1\n")
    words = ["lr=0.1..1.0", "--method", "tpe", "-N", "2", "--objective", LOSS, "--", "true"]
    said = background("sweep", *words, PYTHONPATH=str(tmp_path / "packages"))
    assert said.code == 2
    assert "needs optuna 5 or newer; this Python has 2.10.1" in said.err


def test_an_adaptive_sweep_is_resumed(background: Background) -> None:
    """It is the earlier sweep: nothing where it has its trials, otherwise the rest; another seed is another sweep."""
    options = ["--method", "tpe", "-G", "0", "--objective", LOSS, "--resume"]

    def start(*words: str) -> dict[str, Any]:
        said = background("sweep", "--json", "lr=0.1..1.0", *options, *words, "--", "sh", "-c", "echo loss={lr} >> ran")
        assert said.code == 0, said.err
        found: dict[str, Any] = json.loads(said.out)
        wait_until(lambda: is_over(background, found["id"]))
        return found

    first, again, more = start("-N", "3"), start("-N", "3", "--name", "same"), start("-N", "5")
    assert [(each["id"] == first["id"], each["trials"], each["skipped"]) for each in (first, again, more)] == [
        (True, 3, 0),
        (True, 0, 3),
        (True, 2, 3),
    ]
    assert len((background.cwd / "ran").read_text().splitlines()) == 5
    assert start("-N", "1", "--seed", "9")["id"] != first["id"]


@pytest.mark.parametrize("method", ["grid", "tpe"])
def test_a_trial_that_is_retried_after_the_sweep_is_over_counts(background: Background, method: str) -> None:
    """The retry brings back the tuner, which reads the new value; it chooses no further trials."""
    (background.cwd / "t.sh").write_text("test -e fixed || exit 3; echo loss=0.25")
    count = ["-N", "2", "--method", method]
    said = background("sweep", "--parsable", "x=1,2", "--objective", LOSS, *count, "--", "sh", "t.sh", "{x}")
    sweep = int(said.out)
    assert wait_sweep(background, sweep)["best"] == []
    (background.cwd / "fixed").touch()
    with background.open_store() as store:
        second = all_trials(store, _batch(store, sweep))[1].job
    assert background("retry", str(second)).code == 0
    wait_until(lambda: sweep_status(background, sweep)["best"] != [])
    view = wait_sweep(background, sweep)
    assert [(one["values"], one["trials"]) for one in view["best"]] == [({"loss": 0.25}, [1])]
    assert [one["state"] for one in view["trials"]] == ["failed", "done"]


def test_a_dry_run_shows_the_first_points(background: Background) -> None:
    """Those that the sweep then begins with; it says that the others follow from results."""
    options = ["--method", "tpe", "-N", "12", "--repeat", "2", "--max-parallel", "4", "-G", "0"]
    words = [*SPACE, *options, "--objective", LOSS]
    command = ["--", "echo", "loss={lr}", "{depth}"]
    said = background("sweep", "--dry-run", *words, *command)
    assert said.code == 0, said.err
    shown = said.out.splitlines()
    assert len(shown) == 20
    assert "tpe chooses the other 4 trials by their results" in said.err
    sweep = int(background("sweep", "--parsable", *words, *command).out)
    wait_until(lambda: len(stored_trials(background, sweep)) >= 4)
    begun = [f"echo loss={params['lr']} {params['depth']}" for _, _, params in stored_trials(background, sweep)]
    assert begun[:4] == shown[:4]


REFUSED = {
    "--method tpe -N 3": "--method tpe needs an objective",
    "--method tpe --objective loss": "does not end by itself",
    "--method gp -N 3 --objective loss": "needs torch",
    "--pruner median": "--pruner median needs an objective",
    "--objective loss --pruner medium": "did you mean median",
    "--objective test_acc": "whether a larger test_acc is better",
    "--objective loss=csv:m.csv": "all trials would write loss to the same file",
    "--method cmaes -N 3 --objective a:min --objective b:min": "one objective only",
    "--method tpe -N 3 --objective loss --results runs/{lr}": "share a folder",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused_before_anything_is_queued(background: Background, words: str) -> None:
    """With the reason, and what to type."""
    said = background("sweep", *words.split(), "lr=1e-4..1:log:x3", "--", "true")
    assert (said.code, said.out) == (2, "")
    assert REFUSED[words] in said.err
    assert background("sweep", "status").code == 4


def test_a_trial_that_had_no_room_for_its_log_keeps_its_value(background: Background) -> None:
    """Its first attempt is handed back; what it reports then is the value of the trial."""
    script = background.cwd / "t.py"
    script.write_text("import stoker; stoker.report(loss=0.25)")
    with small_disk(background.cwd / "small", "size=1m,nr_inodes=2") as disk:
        (disk / "ballast").touch()
        words = ["-G", "0", "--objective", "loss:min", "-o", str(disk / "%j.log"), "--style", "none"]
        said = background("sweep", "--parsable", "x=1", *words, "--", sys.executable, str(script))
        wait_until(lambda: "cannot write its output" in background("status", "--plain").out, pause=0.1)
        (disk / "ballast").unlink()
        (trial,) = wait_sweep(background, int(said.out))["trials"]
        with background.open_store() as store:
            assert store.attempts(trial["job"])[0].why == "returned"
            assert len(store.runs(trial["job"])) == 1
    assert (trial["state"], trial["values"]) == ("done", {"loss": 0.25})
    assert [row["attempts"] for row in json.loads(background("history", "--json").out)["jobs"]] == [1, 1]
