"""The record of a sweep, and the jobs of its trials."""

from __future__ import annotations

import json

import msgspec
import pytest

from stoker.core.spec import Command, JobSpec, Member, work_of
from stoker.features.sweep.model.grammar import parse_space
from stoker.features.sweep.model.record import SweepSpec, read_params, trial_job, trial_jobs, trial_name

TRAIN = Command(("train", "--lr={lr}", "--depth={depth}"))


def made(words: str = "lr=1e-3,1e-4 depth=2..3", **settings: object) -> SweepSpec:
    return SweepSpec(**{"space": parse_space(words.split()), "command": TRAIN, **settings})  # type: ignore[arg-type]


def test_trials_of_a_grid() -> None:
    """Each has its number, its parameters with their types, and its command as typed."""
    jobs = list(trial_jobs(made(), JobSpec(cwd="/w")))
    assert [job.command.text for job in jobs] == [
        "train --lr=1e-3 --depth=2",
        "train --lr=1e-3 --depth=3",
        "train --lr=1e-4 --depth=2",
        "train --lr=1e-4 --depth=3",
    ]
    assert [job.task for job in jobs] == [0, 1, 2, 3]
    assert jobs[1].member == Member(1, '{"lr":0.001,"depth":3}')
    assert jobs[1].name == "lr=1e-3 depth=3"


def test_one_way_to_make_a_trial() -> None:
    """A chosen point gives the same command as the grid does, except that it is no task of an array."""
    grid = list(trial_jobs(made(), JobSpec()))[3]
    chosen = trial_job(made(), JobSpec(), 3, {"lr": 0.0001, "depth": 3})
    assert chosen.command == grid.command
    assert (chosen.task, chosen.member) == (None, Member(3, '{"lr":0.0001,"depth":3}'))


def test_repeats() -> None:
    """Each point comes K times in a row, told apart by a parameter of its own."""
    sweep = made("lr=1,2 depth=2", repeat=2, command=Command(("train", "{lr}", "{repeat}")))
    jobs = list(trial_jobs(sweep, JobSpec()))
    assert sweep.trials == 4
    assert [job.command.text for job in jobs] == ["train 1 0", "train 1 1", "train 2 0", "train 2 1"]
    assert [read_params(job.member.params)["repeat"] for job in jobs if job.member] == [0, 1, 0, 1]
    assert [job.task for job in trial_jobs(sweep, JobSpec(), 1, 3)] == [1, 2]


def test_content_is_the_work_and_not_the_number() -> None:
    """A larger sweep finds the trials of a smaller one; other parameters are other work."""
    first = trial_job(made(), JobSpec(), 0, {"lr": 0.001, "depth": 2})
    later = trial_job(made(), JobSpec(), 9, {"lr": 0.001, "depth": 2})
    other = trial_job(made(command=Command(("train",))), JobSpec(), 0, {"lr": 0.001, "depth": 2})
    unseen = trial_job(made(command=Command(("train",))), JobSpec(), 0, {"lr": 0.001, "depth": 3})
    digests = [work_of(job) for job in (first, later, other, unseen)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_variables_and_folders() -> None:
    """--env and --results have placeholders, too; the folder can be passed to the command."""
    sweep = made(
        "lr=1e-3,a/b depth=2", command=Command(("train", "{results}")), env={"RUN": "{lr}-{trial}"}, results="r/{lr}"
    )
    texts = [job.command.text for job in trial_jobs(sweep, JobSpec())]
    assert texts == ["/usr/bin/env RUN=1e-3-0 train r/1e-3", "/usr/bin/env RUN=a/b-1 train r/a_b"]


def test_names() -> None:
    """A name of the user's goes first; very long ones are cut."""
    assert trial_name("vit", {"lr": "0.1"}) == "vit lr=0.1"
    assert len(trial_name("", {"text": "x" * 999})) == 200


@pytest.mark.parametrize("words", ["lr=1e-3,'a,b',true,null depth=2..3", "lr=1e-5..1e-1:log depth=1 + lr=1"])
def test_a_record_survives_the_store(words: str) -> None:
    """As JSON."""
    sweep = made(words, method="random", count=7, seed=3, objectives=("loss:min",), pruners=("median",))
    assert msgspec.json.decode(msgspec.json.encode(sweep), type=SweepSpec) == sweep


def test_parameters_are_json() -> None:
    """Texts with quotes and other alphabets survive."""
    job = trial_job(made(command=Command(("train",))), JobSpec(), 0, {"lr": 'ä"\n', "depth": True})
    assert job.member is not None
    assert json.loads(job.member.params) == {"lr": 'ä"\n', "depth": True} == read_params(job.member.params)
