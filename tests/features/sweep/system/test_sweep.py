"""`stoker sweep` as it is typed, and stoker.sweep(): what gets into the queue, and what the trials find."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker
from support.background import Background
from support.build import GIB
from support.cli import until
from support.python_program import Programs, programs_in
from support.training_job import WORDS
from support.wait import wait_until

SHOW = ("sh", "-c", 'echo "$STOKER_SWEEP $STOKER_TRIAL $STOKER_PARAMS" "$@"', "show")


def lines(queue: Background, sweep: int, count: int) -> list[str]:
    """What the trials of a sweep wrote."""
    queue.wait_over(*range(sweep, sweep + count))
    return [(queue.paths.logs / f"{sweep}/{number}.log").read_text().strip() for number in range(count)]


class TestSubmit:
    """A sweep in the queue."""

    def test_trials_get_their_parameters(self, background: Background) -> None:
        """In the command, and as JSON; the sweep is an array, and its id means all trials."""
        answer = background("sweep", "lr=1e-3,0.1", "opt=sgd,'a b'", "-G", "0", "-J", "vit", "--", *SHOW)
        assert answer.out == "submitted sweep 1 (4 trials)\n"
        assert lines(background, 1, 4) == [
            '1 0 {"lr":0.001,"opt":"sgd"} --lr=1e-3 --opt=sgd',
            '1 1 {"lr":0.001,"opt":"a b"} --lr=1e-3 --opt=a b',
            '1 2 {"lr":0.1,"opt":"sgd"} --lr=0.1 --opt=sgd',
            '1 3 {"lr":0.1,"opt":"a b"} --lr=0.1 --opt=a b',
        ]
        assert background.job(2).name == "vit lr=1e-3 opt=a b"
        assert background("wait", "1").code == 0
        assert background("logs", "1.2").out.endswith("--opt=sgd\n")

    def test_options_of_jobs(self, background: Background) -> None:
        """Those of submit, --max-parallel, and variables with placeholders."""
        background("sweep", "x=1..3", "--hold", "--vram", "2G", "--max-parallel", "2", "--env", "X={x}", "--", "true")
        job = background.job(3)
        assert (job.spec.resources.memory, job.spec.at_once, job.spec.array_tasks) == (2 * GIB, 2, (3, 0, 2))
        assert job.command.words == ("/usr/bin/env", "X=3", "true")
        assert {background.job(number).spec for number in (1, 2, 3)} == {job.spec}

    def test_a_trial_that_gives_way_has_not_failed(self, background: Background) -> None:
        """It runs again as the same trial, and counts once."""
        waits = ("sh", "-c", f"touch ready; {until('enough')}", "trial")
        background("sweep", "x=1,2", "-G", "2", "--preemptible=restart", "--", *waits)
        wait_until((background.cwd / "ready").exists)
        background.wait_word("running", 1)
        assert background("preempt", "1").code == 0
        with background.open_store() as store:
            wait_until(lambda: (job := store.job(1)) is not None and job.preemptions == 1)
        background.open_gate("enough")
        background.wait_over(1, 2)
        trial = background.job(1)
        assert (background.ended(1).result, trial.failures, trial.losses) == ("done", 0, 0)
        assert "failed" not in background("status", "1").out

    def test_outputs(self, background: Background) -> None:
        """For scripts: the id alone, or JSON."""
        assert background("sweep", "x=1,2", "--hold", "--parsable", "--", "true").out == "1\n"
        answer = json.loads(background("sweep", "x=3,4", "--hold", "--json", "--", "true").out)
        assert answer == {
            "schema": "stoker.sweep/1",
            "id": 3,
            "trials": 2,
            "skipped": 0,
            "tuner": None,
            "held": True,
            "problem": None,
        }

    def test_done_work_is_not_done_again(self, background: Background) -> None:
        """By content: a larger sweep resumes a smaller one, whatever its order; failed trials run again."""
        trial = ("sh", "-c", 'test "$1" != --x=2', "trial")
        background("sweep", "x=1,2", "-G", "0", "--", *trial)
        background.wait_over(1, 2)
        refused = background("sweep", "x=3,1", "-G", "0", "--", *trial)
        assert refused.code == 2
        assert "1 of 2 trials are already done" in refused.err
        resumed = background("sweep", "--resume", "x=3,1,2", "-G", "0", "--", *trial)
        assert resumed.out == "submitted sweep 3 (2 trials; 1 submitted before)\n"
        background.wait_over(3, 4)
        assert [background.job(number).task for number in (3, 4)] == [0, 2]
        again = background("sweep", "--resume", "x=3,1", "-G", "0", "--", *trial)
        assert (again.out, "nothing was submitted" in again.err) == ("sweep 3\n", True)
        assert background("sweep", "--force", "x=3,1", "-G", "0", "--hold", "--", *trial).out.endswith("(2 trials)\n")

    def test_a_file(self, background: Background) -> None:
        """With Weights & Biases' keys; words of the command line change it."""
        background.write(
            "sweep.yaml", "method: grid", "command: [echo, '${args}']", "parameters:", "  lr: {values: [1e-3, 0.1]}"
        )
        background("sweep", "@sweep.yaml", "lr=5", "d=1,2", "-G", "0")
        assert lines(background, 1, 2) == ["--lr=5 --d=1", "--lr=5 --d=2"]

    def test_results(self, background: Background) -> None:
        """Each trial has a folder of its own, which it can be told."""
        made = ("--style", "none", "--", "touch", "{results}/made")
        background("sweep", "lr=1,2", "-G", "0", "--results", "runs/{lr}", *made)
        background.wait_over(1, 2)
        assert sorted(str(path.relative_to(background.cwd)) for path in background.cwd.rglob("made")) == [
            "runs/1/made",
            "runs/2/made",
        ]
        refused = background("sweep", "lr=2,3", "--force", "--results", "runs/x", "--", "true")
        assert "two trials would use the folder" in refused.err

    def test_hostile_values(self, background: Background) -> None:
        """They arrive as they are, through a shell, its quotes, and variables."""
        value = "$(touch owned)'\"`touch owned`;"
        quoted = "'" + value.replace("'", "") + "'"
        line = "printf '%s|' {v} '{v}' \"{v}\" \"$V\""
        background("sweep", f"v={quoted}", "-G", "0", "--env", "V={v}", "--", line)
        assert lines(background, 1, 1) == ["".join([value.replace("'", "") + "|"] * 4)]
        assert not list(background.cwd.rglob("owned"))


class TestDryRun:
    """What would be submitted."""

    def test_it_prints_what_simple_hypersearch_prints(self, background: Background) -> None:
        """In order, and shuffled with a seed."""
        parameters = {"lr": ["0.1", "1e-3"], "d": ["a", "b", "c"]}
        typed = [f"{name}={','.join(values)}" for name, values in parameters.items()]
        older = [word for name, values in parameters.items() for word in ("-p", name, *values)]
        pattern = "train --lr {lr} {d}.txt"
        for ours, theirs in (
            (["--method", "grid"], ["--sampling-mode", "grid"]),
            (["--method", "shuffled", "--seed", "7"], ["--seed", "7"]),
            (["--method", "shuffled", "--seed", "7", "-N", "4"], ["--seed", "7", "--n-samples", "4"]),
        ):
            older_tool = [str(Path(sys.executable).with_name("simple_hypersearch")), pattern, *theirs, *older]
            expected = subprocess.run(older_tool, capture_output=True, text=True, timeout=60, check=True).stdout
            assert background("sweep", *typed, *ours, "--dry-run", "--", pattern).out == expected
        assert not background.paths.database.exists()

    def test_estimate(self, background: Background) -> None:
        """Nothing is known before the first run; afterwards GPU-hours and the end are."""
        typed = ("sweep", "lr=1,2", "--json", "--estimate", "--", "sleep", "1.1", "{lr}")
        before = json.loads(background(*typed).out)
        assert (before["trials"], before["gpu_hours"], before["end"]) == (2, None, None)
        assert "-N 1" in before["why_no_end"]
        background("sweep", "lr=0", "-N", "1", "--", "sleep", "1.1", "{lr}")
        background.wait_over(1)
        after = json.loads(background(*typed).out)
        assert 2 * 1.1 / 3600 <= after["gpu_hours"] < 2 * 10 / 3600
        assert after["end"] is not None
        assert "GPU-hours" in background(*(word for word in typed if word != "--json")).out


class TestBadInput:
    """Refused before anything is queued, with what to type."""

    @pytest.mark.parametrize(
        ("typed", "message"),
        [
            ("lr=1,2", "no command given"),
            ("-- true", "no parameter given"),
            ("lr=1 -- train {lrr}", "no parameter lrr"),
            ("lr=1 lr=2 -- train", "lr is given twice"),
            ("lr=0..1:log -- train", "logarithmic range"),
            ("lr=2..1 -- train", "is empty"),
            ("lr=1,nan -- train", "finite"),
            ("lr=1,1 -- train", "occurs twice"),
            ("lr=0.0..1.0 -- train", "infinitely many"),
            ("lr=0.0..1.0 --method random -- train", "-N 20"),
            ("lr=1,2 --method gird -- train", "did you mean grid"),
            ("lr=1,2 train", "'train' is not a parameter"),
            ("@missing.yaml", "cannot read the sweep file"),
            ("a=1..100 b=1..100 c=1..100 -- train", "1,000,000 trials"),
            ("a=1..1001 b=1..1000 --yes -- train", "too large"),
            ("lr=1 --array 0-3 -- train", "--array"),
            ("lr=1,2 --gpus 9 -- train", "GPUs are"),
        ],
    )
    def test_refused(self, background: Background, typed: str, message: str) -> None:
        """Nothing is in the queue afterwards."""
        answer = background("sweep", *typed.split())
        assert answer.code in (2, 5)
        assert message in answer.err
        assert answer.out == ""
        with background.open_store() as store:
            assert store.last_job() is None

    def test_non_utf8(self, background: Background) -> None:
        """A parameter must be text; the command may be anything."""
        assert "not UTF-8" in background("sweep", "x=\udcff", "--", "true").err
        background("sweep", "x=1", "--hold", "--", "echo", "caf\udce9")
        assert background.job(1).command.words == ("echo", "caf\udce9", "--x=1")


def test_later_trials_share_gpus(background: Background) -> None:
    """The first trials of each size are measured alone; the rest share GPUs by what was learnt."""
    training = (*WORDS, "--memory", "{mem}G", "--seconds", "{s}", "--load", "20")
    background("sweep", "mem=2,4", "s=1.2", "--vram", "auto", "--", *training)
    background.wait_over(1, 2)
    background("sweep", "mem=2,4", "s=30.1,30.2,30.3", "--vram", "auto", "--on", "0", "--", *training)
    wait_until(lambda: all(background.word(job) == "running" for job in range(3, 9)))
    reserved = [background.job(job).state.resources.predicted[0][1] for job in (3, 8)]  # type: ignore[union-attr]
    assert 2 * GIB < reserved[0] < 3 * GIB
    assert 4 * GIB < reserved[1] < 6 * GIB


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """One queue for the tests of Python."""
    with programs_in(tmp_path_factory.mktemp("sweeps")) as made:
        yield made


class TestPython:
    """stoker.sweep()."""

    def test_a_function(self, queue: Programs) -> None:
        """Called with the parameters of each trial; rows are for pandas, and an objective names the best."""
        import pandas

        def train(lr: float, depth: int, momentum: float | None = None) -> dict[str, float]:
            return {"loss": lr * depth + (momentum or 0)}

        space = {"lr": [0.5, 0.25], "depth": range(1, 3), "momentum": {"values": [1.0], "if": {"depth": 2}}}
        sweep = stoker.sweep(train, space, objective="loss", goal="min", gpus=0)
        assert sweep.wait(60)
        assert sweep.results() == [{"loss": 0.5}, {"loss": 2.0}, {"loss": 0.25}, {"loss": 1.5}]
        table = pandas.DataFrame(sweep.rows())
        assert list(table["loss"]) == [0.5, 2.0, 0.25, 1.5]
        assert list(table["momentum"].notna()) == [False, True, False, True]
        best = sweep.best()
        assert best is not None
        assert (best["params"], best["values"]) == ({"lr": 0.25, "depth": 1}, {"loss": 0.25})
        again = stoker.sweep(train, space, objective="loss", goal="min", gpus=0, resume=True)
        assert again.id == sweep.id

    def test_a_command(self, queue: Programs) -> None:
        """Words or a line, and a space as text."""
        sweep = stoker.sweep(["echo", "{a}-{b}"], "a=1,2 b='x y'", gpus=0)
        assert sweep.wait(60)
        assert [job.stdout() for job in sweep.jobs] == ["1-x y\n", "2-x y\n"]

    def test_refused(self, queue: Programs) -> None:
        """A parameter that the function does not take, and an empty space."""

        def train(lr: float) -> float:
            return lr

        with pytest.raises(stoker.StokerError, match="unexpected keyword argument 'rate'"):
            stoker.sweep(train, {"rate": [1, 2]})
        with pytest.raises(stoker.StokerError, match="no parameters"):
            stoker.sweep(train, {})
        with pytest.raises(stoker.StokerError, match="vram"):
            stoker.sweep(train, {"lr": [1]}, vram="6")
