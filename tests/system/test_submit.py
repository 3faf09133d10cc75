"""`stoker submit`: what gets into the queue, and what the job finds when it runs."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from stoker.cli.commands.submit import SubmitResult
from stoker.cli.screens.dry_run import SubmitPlan
from stoker.core.job import Job, OnHold
from stoker.core.spec import Dependency, Resources
from support.background import Background
from support.cli import until
from support.optional import require
from support.wait import PATIENCE_SECONDS


def submitted(queue: Background, *arguments: str, **environment: str) -> Job:
    """The job that a command line puts into the queue."""
    outcome = queue("submit", "--parsable", *arguments, cwd=None, **environment)
    assert outcome.code == 0, outcome.err
    return queue.job(int(outcome.out))


def output(queue: Background, *arguments: str, **environment: str) -> str:
    """What a submitted job writes."""
    job = submitted(queue, *arguments, **environment)
    queue.wait_over(job.id)
    return (queue.paths.logs / f"{job.id}.log").read_text()


class TestCommands:
    """How the words become a command."""

    def test_several_words_are_executed(self, background: Background) -> None:
        """No shell sees them, whatever they contain."""
        assert output(background, "--", "printf", "%s|", "a b", "$HOME", "{x}") == "a b|$HOME|{x}|"

    def test_one_word_with_blanks_is_a_line_for_the_shell(self, background: Background) -> None:
        """The shell of the submitter reads it."""
        assert output(background, "echo a; echo b") == "a\nb\n"

    def test_words_can_be_made_a_line(self, background: Background) -> None:
        """With -s the words are joined and read by the shell."""
        assert output(background, "-s", "echo", "a", ";", "echo", "b") == "a\nb\n"

    def test_placeholders(self, background: Background) -> None:
        """Id, name and device are filled in; what is no known name stays, and so does a shell's own."""
        line = "id={id}; echo $id ${id} {gpu} {name} {other}"
        assert output(background, "-J", "run one", "--on", "1", line) == "1 1 1 run one {other}\n"

    def test_the_alias(self, background: Background) -> None:
        """`add` is the same verb."""
        assert background("add", "--hold", "true").out == "submitted 1: true\n"

    def test_a_file_of_lines(self, background: Background) -> None:
        """Each line is a job; -f - reads them from stdin."""
        background.write("jobs.txt", "echo a", "# no job", "echo b")
        assert background("submit", "--hold", "-f", "jobs.txt").out == "submitted 1-2 (2 jobs)\n"
        outcome = background("submit", "--hold", "--parsable", "-f", "-", stdin="echo c\necho d\n")
        assert outcome.out == "3\n4\n"
        assert [background.job(number).command.text for number in (1, 4)] == ["echo a", "echo d"]

    def test_a_file_with_options(self, background: Background) -> None:
        """A job's own options go before those of the command line; arrays are among them."""
        background.write(
            "jobs.jsonl",
            '{"command": ["train", "a"], "gpus": 2, "tag": {"lr": 0.1}}',
            '{"command": "train b", "array": "1-2", "name": "b", "group": "vision"}',
            '{"command": "train c", "no_requeue": true, "retry_on": [75, "timeout"]}',
        )
        outcome = background("submit", "--hold", "-G", "1", "-f", "jobs.jsonl")
        assert outcome.out == "submitted 1: train a\nsubmitted 2 (tasks 1-2): train b\nsubmitted 4: train c\n"
        first, task, last = (background.job(number) for number in (1, 3, 4))
        assert (first.spec.resources.gpus, first.spec.tags) == (2, (("lr", "0.1"),))
        assert (task.spec.resources.gpus, task.array, task.task, task.name, task.spec.group) == (1, 2, 2, "b", "vision")
        assert (last.spec.requeue, last.spec.retry_on) == (False, ("75", "timeout"))


class TestWhatTheJobGets:
    """Directory, environment, logs and what is noted about it."""

    def test_environment_and_directory_are_those_of_the_submitter(self, background: Background) -> None:
        """Not those of the engine, which was started by another command."""
        background.start_engine()
        place = background.cwd / "a'; echo b"
        place.mkdir()
        background("submit", "--env", "SEED=3", "echo $FLAVOUR $SEED; pwd", cwd=place, FLAVOUR="plum")
        background.wait_over(1)
        assert (background.paths.logs / "1.log").read_text() == f"plum 3\n{place}\n"

    def test_a_job_that_submits_does_not_pass_its_own_index_on(self, background: Background) -> None:
        """Variables that tell a job who it is are not those of the one it submits."""
        job = submitted(background, "--hold", "true", STOKER_ARRAY_INDEX="7", STOKER_JOB_ID="9", FLAVOUR="plum")
        with background.open_store() as store:
            kept = store.environment(job.spec.environment)
        assert kept["FLAVOUR"] == "plum"
        assert {"STOKER_ARRAY_INDEX", "STOKER_JOB_ID"}.isdisjoint(kept)

    def test_logs_are_private(self, background: Background) -> None:
        """Nobody else can look into their directory."""
        output(background, "true")
        assert background.paths.logs.stat().st_mode & 0o777 == 0o700

    def test_tasks_have_a_folder(self, background: Background) -> None:
        """The log of a task is named by its index, in a folder named by the array."""
        first = submitted(background, "-a", "3-5:2%1", "echo {i} $STOKER_ARRAY_INDEX").id
        background.wait_over(first, first + 1)
        folder = background.paths.logs / str(first)
        assert {path.name: path.read_text() for path in folder.iterdir()} == {"3.log": "3 3\n", "5.log": "5 5\n"}
        assert background.job(first).spec.at_once == 1

    def test_patterns_of_log_names(self, background: Background) -> None:
        """Slurm's placeholders, seen from the job's directory."""
        job = submitted(background, "-J", "vit b", "-o", "%x-%j.out", "-e", "%j.err", "echo out; echo err >&2")
        background.wait_over(job.id)
        assert (background.cwd / f"vit_b-{job.id}.out").read_text() == "out\n"
        assert (background.cwd / f"{job.id}.err").read_text() == "err\n"

    def test_the_commit_is_noted(self, background: Background) -> None:
        """With a star where files differ from it, and not at all outside of a repository."""
        assert submitted(background, "--hold", "true").spec.commit == ""
        repository(background.cwd)
        clean = submitted(background, "--hold", "true").spec.commit
        (background.cwd / "file").write_text("other")
        assert submitted(background, "--hold", "true").spec.commit == f"{clean}*"
        assert len(clean) == 7

    def test_terms(self, background: Background) -> None:
        """Every option arrives."""
        options = "-G 0 --priority 3 --group g -t 90 --grace 5s --retries 2 --retry-on oom,75 --no-requeue --tag a=b"
        spec = submitted(background, "--hold", *options.split(), "-b", "now+1hour", "true").spec
        assert (spec.priority, spec.group, spec.limit, spec.grace) == (3, "g", 5400.0, 5.0)
        assert (spec.retries, spec.retry_on, spec.requeue) == (2, ("oom", "75"), False)
        assert (spec.tags, spec.resources.gpus) == ((("a", "b"),), 0)
        assert spec.begin is not None
        assert abs(spec.begin - time.time() - 3600) < 60

    def test_defaults_are_configured(self, background: Background) -> None:
        """A project's file, a variable, a flag: the later one wins."""
        background.write("stoker.toml", "[defaults]", "priority = 1", "retries = 1", "group = 'g'")
        spec = submitted(background, "--hold", "--retries", "3", "true", STOKER_PRIORITY="2").spec
        assert (spec.priority, spec.retries, spec.group) == (2, 3, "g")

    def test_a_name_of_control_characters(self, background: Background) -> None:
        """It is accepted as it is, and shown escaped."""
        name = "evil\n\x1b[31mred"
        job = submitted(background, "--hold", "-J", name, "true")
        assert job.name == name
        shown = background("status").out
        assert "\x1b" not in shown
        assert "evil\\n\\x1b[31mred" in shown


class TestDependencies:
    """What --after can name."""

    def test_kinds_and_names(self, background: Background) -> None:
        """Ids, `last`, names, whole arrays and single tasks."""
        background("submit", "--hold", "-J", "first", "true")
        background("submit", "--hold", "-a", "0-2", "true")
        after = submitted(background, "--hold", "-d", "first,any:2,notok:2.1,ok:last", "true").spec.after
        array = Dependency(2, "any", array=True)
        assert after == (Dependency(1), array, Dependency(3, "notok"), Dependency(2, array=True))

    def test_its_directory_may_be_made_by_the_other(self, background: Background) -> None:
        """A job that waits for another is accepted before its directory exists."""
        background.submit("mkdir later", held="at first", start=False)
        job = submitted(background, "--hold", "-d", "1", "-G", "0", "-D", "later", "--", "true")
        assert job.spec.cwd == str(background.cwd / "later")

    def test_it_starts_when_the_other_is_done(self, background: Background) -> None:
        """And is skipped where that did not go well."""
        first = submitted(background, until("gate")).id
        second, third = (
            submitted(background, "-d", "last", "true").id,
            submitted(background, "-d", f"notok:{first}", "x").id,
        )
        assert background.word(second) == "waiting"
        background.open_gate("gate")
        background.wait_over(second, third)
        assert (background.word(second), background.word(third)) == ("done", "skipped")


class TestEngine:
    """How submit gets on with the engine."""

    def test_it_is_started_once(self, background: Background) -> None:
        """The first submit starts it, the next one finds it."""
        background("submit", "true")
        process = background.engine_process
        assert process is not None
        background("submit", "true")
        assert background.engine_process == process

    @pytest.mark.parametrize("gpus", ["0", "1"])
    def test_jobs_are_safe_where_it_cannot_be_started(self, background: Background, gpus: str) -> None:
        """The id is told all the same; a later engine runs the job."""
        (background.paths.engines).mkdir(mode=0o700)
        (background.paths.state / "engine.log").mkdir()
        outcome = background("submit", "-G", gpus, "true")
        assert (outcome.code, outcome.out) == (3, "submitted 1: true\n")
        assert "is in the queue, but the engine" in outcome.err
        (background.paths.state / "engine.log").rmdir()
        background.start_engine()
        background.wait_over(1)

    def test_held_jobs_wait_for_their_release(self, background: Background) -> None:
        """--hold keeps a job from starting, and says so."""
        job = submitted(background, "--hold", "true")
        assert isinstance(job.state, OnHold)
        assert job.state.note


class TestOutput:
    """What it prints."""

    def test_json(self, background: Background) -> None:
        """One value, with the log of each job."""
        outcome = background("submit", "--hold", "--json", "-J", "n", "--", "echo", "a b")
        result = msgspec.json.decode(outcome.out, type=SubmitResult)
        (job,) = result.jobs
        assert (result.schema, result.held, result.problem) == ("stoker.submit/1", True, None)
        assert (job.id, job.name, job.command, job.tasks) == (1, "n", "echo 'a b'", None)
        assert job.log == str(background.paths.logs / "1.log")

    def test_secrets_are_kept_and_not_printed(self, background: Background) -> None:
        """The job finds its token; nothing that we print does."""
        secret = "abcdefgh12345678"
        line = "test $HUB_TOKEN = $(echo abcdefgh)12345678 && echo found"
        assert output(background, line, HUB_TOKEN=secret) == "found\n"
        for arguments in (
            ("submit", "--dry-run", line),
            ("submit", "--json", line),
            ("status", "1"),
            ("status", "--json"),
        ):
            printed = background(*arguments, HUB_TOKEN=secret)
            assert secret not in printed.out + printed.err


class TestDryRun:
    """What would happen."""

    def plan(self, queue: Background, *arguments: str) -> SubmitPlan:
        """The plan as data."""
        return msgspec.json.decode(queue("submit", "--dry-run", "--json", *arguments).out, type=SubmitPlan)

    def test_it_writes_nothing(self, background: Background) -> None:
        """No job is in the queue, and no engine was started."""
        outcome = background("submit", "--dry-run", "true")
        assert outcome.code == 0
        assert "not known: the engine has not run here yet" in outcome.out
        assert background.engine_process is None
        with background.open_store() as store:
            assert store.last_job() is None

    def test_it_tells_what_the_plan_says(self, background: Background) -> None:
        """Devices for what would start, a reason for what would wait."""
        background.start_engine()
        first, second, third = self.plan(background, "-a", "0-2", "echo {i}").jobs
        assert [job.job for job in (first, second, third)] == ["1.0", "1.1", "1.2"]
        assert (first.devices, second.devices, third.devices) == (["0"], ["1"], [])
        assert (first.how, first.need, first.why) == ("/bin/sh -c", "1 GPU", "starts at once")
        assert third.why == "needs 1 GPU; none free"

    def test_it_tells_what_is_waited_for(self, background: Background) -> None:
        """Dependencies and moments."""
        background.submit(until("gate"), resources=Resources(gpus=0))
        (job,) = self.plan(background, "-d", "1", "-G", "0", "--", "x", "y z").jobs
        assert (job.after, job.why, job.how, job.command) == (["1 (ok)"], "waiting for 1 to succeed", "exec", "x 'y z'")
        (job,) = self.plan(background, "-b", "now+1hour", "true").jobs
        assert job.start is not None
        background.open_gate("gate")


_HEAVY = {"stoker.engine", "stoker.sites", "stoker.runner"}


def test_what_is_not_needed_is_not_loaded(background: Background) -> None:
    """A submit beside a living engine loads no display, no driver, and nothing to start processes with."""
    background("submit", "-G", "0", "true")
    background.environment["PYTHONPROFILEIMPORTTIME"] = "1"
    outcome = background("submit", "true")
    loaded = {line.rpartition("|")[2].strip() for line in outcome.err.splitlines()}
    assert "stoker.app.jobs.submit" in loaded
    assert loaded.isdisjoint({"rich", "pynvml", "psutil", "asyncio", "subprocess", "tomllib", *_HEAVY})


def test_starting_the_engine_does_not_load_it(background: Background) -> None:
    """The first submit starts the engine as a process, and needs nothing of it."""
    outcome = background("submit", "true", PYTHONPROFILEIMPORTTIME="1")
    assert background.engine_process is not None
    loaded = {line.rpartition("|")[2].strip() for line in outcome.err.splitlines()}
    assert "stoker.app.jobs.submit" in loaded
    assert loaded.isdisjoint({"rich", "pynvml", "asyncio", *_HEAVY})


def repository(path: Path) -> None:
    """Make a Git repository with one commit of one file."""
    (path / "file").write_text("text")
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    for words in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "first"]):
        subprocess.run(
            [require("git"), *words], cwd=path, env={**os.environ, **identity}, check=True, timeout=PATIENCE_SECONDS
        )


@pytest.mark.parametrize("form", ["", "--parsable", "--json"])
@pytest.mark.parametrize("where", ["> /dev/full", ">&-"])
def test_an_id_that_cannot_be_printed(background: Background, form: str, where: str) -> None:
    """It is told beside the output, with the job in the queue, so that nobody submits twice."""
    outcome = background.typed(f"stoker submit --hold {form} true {where}")
    assert outcome.code == 125
    assert "job 1 is in the queue, but its id could not be printed" in outcome.err
    assert "do not submit" in outcome.err
    assert "try again" not in outcome.err
    assert background.word(1) == "held"


class TestKey:
    """`stoker submit --key`."""

    def test_the_same_key_submits_once(self, background: Background) -> None:
        """A command, an array and a list of both: the same ids are printed again, and there are no more jobs."""
        background.start_engine()
        background.write("list.jsonl", '{"command": "true"}', '{"command": "true", "array": "0-2"}')
        for key, typed in (
            ("one", ("--", "true")),
            ("array", ("-a", "0-3", "--", "true")),
            ("list", ("-f", "list.jsonl")),
        ):
            first = background("submit", "--key", key, "--parsable", *typed)
            again = background("submit", "--key", key, "--parsable", *typed)
            assert (first.code, again.code) == (0, 0), again.err
            assert first.out == again.out != ""
            assert (first.err, "was used before" in again.err) == ("", True)
        with background.open_store() as store:
            assert store.last_job() == 1 + 4 + 1 + 3
        said = background("submit", "--key", "array", "--json", "-a", "0-3", "--", "true").out
        shown = msgspec.json.decode(said, type=SubmitResult)
        assert (shown.repeated, shown.jobs[0].id, shown.jobs[0].count) == (True, 2, 4)

    def test_another_command_under_the_key_is_refused(self, background: Background) -> None:
        """The command, an option, or the directory differs."""
        background.start_engine()
        assert background("submit", "--key", "k", "--", "true").code == 0
        for typed in (("--", "false"), ("-G", "0", "--", "true"), ("--hold", "--", "true")):
            refused = background("submit", "--key", "k", *typed)
            assert refused.code == 2
            assert "the key 'k' was used for another command" in refused.err
        assert background("submit", "--key", "k", "--", "true", cwd=background.home).code == 2
        assert background("submit", "--key", "", "--", "true").code == 2

    def test_two_at_once(self, background: Background) -> None:
        """Of submits at the same time, one adds the job, and all print its id."""
        background.start_engine()
        typed = ("submit", "--key", "k", "--parsable", "--", "true")
        started = [background.start(*typed) for _ in range(4)]
        assert {background.finish(process).out for process in started} == {"1\n"}
        with background.open_store() as store:
            assert store.last_job() == 1


def test_an_engine_that_cannot_be_woken(background: Background) -> None:
    """The job is in the queue, and the user is told so: the same submit again would be a second job."""
    assert background("submit", "-G", "0", "true").code == 0
    background.wait_over(1)
    fifo = background.paths.engines / "queue.wake"
    fifo.rename(fifo.with_suffix(".away"))
    fifo.mkdir()
    done = background("submit", "-G", "0", "--", "touch", "ran")
    assert (done.code, done.out) == (3, "submitted 2: touch ran\n")
    assert "the job is in the queue, but the engine could not be started or reached: Is a directory" in done.err
    fifo.rmdir()
    fifo.with_suffix(".away").rename(fifo)
    assert background("submit", "-G", "0", "true").code == 0
    background.wait_over(2, 3)
