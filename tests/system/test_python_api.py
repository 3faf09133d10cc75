"""Commands through the queue from Python, and what a program inside a job has to say and to hear."""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker
from stoker.app.jobs.options import JobOptions
from stoker.core.errors import NoSuchJob, UsageError
from stoker.python.keywords import Keywords, read_keywords, with_variables
from support.cli import until
from support.python_program import Programs, programs_in
from support.wait import wait_until


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """One queue for all tests here; each looks only at its own jobs."""
    with programs_in(tmp_path_factory.mktemp("api")) as made:
        yield made


class TestSubmit:
    """Commands."""

    def test_words_are_executed_and_text_goes_through_the_shell(self, queue: Programs) -> None:
        """As on the command line, but told apart by their type."""
        words = stoker.submit(["echo", "$HOME;", "*"], gpus=0)
        line = stoker.submit("echo $((6 * 7))", gpus=0)
        assert (words.result(60), line.result(60)) == (0, 0)
        assert (words.stdout(), line.stdout()) == ("$HOME; *\n", "42\n")

    def test_failure(self, queue: Programs) -> None:
        """The error has the exit code, the log, and the last line of it."""
        job = stoker.submit("echo so far; echo lost >&2; exit 3", gpus=0, name="broken")
        with pytest.raises(stoker.JobFailed, match=r"\(broken\) ended with exit code 3; .*ends with: lost") as raised:
            job.result(60)
        assert (job.state, job.exit_code, raised.value.log) == ("failed", 3, str(job.log))
        assert isinstance(job.exception(), stoker.JobFailed)

    def test_options(self, queue: Programs) -> None:
        """Keywords are the words of the command line; Python's own types do as well."""
        first = stoker.submit("true", gpus=0)
        job = stoker.submit(
            "env; echo oops >&2",
            vram="2G",
            on=[0, 1],
            after=[first],
            time=datetime.timedelta(minutes=90),
            grace=datetime.timedelta(0),
            priority=3,
            group="night",
            env={"SEED": 1},
            tags={"lr": 0.1},
            tag={"of": "the night"},
            err=queue.cwd / "%x.err",
            chdir=queue.cwd,
            name="options",
            retry_on=["oom", 75],
            retries=2,
        )
        assert job.result(60) == 0
        spec = queue.job(job.id).spec
        assert (spec.limit, spec.grace, spec.priority, spec.group, spec.retries) == (5400.0, 0.0, 3, "night", 2)
        assert (spec.tags, spec.retry_on) == ((("lr", "0.1"), ("of", "the night")), ("oom", "75"))
        assert [dependency.target for dependency in spec.after] == [first.id]
        assert "SEED=1\n" in job.stdout()
        assert job.stderr() == "oops\n"
        assert job.devices == ["0"]

    def test_array(self, queue: Programs) -> None:
        """A handle for each task."""
        jobs = stoker.submit_array(["echo", "{i}"], "0-2%2", gpus=0)
        stoker.wait(jobs, 60)
        assert [job.stdout() for job in jobs] == ["0\n", "1\n", "2\n"]

    def test_what_is_configured_counts(self, queue: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
        """Keywords go before variables, and those before files."""
        Path("stoker.toml").write_text('[defaults]\npriority = 1\ngroup = "file"\nretries = 4\n')
        monkeypatch.setenv("STOKER_PRIORITY", "2")
        monkeypatch.setenv("STOKER_RETRIES", "5")
        spec = queue.job(stoker.submit("true", gpus=0, priority=3).id).spec
        assert (spec.priority, spec.retries, spec.group) == (3, 5, "file")
        Path("stoker.toml").unlink()
        monkeypatch.setenv("STOKER_PRIORITY", "high")
        with pytest.raises(UsageError, match="STOKER_PRIORITY"):
            stoker.submit("true", gpus=0)

    @pytest.mark.parametrize(("command", "told"), [("", "empty"), ([], "empty"), (["a\0b"], "NUL"), ("  ", "empty")])
    def test_no_command(self, queue: Programs, command: str | list[str], told: str) -> None:
        """Nothing is submitted."""
        with pytest.raises(UsageError, match=told):
            stoker.submit(command)

    def test_hint_is_part_of_the_traceback(self, queue: Programs) -> None:
        """The hint is shown where a program does not catch the error."""
        process = queue.script("import stoker; stoker.submit('true', gpu=1)")
        _, err = process.communicate(timeout=60)
        assert "unknown key 'gpu'" in err
        assert "did you mean gpus?" in err

    def test_every_option_is_a_keyword(self) -> None:
        """What the command line can ask for, the types of the keywords have too."""
        assert {*JobOptions.__struct_fields__} - {*Keywords.__annotations__} == {"array"}

    def test_inside_a_job_its_own_memory_is_no_wish(self) -> None:
        """STOKER_VRAM tells a job how much it may use, in bytes."""
        inside = {"STOKER_JOB_ID": "1", "STOKER_VRAM": "17179869184", "STOKER_GPUS": "2"}
        assert with_variables(JobOptions(), inside) == JobOptions(gpus=2)

    def test_none_is_not_given(self) -> None:
        """So that a program can pass on what it has."""
        assert read_keywords({"vram": None, "after": None}) == JobOptions()


class TestFinding:
    """Jobs that are there already."""

    def test_by_id_name_and_words(self, queue: Programs) -> None:
        """The same words as on the command line; one handle where one job is meant."""
        tasks = stoker.submit_array("true", "3-4", gpus=0, name="found")
        exclusive = stoker.submit("true", gpus=0, name="alone")
        stoker.wait([*tasks, exclusive], 60)
        array = tasks[0].id
        assert stoker.job(f"{array}.4").id == tasks[1].id
        assert stoker.job("alone").id == stoker.job("last").id == stoker.job(exclusive.id).id == exclusive.id
        assert [job.id for job in stoker.jobs(array)] == [job.id for job in tasks]
        assert [job.id for job in stoker.jobs("found", exclusive)] == [*(job.id for job in tasks), exclusive.id]
        assert exclusive.id in [job.id for job in stoker.jobs(ended=True)]
        with pytest.raises(NoSuchJob, match="is 2 jobs"):
            stoker.job("found")

    def test_unknown(self, queue: Programs) -> None:
        """The error says what there is."""
        with pytest.raises(NoSuchJob, match="there is no job 999999"):
            stoker.job(999_999)
        with pytest.raises(NoSuchJob):
            stoker.jobs("nobody")

    def test_waiting(self, queue: Programs) -> None:
        """Handles, ids and words may be mixed; time may be up before the end."""
        slow, fast = stoker.submit(until("waited"), gpus=0), stoker.submit("true", gpus=0)
        ends = stoker.as_completed([slow, fast.id], 30)
        assert next(ends).id == fast.id
        queue.open_gate("waited")
        assert next(ends) is slow
        done, left = stoker.wait([slow, str(fast.id)], 60)
        assert ({job.id for job in done}, left) == ({slow.id, fast.id}, set())
        closed = stoker.submit(until("closed"), gpus=0)
        assert stoker.wait(closed, 0.05).not_done == {closed}
        closed.cancel()

    def test_shown(self, queue: Programs) -> None:
        """A handle says what it is."""
        job = stoker.submit("true", gpus=0, name="shown")
        job.wait(60)
        assert repr(job) == f"<stoker.Job {job.id} 'shown' done>"

    def test_peak_of_memory(self, queue: Programs) -> None:
        """What the engine has measured is known of a job."""
        words = [sys.executable, "-m", "stoker.devices.demo_job", "--memory", "3G", "--seconds", "1"]
        job = stoker.submit(words, vram="4G")
        assert job.peak_vram is None
        assert job.result(60) == 0
        assert job.peak_vram == 3 * 2**30

    def test_job_that_was_forgotten(self, queue: Programs) -> None:
        """Waiting for a job that left the history raises an error."""
        job = stoker.submit(until("forgotten"), gpus=0, name="forgotten")
        with queue.open_store() as store, store.writing() as database:
            database.execute("DELETE FROM jobs WHERE id = ?", (job.id,))
        with pytest.raises(NoSuchJob, match="no longer in the queue"):
            job.result(60)
        queue.open_gate("forgotten")


class TestInside:
    """What a program in a job can use."""

    def test_report_and_progress(self, queue: Programs) -> None:
        """They are kept with the job, and `stoker status` shows the newest."""
        program = (
            "import stoker, math\n"
            "stoker.report(step=1, loss=0.5)\n"
            "stoker.report(step=2, loss=math.nan, note='ok', shape=[1, 2])\n"
            "stoker.progress(3, 10)\n"
            "stoker.saved()\n"
        )
        job = stoker.submit([sys.executable, "-c", program], gpus=0)
        assert job.result(60) == 0
        first, second, third, fourth = job.reports()
        assert (first["step"], first["loss"], first["attempt"]) == (1, 0.5, 1)
        assert (second["loss"], second["note"], second["shape"]) == ("nan", "ok", [1, 2])
        assert (third["done"], third["total"]) == (3, 10)
        assert fourth["saved"] is True
        (details,) = json.loads(queue("status", "--json", str(job.id)).out)["jobs"]
        assert details["reported"] == {
            "values": {"step": 2, "loss": "nan", "note": "ok", "shape": [1, 2]},
            "done": 3,
            "total": 10,
        }
        assert queue.paths.report(job.id).stat().st_mode & 0o777 == 0o600

    def test_where_and_what(self, queue: Programs) -> None:
        """The directory of the job, and the parameters of a sweep."""
        program = "import os, stoker; os.chdir('/'); print(stoker.work_dir(), stoker.params())"
        job = stoker.submit([sys.executable, "-c", program], gpus=0, env={"STOKER_PARAMS": '{"lr": 0.1}'})
        assert job.result(60) == 0
        assert job.stdout() == f"{queue.cwd} {{'lr': 0.1}}\n"

    def test_should_stop(self, queue: Programs) -> None:
        """A program that asks is told of TERM in place of being ended by it, and ends as it likes."""
        program = (
            "import stoker, time\n"
            "assert not stoker.should_stop()\n"
            "print('ready', flush=True)\n"
            "while not stoker.should_stop(): time.sleep(0.01)\n"
            "print('saved')\n"
        )
        job = stoker.submit([sys.executable, "-c", program], gpus=0)
        wait_until(lambda: job.stdout() == "ready\n")
        assert job.cancel()
        assert job.wait(60)
        assert job.stdout() == "ready\nsaved\n"

    def test_should_stop_leaves_other_handlers(self, queue: Programs) -> None:
        """An existing handler of TERM is still called."""
        script = (
            "import os, signal, stoker\n"
            "signal.signal(signal.SIGTERM, lambda *_: print('mine'))\n"
            "print(stoker.should_stop()); os.kill(os.getpid(), signal.SIGTERM); print(stoker.should_stop())\n"
        )
        said = run_python(script, STOKER_JOB_ID="1")
        assert said.stdout == "False\nmine\nTrue\n"

    def test_should_stop_in_a_thread(self) -> None:
        """Only the main thread can listen; until it does, others hear nothing and nothing breaks."""
        script = (
            "import os, signal, stoker, threading\n"
            "thread = threading.Thread(target=lambda: print(stoker.should_stop())); thread.start(); thread.join()\n"
            "stoker.should_stop(); os.kill(os.getpid(), signal.SIGTERM)\n"
            "thread = threading.Thread(target=lambda: print(stoker.should_stop())); thread.start(); thread.join()\n"
        )
        assert run_python(script, STOKER_JOB_ID="1").stdout == "False\nTrue\n"

    def test_the_signal_to_save(self) -> None:
        """A preemptible job is told by its signal, which then calls what waits for it, and an older handler."""
        script = (
            "import os, signal, stoker\n"
            "signal.signal(signal.SIGUSR2, lambda *_: print('mine'))\n"
            "stoker.on_preempt(lambda: print('save'))\n"
            "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, stoker.should_stop())\n"
            "os.kill(os.getpid(), signal.SIGUSR2); print(stoker.should_stop())\n"
        )
        said = run_python(script, STOKER_JOB_ID="1", STOKER_SAVE_SIGNAL="USR2")
        assert said.stdout == "True False\nsave\nmine\nTrue\n"

    def test_a_call_may_end_the_program(self) -> None:
        script = "import os, signal, stoker, sys; stoker.on_preempt(lambda: sys.exit(75)); os.kill(os.getpid(), 10)"
        assert run_python(script, STOKER_JOB_ID="1", STOKER_SAVE_SIGNAL="USR1").returncode == 75

    def test_a_job_that_does_not_give_way(self) -> None:
        """Without the variable no signal is handled: USR1 ends the program, as it always did."""
        script = (
            "import os, signal, stoker\n"
            "stoker.on_preempt(print); stoker.should_stop()\n"
            "print(signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)\n"
        )
        assert run_python(script, STOKER_JOB_ID="1").stdout == "True\n"
        assert run_python(script, STOKER_SAVE_SIGNAL="USR1").stdout == "True\n"

    def test_on_preempt_in_a_thread(self) -> None:
        """A thread may only add to what the main thread has begun."""
        script = (
            "import os, signal, stoker, threading\n"
            "def add():\n"
            "    try: stoker.on_preempt(lambda: print('called'))\n"
            "    except RuntimeError as error: print('main thread' in str(error))\n"
            "def in_a_thread(): thread = threading.Thread(target=add); thread.start(); thread.join()\n"
            "in_a_thread(); stoker.should_stop(); in_a_thread(); os.kill(os.getpid(), signal.SIGUSR1)\n"
        )
        assert run_python(script, STOKER_JOB_ID="1", STOKER_SAVE_SIGNAL="USR1").stdout == "True\ncalled\n"

    def test_nothing_happens_outside(self, tmp_path: Path) -> None:
        """Without a job there are no parameters, no files and no handlers."""
        script = (
            "import os, signal, stoker\n"
            "stoker.report(loss=1); stoker.progress(1, 2); stoker.saved()\n"
            "print(stoker.params(), stoker.work_dir() == __import__('pathlib').Path.cwd(), stoker.should_stop())\n"
            "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, os.listdir())\n"
        )
        assert run_python(script, cwd=tmp_path).stdout == "{} True False\nTrue []\n"

    def test_report_never_fails(self, tmp_path: Path) -> None:
        """Neither a full disk nor a value of an unknown type ends a run."""
        script = (
            "import stoker\n"
            "class Odd:\n"
            "    def item(self): raise RuntimeError\n"
            "    def __repr__(self): return 'odd'\n"
            "class Scalar:\n"
            "    def item(self): return 0.25\n"
            "stoker.report(odd=Odd(), scalar=Scalar(), text='\\ud800', infinite=float('-inf'), table={1: (2, None)})\n"
        )
        assert run_python(script, STOKER_REPORT="/dev/full").returncode == 0
        assert run_python(script, STOKER_REPORT="/proc/nowhere/1.jsonl").returncode == 0
        path = tmp_path / "reports/1.jsonl"
        assert run_python(script, STOKER_REPORT=str(path), STOKER_ATTEMPT="2").returncode == 0
        told = json.loads(path.read_text())
        values = {"odd": "odd", "scalar": 0.25, "text": "\ud800", "infinite": "-inf", "table": {"1": [2, None]}}
        assert (told["values"], told["attempt"]) == (values, 2)


def test_importing_is_cheap() -> None:
    """The package loads nothing, and what jobs use of it next to nothing, of Stoker's or Python's."""
    script = "import sys; before = set(sys.modules); import stoker; {}; print(*sorted(set(sys.modules) - before))"
    assert run_python(script.format("None")).stdout.split() == ["stoker"]
    loaded = run_python(script.format("stoker.report(loss=1); stoker.should_stop()")).stdout.split()
    assert loaded == ["__future__", "stoker", "stoker.python", "stoker.python.in_job"]


def test_names_of_the_package() -> None:
    """What is promised is there, and nothing else by accident."""
    assert {"Executor", "submit", "jobs", "report"} <= set(dir(stoker))
    assert all(getattr(stoker, name) is not None for name in stoker.__all__)
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        stoker.train  # type: ignore[attr-defined]  # noqa: B018


def run_python(script: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program outside of any queue."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=cwd,
        env={**outside, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL) and None,
    )
