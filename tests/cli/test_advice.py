"""What to type instead of a wrong command line."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from stoker.app.jobs.options import JobOptions
from stoker.app.jobs.script import CommandLine
from stoker.cli.advice import meant_command, misplaced_option, other_queue, usage_error
from stoker.cli.main import stoker
from stoker.core.errors import NoSuchJob


def said(*words: str) -> str:
    """Message and hint of a wrong command line."""
    with pytest.raises(click.ClickException) as caught:
        stoker.main(list(words), prog_name="stoker", standalone_mode=False)
    error = usage_error(caught.value, words)
    return f"{error.message} / {error.hint}"


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--gres", "GPUs are -G 2"),
        ("-p", "there is one machine"),
        ("-n", "many tasks are an array"),
        ("--ntasks", "many tasks are an array"),
        ("--cpus-per-task", "on a cluster: --slurm cpus-per-task=8"),
        ("--constraint", "on a cluster: --slurm constraint=..."),
        ("--nodelist", "it has no effect on one machine"),
        ("-N", "in stoker it is --nodes"),
        ("--mail-type", "on_finish"),
        ("--mail-user", "on_finish"),
        ("--wrap", "stoker submit 'python3 train.py'"),
        ("--devices", "--on 0,1"),
        ("--job-name", "in stoker it is --name"),
        ("--dependency", "in stoker it is --after"),
        ("--qos", "has no effect on one machine"),
        ("--deadline", "docs/from-slurm.md"),
        ("--prioritty", "did you mean --priority?"),
    ],
)
def test_options_of_slurm_get_a_hint(option: str, hint: str) -> None:
    """At submit; one that is only mistyped gets the nearest."""
    assert hint in said("submit", option, "x", "true")


def test_errors_have_one_form() -> None:
    """A sentence without a capital or a full stop, and where to look."""
    assert said("edit") == "missing argument 'ID...' / see: stoker edit --help"
    assert said("submit", "-G") == "option '-G' requires an argument / see: stoker submit --help"
    assert said("engine", "stop", "--forse") == "no such option: --forse / did you mean --force?"
    assert said("engine", "stop", "--foo") == "no such option: --foo / see: stoker engine stop --help"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["12"], "type: stoker status 12"),
        (["12.3"], "type: stoker status 12.3"),
        (["12.[3-5]"], "type: stoker status '12.[3-5]'"),
        (["jobs.txt"], "type: stoker run jobs.txt"),
        (["clear"], "this is not needed: Stoker removes ended jobs by itself (setting keep)"),
        (["train.py", "--lr", "1"], "type: stoker submit -- python3 train.py --lr 1"),
        (["job.sh", "a b"], "type: stoker submit job.sh 'a b'"),
        (["sh", "-c", "true"], "type: stoker submit -- sh -c true"),
        (["ps"], "type: stoker, or stoker status ID"),
        (["stop"], "type: stoker cancel ID; the engine: stoker engine stop"),
        (["restart"], "type: stoker retry ID; the engine: stoker engine restart"),
        (["doctor"], "type: stoker engine check"),
        (["config"], "type: stoker engine config"),
        (["tail"], "type: stoker logs -f ID"),
        (["users"], "type: stoker status --by-user"),
        (["sbatch", "job.sh"], "type: stoker submit SCRIPT"),
        (["statsu"], ""),
        (["missing.py"], ""),
        (["sh"], ""),
    ],
)
def test_words_that_are_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], hint: str
) -> None:
    """An id, a file, a program, or a command of another tool: the hint is the line that was meant."""
    monkeypatch.chdir(tmp_path)
    for name in ("jobs.txt", "train.py", "job.sh"):
        (tmp_path / name).touch()
    assert meant_command(words) == hint


def test_an_option_of_edit_without_dashes() -> None:
    """It is read as the name of a job."""
    error = other_queue(NoSuchJob("no job is named 'priority=5'", "", "priority=5"), ["edit", "last", "priority=5"])
    assert error.hint == "options begin with dashes: --priority 5"


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (("python", "train.py", "--gpus", "2"), "stoker submit -J a --gpus 2 -- python train.py"),
        (("python", "train.py", "-t", "1h", "x"), "stoker submit -J a -t 1h -- python train.py x"),
        (("python", "train.py", "--vram=6G"), "stoker submit -J a --vram 6G -- python train.py"),
        (("python", "train.py", "--array", "0-9"), "stoker submit -J a --array 0-9 -- python train.py"),
        (("a", "-t", "1h", "b", "--gpus=2", "c"), "stoker submit -J a -t 1h --gpus 2 -- a b c"),
    ],
)
def test_an_option_after_the_command_is_noticed(words: tuple[str, ...], typed: str) -> None:
    """With the command line that was meant."""
    note = misplaced_option(CommandLine("submit", ("-J", "a", "--"), words), JobOptions())
    assert note.startswith("note: ")
    assert note.endswith(f"type: {typed}")


@pytest.mark.parametrize(
    "words",
    [
        ("python", "train.py", "--time", "100"),
        ("python", "train.py", "-t", "5"),
        ("python", "train.py", "-m", "6G"),
        ("python", "train.py", "--name", "x", "--out", "y", "--gpus"),
        ("python", "train.py", "--gpus", "all"),
        ("--gpus",),
        (),
    ],
)
def test_options_of_programs_are_left_alone(words: tuple[str, ...]) -> None:
    """Everyday words, and values that are none of ours."""
    assert misplaced_option(CommandLine("submit", (), words), JobOptions()) == ""


def test_an_option_that_was_given_is_not_missed() -> None:
    """With -G before the command, --gpus after it is the program's."""
    line = CommandLine("submit", ("-G", "2", "--"), ("python", "train.py", "--gpus", "2"))
    assert misplaced_option(line, JobOptions(gpus=2)) == ""
