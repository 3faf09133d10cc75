"""`--warm`: jobs that are forked from a process which has imported their packages."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

import stoker
from support.background import Background
from support.optional import require
from support.python_program import programs_in
from support.wait import PATIENCE_SECONDS

SCRIPT = """
import os, random, sys
import cloudpickle
from beside import value
print(os.path.basename(sys.argv[0]), sys.argv[1:], value, os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
"""


def output(queue: Background, *arguments: str) -> str:
    """What a submitted job writes."""
    outcome = queue("submit", "--parsable", *arguments)
    assert outcome.code == 0, outcome.err
    queue.wait_over(int(outcome.out))
    return log_of(queue, int(outcome.out))


def log_of(queue: Background, job_id: int) -> str:
    """What a job has written."""
    return (queue.paths.logs / f"{job_id}.log").read_text()


class TestCommand:
    """On the command line."""

    def test_a_script_with_modules_beside_it(self, background: Background) -> None:
        """The job gets its words and its GPU, and a later edit of its own modules is seen."""
        (background.cwd / "train.py").write_text(SCRIPT)
        for value in ("one", "two!"):
            (background.cwd / "beside.py").write_text(f"value = {value!r}")
            text = output(background, "--warm", "--no-freeze", "--", sys.executable, "train.py", "--lr", "0.1")
            assert text.splitlines()[0] == f"train.py ['--lr', '0.1'] {value} 0"

    def test_frozen_code(self, background: Background) -> None:
        """A template belongs to one snapshot, and the modules that it has come from there."""
        require("git")
        for words in (("init", "-q"), ("add", ".")):
            subprocess.run(["git", *words], cwd=background.cwd, check=True, timeout=PATIENCE_SECONDS)
        (background.cwd / "train.py").write_text("import beside; print(beside.value, beside.__file__)")
        outcomes = []
        for value in ("one", "two!"):
            (background.cwd / "beside.py").write_text(f"value = {value!r}")
            options = ("--parsable", "--warm=beside", "--freeze", "--hold")
            outcomes.append(int(background("submit", *options, "--", sys.executable, "train.py").out))
        (background.cwd / "beside.py").write_text("value = 'edited'")
        background("release", *map(str, outcomes))
        background.wait_over(*outcomes)
        logs = [log_of(background, number) for number in outcomes]
        assert [log.split()[0] for log in logs] == ["one", "two!"]
        assert all("/code/trees/" in log for log in logs)

    @pytest.mark.parametrize(
        ("words", "why"),
        [
            (["--warm=not_there_at_all", "--", sys.executable, "ok.py"], "not_there_at_all cannot be imported"),
            (["--warm", "--", "sh", "-c", "echo ok"], "sh is not python"),
            (["--warm", "--", sys.executable, "-c", "print('ok')"], "it runs code from its command line (-c)"),
        ],
    )
    def test_what_starts_cold(self, background: Background, words: list[str], why: str) -> None:
        """The job runs, and the first line of its log says why it was not forked."""
        (background.cwd / "ok.py").write_text("print('ok')")
        first, second = output(background, *words).splitlines()
        assert first.startswith("stoker: started cold: ")
        assert why in first
        assert second == "ok"

    @pytest.mark.parametrize("wish", ["--warm=a/b", "--warm=1x", "--warm=torch,,no-module"])
    def test_no_module(self, background: Background, wish: str) -> None:
        """A word that cannot be a module is refused."""
        outcome = background("submit", wish, "--", "true")
        assert outcome.code == 2
        assert "is not the name of a module" in outcome.err


def test_calls(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each call of an Executor has a process of its own, forked from one, and random numbers of its own."""

    def look(number: int) -> tuple[int, int, float, bool]:
        import os
        import sys

        return number, os.getpid(), random.random(), "stoker" in sys.modules

    with programs_in(tmp_path_factory.mktemp("warm")), stoker.Executor(gpus=1, warm=True) as executor:
        seen = list(executor.map(look, range(6)))
        job = executor.submit(look, 6)
        seen.append(job.result(60))
        log = job.stdout()
    assert [number for number, *_ in seen] == list(range(7))
    assert len({process for _, process, *_ in seen}) == len({value for *_, value, _ in seen}) == 7
    assert not any(has_stoker for *_, has_stoker in seen)
    assert log == ""
