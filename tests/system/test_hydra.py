"""`hydra/launcher=stoker`: multiruns of programs with the real Hydra, each job on GPUs from the queue."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import stoker
from stoker.app.jobs.options import JobOptions
from stoker.core.job import state_word
from support.hydra_program import Studio
from support.python_program import Programs, programs_in
from support.wait import wait_until


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """One queue for all tests here."""
    with programs_in(tmp_path_factory.mktemp("hydra")) as made:
        yield made


@pytest.fixture
def studio(queue: Programs, request: pytest.FixtureRequest) -> Iterator[Studio]:
    """A folder for one test."""
    with contextlib.closing(Studio(queue, request.node.name)) as made:
        yield made


class TestMultirun:
    """As people type it."""

    def test_each_job_has_a_gpu_and_a_folder(self, studio: Studio) -> None:
        """Folders, logs and configurations are where Hydra puts them; two jobs at a time are on two GPUs.

        In the queue they are the tasks of an array that has the program's name, with the overrides to be seen.
        """
        ended = studio.run("rate=1e-3,1e-4", "text='a, b','c=d'", "++together=2", "hydra.launcher.max_parallel=2")
        assert ended.code == 0, ended.err
        (path,) = studio.folder.glob("multirun/*/*/multirun.yaml")
        sweep = path.parent
        assert re.fullmatch(r"multirun/\d{4}-\d\d-\d\d/\d\d-\d\d-\d\d", str(sweep.relative_to(studio.folder)))
        configs = [OmegaConf.load(sweep / f"{number}/.hydra/config.yaml") for number in range(4)]
        values = [(config.rate, config.text) for config in configs]
        assert values == [(0.001, "a, b"), (0.001, "c=d"), (0.0001, "a, b"), (0.0001, "c=d")]
        assert "rate 0.001" in (sweep / "1/train.log").read_text()
        jobs = studio.jobs()
        assert [(job.name, job.task, job.spec.at_once) for job in jobs] == [("train", task, 2) for task in range(4)]
        assert jobs[1].command.words[-4:] == ("train.train", "rate=0.001", "text='c=d'", "together=2")

    def test_failure_is_told_at_the_end(self, studio: Studio) -> None:
        """As with every launcher of Hydra; the other jobs have run, and the log is named."""
        ended = studio.run("act=raise,return", "text=why", "hydra.launcher.vram=1G")
        assert ended.code == 1
        assert "Trouble: why" in ended.err
        assert re.search(r"in job \d+\.0, whose log is /.*/0\.log", ended.err)
        assert [state_word(job) for job in studio.jobs()] == ["failed", "done"]

    def test_ctrl_c_stops_what_runs_and_what_waits(self, studio: Studio) -> None:
        """Nothing is left behind, as with a program that runs its jobs itself."""
        process = studio.start("act=wait", "rate=1,2,3", "hydra.launcher.grace=5s")
        wait_until(lambda: studio.began() == 2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGINT, err
        assert "Stopping 3 jobs" in out
        assert [state_word(job) for job in studio.jobs()] == ["cancelled"] * 3


class TestReturned:
    """What sweepers get, batch by batch."""

    def test_value_of_each_in_order(self, studio: Studio) -> None:
        """Numbers go on in the next batch, and every job ran where and as Hydra was told."""
        told = studio.returned(
            [[["rate=3"], ["rate=1"]], [["rate=2", "text='x=\"1\", y'"]]],
            "hydra.job.chdir=true",
            "+hydra.job.env_set.COLOUR='dark blue'",
            "hydra.launcher.vram=1G",
        )
        values = [each["value"] for each in told]
        assert [(each["value"], each["num"]) for each in values] == [(6, 0), (2, 1), (4, 2)]
        assert values[2]["text"] == 'x="1", y'
        assert {each["colour"] for each in values} == {"dark blue"}
        assert [each["cwd"] for each in values] == [each["folder"] for each in told]
        assert [Path(each["folder"]).name for each in told] == ["0", "1", "2"]
        assert [each["id"] for each in values] == [f"{job.array}.{job.task}" for job in studio.jobs()]
        assert stoker.job(values[2]["id"]).result(60).return_value == values[2]  # also for other programs
        assert values[0]["argv"] == [str(studio.folder / "train.py"), "rate=3"]

    def test_failures_are_returned_like_values(self, studio: Studio) -> None:
        """An exception, a death, an exit or a value that cannot travel does not affect other results."""
        acts = ("raise", "die", "leave", "keep", "return")
        told = studio.returned([[[f"act={act}", f"rate={rate}"] for rate, act in enumerate(acts)]], "text=why")
        assert [each["kind"] for each in told] == ["Trouble", "JobFailed", "JobFailed", "JobFailed", "NoneType"]
        assert "why" in told[0]["error"]
        assert "was killed by signal 9" in told[1]["error"]
        assert "SystemExit: 3" in told[2]["error"]
        assert "cannot be sent back" in told[3]["error"]
        assert all(f"/{number}.log" in told[number]["error"] for number in range(4))
        assert [each["overrides"] for each in told[:2]] == [
            ["text=why", "act=raise", "rate=0"],
            ["text=why", "act=die", "rate=1"],
        ]
        assert [(each["rate"], each["num"], each["name"]) for each in told] == [(n, n, "train") for n in range(5)]
        assert [Path(each["folder"]) for each in told] == [Path(told[4]["folder"]).with_name(str(n)) for n in range(5)]
        assert {each["working_dir"] for each in told} == {str(studio.folder)}


class TestOptions:
    """`hydra.launcher.*` are the options of the command line."""

    def test_each_job_may_have_its_own(self, studio: Studio) -> None:
        """Options may be told by what is swept over."""
        told = studio.returned(
            [[["gpus=1"], ["gpus=2"]]],
            "hydra.launcher.gpus=${gpus}",
            "hydra.launcher.name=try-${gpus}",
            "hydra.launcher.prefer=[1]",
            "+hydra.launcher.env.COLOUR=red",
            "hydra.launcher.time=30",
            "hydra.launcher.vram=auto",
        )
        assert all(job.spec.resources.auto for job in studio.jobs())
        assert [len(each["value"]["gpus"]) for each in told] == [1, 2]
        assert {each["value"]["colour"] for each in told} == {"red"}
        assert [(job.name, job.spec.limit) for job in studio.jobs()] == [("try-1", 1800), ("try-2", 1800)]

    @pytest.mark.parametrize(("option", "said"), [("vram=8", "has no unit\nwrite 8G"), ("gpus=7", "needs 7 GPUs")])
    def test_what_cannot_be_is_refused(self, studio: Studio, option: str, said: str) -> None:
        """In a sentence, before anything is submitted."""
        ended = studio.run("rate=1,2", f"hydra.launcher.{option}")
        assert ended.code == 1
        assert said in ended.err
        assert "Traceback" not in ended.err
        assert studio.jobs() == []

    def test_words_are_those_of_the_command_line(self) -> None:
        """All but two: where jobs begin, and that they are an array, is Hydra's matter."""
        from hydra_plugins.stoker_launcher import StokerConf

        words = {field.name for field in fields(StokerConf)} - {"_target_", "max_parallel"}
        assert words == set(JobOptions.__struct_fields__) - {"chdir", "array"}


def test_others_do_not_pay_for_the_plugin(queue: Programs) -> None:
    """Hydra loads all plugins there are, in every program; of Stoker that is one small file."""
    said = queue.run_script("""
        import sys
        from hydra.core.plugins import Plugins
        Plugins.instance()
        print([name for name in sys.modules if "stoker" in name])
    """)
    assert said == "['hydra_plugins.stoker_launcher']\n"
