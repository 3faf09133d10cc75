"""Trials whose commands, names and parameters follow from their numbers."""

from __future__ import annotations

import pytest

from stoker.core.learning import kind_of
from stoker.core.pattern import Pattern
from stoker.core.ranges import Ranges
from stoker.core.spec import Command, JobSpec, NewJob, Resources
from stoker.features.sweep.model import pattern
from stoker.features.sweep.model.grammar import parse_space
from stoker.features.sweep.model.pattern import shared_trials
from stoker.features.sweep.model.record import SweepSpec, trial_jobs

LINE = "python3 train.py --layers 3 --lr {lr}"
SPEC = JobSpec(cwd="/work")


def a_sweep(words: str, command: str = LINE, *, shell: str = "/bin/sh", **given: object) -> SweepSpec:
    own = Command((command,), shell) if shell else Command(tuple(command.split()))
    return SweepSpec(space=parse_space(words.split(";")), command=own, **given)  # type: ignore[arg-type]


SWEEPS = {
    "lists": a_sweep("lr=0.1,1e-3,.5;wd=0,1;model=vit,resnet"),
    "a constant": a_sweep("lr=0.1;wd=0..9"),
    "ranges": a_sweep("lr=0..99;wd=0.5..1:0.1"),
    "texts as typed": a_sweep("lr=1,2..4,010;wd=1e3,0x10", "train {lr} {wd}", shell=""),
    "true and 1": a_sweep("lr=true,1,false,0,null"),
    "several parts": a_sweep("lr=1..20;+;lr=5..9;wd=1,2;+;other=1..3", "train --lr {lr} --x {wd}", shell=""),
    "repeats": a_sweep("lr=1..20", repeat=3, command="train {lr} {repeat} {trial} {i}", shell=""),
    "a part": a_sweep("lr=1..200;wd=1..300", count=1000),
    "a name": a_sweep("lr=1..20", name="100 %s vit"),
    "a long name": a_sweep("lr=1..20", name="x" * 197),
    "variables": a_sweep("lr=a b,c'd,100%", env={"LR": "{lr} {{lr}} {id} 5%"}, command="train '{lr}' {id} \"$LR\" 5%"),
    "a starter": a_sweep("lr=1..20", starter=("python3", "-m", "x{lr}%"), env={"A": "{trial}"}),
    "a starter without a shell": a_sweep("lr=1..20", "train --n={lr}", shell="", starter=("python3", "-m")),
    "kinds": a_sweep("lr=0..9;layers=1..40;width=1..5", "train --width {width} --layers 3 -x {layers} {lr}"),
    "a model": a_sweep("model=a,b,c;lr=1..100"),
    "negative numbers": a_sweep("batch_size=-50..50", "train"),
    "a number of the command": a_sweep("lr=0..9;wd=0..9"),
}


def filled(jobs: list[NewJob], patterns: list[Pattern]) -> list[tuple[object, ...]]:
    """All trials that the jobs stand for."""
    made: list[tuple[object, ...]] = []
    for job in jobs:
        assert job.member is not None
        assert job.task is not None
        for number in range(job.member.number, job.member.number + job.count):
            own = [known for known in patterns if known.start <= number][-1].at(number)
            made.append((tuple(own.words.split("\0")), job.command.shell, own.name, number, own.params))
    return made


@pytest.mark.parametrize("name", SWEEPS)
def test_patterns_have_what_the_trials_have(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words, names and parameters; and all that share a row are of one kind of work."""
    monkeypatch.setattr(pattern, "LEAST", 1)
    sweep = SWEEPS[name]
    numbers = Ranges([range(min(3, sweep.trials), min(7, sweep.trials)), range(8, sweep.trials)])
    for chosen in filter(None, (Ranges([range(sweep.trials)]), numbers)):
        shared = shared_trials(sweep, SPEC, chosen)
        assert shared is not None
        jobs, patterns = list(shared[0]), shared[1]
        whole = list(trial_jobs(sweep, SPEC))
        expected = [
            (job.command.words, job.command.shell, job.name, job.member.number, job.member.params)
            for job in (whole[number] for number in chosen)
            if job.member is not None
        ]
        assert filled(jobs, patterns) == expected
        for job in jobs:
            assert job.member is not None
            alike = whole[job.member.number : job.member.number + job.count]
            assert len({kind_of(one.command, SPEC, one.member) for one in alike}) == 1


def rows(sweep: SweepSpec, spec: JobSpec = SPEC) -> int | None:
    shared = shared_trials(sweep, spec, Ranges([range(sweep.trials)]))
    return None if shared is None else len(shared[0])


def test_a_grid_has_a_row_for_each_kind_of_work() -> None:
    """A million points of one kind have one; a text that tells kinds apart comes first, or there are no GPUs."""
    assert rows(a_sweep("lr=0..999;wd=0..999", "train {lr}")) == 1
    assert 200 < (rows(a_sweep("lr=0..99;wd=0..999")) or 0) < 220  # wd=3 hides the 3 of --layers 3
    assert rows(a_sweep("seed=0..999999", "train --seed {seed}")) == 1
    assert rows(a_sweep("model=a,b,c;wd=0..999", "train")) == 3
    assert rows(a_sweep("wd=0..999;model=a,b,c", "train")) is None
    assert rows(a_sweep("wd=0..999;model=a,b,c", "train"), JobSpec(Resources(gpus=0))) == 1
    assert rows(a_sweep("seed=0..99999", "train run-{seed}")) is None


@pytest.mark.parametrize(
    "sweep",
    [
        a_sweep("lr=1..20"),
        a_sweep("lr=1..200", method="shuffled"),
        a_sweep("lr=0.1..0.9", method="random", count=100),
        a_sweep("opt=sgd,adam;lr=1..90 if opt=sgd", "train"),
        a_sweep("lr=1..200", "train --out {name}"),
        a_sweep("lr=1..200", "train --out {results}", results="runs/{trial}"),
        a_sweep("lr=0..1:0.00001"),
    ],
    ids=["few", "shuffled", "random", "conditions", "name", "results", "many values"],
)
def test_trials_that_keep_a_row_each(sweep: SweepSpec) -> None:
    """They are few, or do not follow from their numbers."""
    assert rows(sweep) is None
