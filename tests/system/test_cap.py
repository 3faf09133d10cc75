"""PyTorch's cap as people ask for it: `--cap`, where the PyTorch of the job knows it."""

from __future__ import annotations

import json
import shlex
import sys

import pytest

from stoker.core.job import Assigned
from support.background import Background
from support.build import GIB
from support.cli import Stoker
from support.torch import with_torch
from support.training_job import TRAIN

SHOW = "import os; print(os.environ.get('PYTORCH_CUDA_ALLOC_CONF'))"
CAPPED = "per_process_memory_fraction:0.0833\n"
"""2 of 24 GiB."""
CAPPED_TRAIN = f"{TRAIN} --cap"
"""A job that keeps to the limits that its environment sets, as PyTorch does."""


def install(program: Stoker, version: str) -> None:
    """Let jobs find a version of PyTorch."""
    program.environment["PYTHONPATH"] = with_torch(program.home, version)["PYTHONPATH"]


def log(background: Background, job_id: int) -> str:
    """What a job wrote."""
    background.wait_over(job_id)
    return background("logs", str(job_id)).out


class TestDoors:
    """The same word everywhere."""

    def test_submit(self, background: Background) -> None:
        """The job's environment has it, beside the settings of the user."""
        install(background, "2.10.0")
        own = ("--env", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
        answer = background("submit", "--parsable", "--vram", "2G", "--cap", *own, "--", sys.executable, "-c", SHOW)
        assert answer.err == ""
        assert log(background, int(answer.out)) == f"expandable_segments:True,{CAPPED}"

    def test_an_older_torch(self, background: Background) -> None:
        """It would not even start with it, so it does without, and that is said."""
        install(background, "2.9.1")
        answer = background("submit", "--parsable", "--vram", "2G", "--cap", "--", sys.executable, "-c", SHOW)
        assert (
            answer.err
            == f"stoker: --cap is ignored: PyTorch 2.9.1 of {sys.executable} does not support it (needs 2.10)\n"
        )
        assert log(background, int(answer.out)) == "None\n"

    def test_run(self, stoker: Stoker) -> None:
        """In the foreground just the same, with commands of a list that go through a shell."""
        install(stoker, "2.11.0+cu130")
        line = shlex.join([sys.executable, "-c", SHOW])
        outcome = stoker("run", "--sim", "1x24G", "--vram", "2G", "--cap", str(stoker.write("list", line, "sleep 0")))
        assert outcome.code == 0
        assert outcome.err.count("--cap is ignored: cannot find out which Python the command runs") == 1
        assert sorted(stoker.logs()) == ["", CAPPED]

    def test_files(self, background: Background) -> None:
        """A job file may ask for it, and configured defaults for all jobs, to which a job may say no."""
        install(background, "2.10.0")
        settings = background.home / "settings"
        (settings / "stoker").mkdir(parents=True)
        (settings / "stoker/config.toml").write_text("[defaults]\nvram = '2G'\ncap = true\n")
        background.environment["XDG_CONFIG_HOME"] = str(settings)
        jobs = [{"command": [sys.executable, "-c", SHOW], **own} for own in ({}, {"cap": False})]
        answer = background("submit", "--parsable", "-f", str(background.write("jobs.jsonl", *map(json.dumps, jobs))))
        assert answer.err == ""
        assert [log(background, int(job)) for job in answer.out.split()] == [CAPPED, "None\n"]

    def test_python(self, background: Background) -> None:
        """A program's keyword is the same word; what is left out is a warning there."""
        install(background, "2.10.0")
        program = background.cwd / "program.py"
        program.write_text(
            "import os, stoker, sys\n"
            "def tell():\n    return os.environ.get('PYTORCH_CUDA_ALLOC_CONF')\n"
            "with stoker.Executor(vram='2G', cap=True) as pool:\n    print(pool.submit(tell).result())\n"
            "stoker.submit(['sleep', '0'], vram='2G', cap=True)\n"
        )
        outcome = background.typed(f"{shlex.quote(sys.executable)} program.py")
        assert outcome.out == CAPPED, outcome.err
        assert "RuntimeWarning: --cap is ignored: cannot find out" in outcome.err

    def test_edit(self, background: Background) -> None:
        """A job that waits may get it, or lose it."""
        install(background, "2.10.0")
        answer = background("submit", "--parsable", "--hold", "--vram", "2G", "--", sys.executable, "-c", SHOW)
        job = int(answer.out)
        assert "cap False → True" in background("edit", str(job), "--cap").out
        assert background.job(job).spec.cap
        assert "cap True → False" in background("edit", str(job), "--no-cap").out
        install(background, "2.4")
        other = int(background("submit", "--parsable", "--hold", "--vram", "2G", "--", sys.executable, "x.py").out)
        assert "PyTorch 2.4" in background("edit", str(other), "--cap").err
        assert not background.job(other).spec.cap


class TestHittingIt:
    """What becomes of a job that wants more than is set aside."""

    def test_it_gets_more(self, background: Background) -> None:
        """Though it has the GPU to itself, it fails at its cap, and comes back with more, without a retry spent."""
        install(background, "2.10.0")
        answer = background(
            "submit", "--parsable", "--vram", "4G", "--cap", f"{CAPPED_TRAIN} --memory 5G --ramp 0.5 --seconds 1"
        )
        job = int(answer.out)
        background.wait_over(job)
        assert background.word(job) == "done"
        assert (background.job(job).shared_failures, background.job(job).failures) == (1, 0)
        with background.open_store() as store:
            needs = [event.resources for event in store.events(job) if isinstance(event, Assigned)]
        assert [resources.floor if resources else 0 for resources in needs] == [0, 6 * GIB]

    def test_in_company(self, background: Background) -> None:
        """The neighbour, who kept to his share, notices nothing."""
        install(background, "2.10.0")
        neighbour = background(
            "submit", "--parsable", "--vram", "16G", "--on", "0", f"{CAPPED_TRAIN} --memory 16G --seconds 2"
        )
        background.wait_begun(int(neighbour.out))
        greedy = background(
            *("submit", "--parsable", "--vram", "4G", "--cap", "--on", "0"),
            f"{CAPPED_TRAIN} --memory 6G --ramp 0.3 --seconds 1",
        )
        background.wait_over(int(neighbour.out), int(greedy.out))
        assert [background.word(int(answer.out)) for answer in (neighbour, greedy)] == ["done", "done"]
        assert background.job(int(neighbour.out)).tries == 1
        assert background.job(int(greedy.out)).shared_failures == 1

    @pytest.mark.parametrize("vram", ["4G", "all"])
    def test_a_limit_of_the_users_own(self, background: Background, vram: str) -> None:
        """It stays where no share would do, and the end says that it is a limit and not the GPU."""
        install(background, "2.10.0")
        own = "PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.05"
        job = int(
            background(
                "submit", "--parsable", "--vram", vram, "--env", own, f"{CAPPED_TRAIN} --memory 5G --seconds 1"
            ).out
        )
        background.wait_over(job)
        assert background.word(job) == "oom"
        assert background.ended(job).note.startswith("exceeded the GPU memory limit set in its environment:")
