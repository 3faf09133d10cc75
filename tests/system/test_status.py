"""`stoker status` beside a real engine on simulated GPUs, and beside none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.app.views.job_details import SelectedJobs
from stoker.app.views.model import Status
from stoker.core.lease import Claim
from stoker.core.spec import Dependency, Resources
from stoker.ledger import Ledger, prepare_ledger
from stoker.store.engine_lock import QUEUE
from stoker.store.queries import drained_key, paused_key
from support.background import Background
from support.cli import until
from support.terminal import open_terminal
from support.wait import PATIENCE_SECONDS, wait_until

GIB = 2**30
NOT_LOADED = {
    *("rich", "textual", "numpy", "pynvml", "psutil", "asyncio", "statistics"),
    *(
        "stoker.engine.loop",
        "stoker.core.planner.plan",
        "stoker.experience",
        "stoker.core.logs.progress",
        "stoker.core.logs.oom",
    ),
}


def status(queue: Background, *words: str) -> Status:
    """What the queue tells programs."""
    outcome = queue("status", "--json", *words)
    assert outcome.code == 0, outcome.err
    return msgspec.json.decode(outcome.out, type=Status)


def told(queue: Background, *words: str) -> SelectedJobs:
    """What it tells of some jobs."""
    outcome = queue("status", "--json", *words)
    assert outcome.code == 0, outcome.err
    return msgspec.json.decode(outcome.out, type=SelectedJobs)


def settled(queue: Background, *ids: int) -> Status:
    """The status when the engine has given a reason to all of the jobs."""
    found: list[Status] = []

    def reasons() -> bool:
        found.append(status(queue))
        lines = {line.id: line for line in found[-1].jobs}
        return all(lines[one].why not in ("", "about to start") for one in ids)

    wait_until(reasons)
    return found[-1]


def test_every_waiting_job_says_why(background: Background) -> None:
    """Held, blocked, scheduled, or for want of devices: each in a word and a sentence."""
    running = background.submit(until("go"), until("go"))
    background.wait_word("running", *running)
    (queued,) = background.submit("true")
    (blocked,) = background.submit("true", after=(Dependency(queued),))
    (later,) = background.submit("true", begin=4e9)
    (held,) = background.submit("true", held="held by you")
    seen = settled(background, queued)
    lines = {line.id: line for line in seen.jobs}
    assert [lines[one].state for one in running] == ["running", "running"]
    assert sorted(device for one in running for device in lines[one].devices) == ["0", "1"]
    assert (lines[queued].state, lines[queued].why) == ("queued", "needs 1 GPU; none free")
    assert (lines[blocked].state, lines[blocked].why) == ("blocked", f"waiting for {queued} to succeed")
    assert (lines[later].state, lines[later].why) == ("scheduled", "begins 2096-10-02")
    assert (lines[held].state, lines[held].why) == ("held", "held by you")
    assert (seen.counts.active, seen.counts.waiting, seen.counts.held) == (2, 3, 1)
    assert seen.simulated
    assert seen.engine.running
    assert seen.engine.pid == background.engine_process


def test_devices_tell_who_has_what(background: Background) -> None:
    """What a job uses, what it reserved, and a stranger by name."""
    simjob = f"exec {sys.executable} -m stoker.devices.demo_job --seconds 60"
    (job_id,) = background.submit(f"{simjob} --memory 3G", resources=Resources(memory=6 * GIB, allowed=("SIM-0",)))
    background.wait_word("running", job_id)
    stranger = subprocess.Popen(
        [sys.executable, "-m", "stoker.devices.demo_job", "--seconds", "600", "--memory", "5G"],
        env={
            **background.environment,
            "STOKER_SIM_DIR": str(background.paths.simulator),
            "CUDA_VISIBLE_DEVICES": "1",
        },
    )
    try:
        wait_until(lambda: [device.used_bytes for device in status(background).devices] == [3 * GIB, 5 * GIB])
        seen = status(background)
    finally:
        stranger.kill()
        stranger.wait(PATIENCE_SECONDS)
    first, second = seen.devices
    assert (first.jobs, first.ours_bytes, first.reserved_bytes) == ([str(job_id)], 3 * GIB, 6 * GIB)
    assert (first.others_bytes, first.strangers) == (0, [])
    assert (second.jobs, second.ours_bytes, second.others_bytes) == ([], 0, 5 * GIB)
    assert [(one.pid, one.memory_bytes) for one in second.strangers] == [(stranger.pid, 5 * GIB)]
    assert seen.jobs[0].used_bytes == 3 * GIB


def test_an_array_is_one_line(background: Background) -> None:
    """Unless every task is wanted."""
    running = background.submit(until("go"), until("go"))
    background.wait_word("running", *running)
    first, *_ = background.submit(*["true"] * 30, array=True)
    (after,) = background.submit("true")
    lines = status(background).jobs
    assert [(line.label, line.tasks) for line in lines[2:]] == [(f"{first}.[0-29]", 30), (str(after), 1)]
    lines = status(background, "-a").jobs
    assert [line.label for line in lines[2:]] == [*(f"{first}.{task}" for task in range(30)), str(after)]


def test_lines_for_programs(background: Background) -> None:
    """A header and as many fields in every line, with Slurm's letters; also for `stoker` alone."""
    background.submit("true", "echo one\ttwo\n", names=["plain", "\x1b[31mred\n"], start=False)
    for outcome in (background("status", "--plain"), background(), background("ls"), background("st")):
        header, *lines = outcome.out.splitlines()
        fields = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
        assert [one["ID"] for one in fields] == ["1", "2"]
        assert [one["ST"] for one in fields] == ["PD", "PD"]
        assert [one["NAME"] for one in fields] == ["plain", r"\x1b[31mred\n"]
        assert fields[1]["COMMAND"] == r"echo one\ttwo\n"


def test_what_is_left_out_is_told_beside_the_lines(background: Background) -> None:
    """Many that wait are counted, and the command that shows them is named."""
    background.submit(*["true"] * 250, start=False)
    outcome = background("status", "--plain")
    assert len(outcome.out.splitlines()) == 201
    assert outcome.err == "stoker: 50 more waiting (stoker status -a)\n"
    assert len(background("status", "--plain", "-a").out.splitlines()) == 251
    seen = status(background)
    assert (seen.counts.waiting, seen.hidden.waiting) == (250, 50)


def test_without_an_engine(background: Background) -> None:
    """Jobs wait for one; devices and who holds them are asked from driver and ledger."""
    background.submit("true", start=False)
    held = Ledger(prepare_ledger(Path(background.environment["STOKER_LEDGER"])))
    lease = held.claim((Claim("sim:1"),), "another queue", time.time())
    assert lease
    seen = status(background)
    assert not seen.engine.running
    assert [[one.what for one in device.leases] for device in seen.devices] == [[], ["another queue"]]
    held.release(lease)
    assert seen.jobs[0].why == "engine not running (stoker engine start)"


def test_after_an_engine_the_devices_are_remembered(background: Background) -> None:
    """With when they were seen; what runs goes on and is shown."""
    (job_id,) = background.submit(until("go"))
    background.wait_word("running", job_id)
    wait_until(lambda: len(status(background).devices) == 2)
    background.kill_engine()
    seen = status(background)
    assert not seen.engine.running
    assert seen.engine.seen is not None
    assert [device.jobs for device in seen.devices] == [[str(job_id)], []]
    assert seen.jobs[0].state == "running"


def test_settings_are_shown(background: Background) -> None:
    """A paused queue and a drained device, each with who and since when."""
    background.start_engine()
    with background.open_store() as store:
        store.put_setting(paused_key(QUEUE), {"note": "paused by you", "at": 1000.0})
        store.put_setting(drained_key("SIM-1"), {"note": "drained by you", "at": 2000.0})
    wait_until(lambda: len(status(background).devices) == 2)
    seen = status(background)
    assert seen.engine.paused is not None
    assert (seen.engine.paused.note, seen.engine.paused.since.timestamp()) == ("paused by you", 1000.0)  # type: ignore[union-attr]
    assert seen.devices[0].drained is None
    assert seen.devices[1].drained is not None
    assert seen.devices[1].drained.note == "drained by you"


def test_jobs_of_a_foreground_run(background: Background) -> None:
    """They are shown with their reasons while it lives; when it has died, with how to go on."""
    run = background.start("run", "--sim", "1x24G", "-", stdin=subprocess.PIPE)
    assert run.stdin is not None
    run.stdin.write(f"{until('go')}\ntrue\n".encode())
    run.stdin.flush()
    wait_until(lambda: [line.state for line in status(background).jobs] == ["running", "queued"])
    wait_until(lambda: status(background).jobs[1].why == "needs 1 GPU; none free")
    seen = status(background)
    assert all(line.run for line in seen.jobs)
    assert [device.jobs for device in seen.devices] == [["1"]]
    run.send_signal(signal.SIGKILL)
    run.wait(PATIENCE_SECONDS)
    wait_until(lambda: "stoker run - was interrupted" in status(background).jobs[1].why)
    assert status(background).jobs[1].why.endswith("stoker resume 2")
    (left,) = status(background).interrupted
    assert (left.label, left.jobs, left.resume) == ("stoker run -", 1, "stoker resume 2")


def test_waiting_jobs_are_in_the_order_in_which_they_start(background: Background) -> None:
    """By priority and expected work, an array in one line; each knows its place, its title, and who goes first."""
    background.submit(until("go"), until("go"))
    wait_until(lambda: status(background).counts.active == 2)
    background.submit("echo long", limit=7200.0)
    background.submit("echo short", limit=60.0)
    background("submit", "--array", "0-4", "-t", "10m", "--", "echo", "{i}")
    background.submit("echo important", priority=5)
    wait_until(lambda: len([line for line in status(background).jobs if line.place]) == 4)
    queued = [line for line in status(background).jobs if line.state == "queued"]
    assert [(line.title, line.place) for line in queued] == [
        ("echo important", 1),
        ("echo short", 2),
        ("echo {i}", 3),
        ("echo long", 8),
    ]
    (task, last) = told(background, "5.3", "3").jobs
    assert (task.place, task.command) == (6, "echo 3")
    assert task.order[0].startswith("place 6 of 8: waited ")
    assert last.order[-1] == "job 10 goes first: priority 5, this job 0"
    (background.cwd / "go").touch()


def test_progress_and_failures(background: Background) -> None:
    """Progress comes from the log, and the reason of a failure, too."""
    (running,) = background.submit(f"echo epoch 1/4; {until('go')}; echo ValueError: bad; exit 1")
    wait_until(lambda: [line.progress for line in status(background).jobs] == [0.25])
    (background.cwd / "go").touch()
    background.wait_over(running)
    (failure,) = status(background).failures
    assert (failure.label, failure.how, failure.why) == ("1", "exit 1", "ValueError: bad")
    (details,) = told(background, "1").jobs
    assert details.failure == "ValueError: bad"
    assert details.progress is None


def test_hooks_are_hidden(background: Background) -> None:
    """Unless they are asked for."""
    background.submit("true", start=False)
    background.submit("true", role="hook", start=False)
    assert [line.id for line in status(background).jobs] == [1]
    assert [line.id for line in status(background, "--hooks").jobs] == [1, 2]


def test_the_story_of_a_job(background: Background) -> None:
    """Command, needs, every attempt with its end and its log, and what happened when."""
    (job_id,) = background.submit("exit 3", names=["try"], retries=1, tags=(("kind", "test"),), commit="abc*")
    background.wait_over(job_id)
    (details,) = told(background, str(job_id)).jobs
    assert (details.state, details.exit_code, details.name, details.commit) == ("failed", 3, "try", "abc*")
    assert (details.command, details.directory, details.tags) == ("exit 3", str(background.cwd), {"kind": "test"})
    assert [(one.number, one.exit_code, one.why) for one in details.attempts] == [(1, 3, "exited"), (2, 3, "exited")]
    assert [one.log for one in details.attempts] == [
        str(background.cwd / f"{job_id}.log"),
        str(background.cwd / f"{job_id}.log.1"),
    ]
    assert [event.event for event in details.events] == ["submitted", *["assigned", "started", "exited"] * 2]
    assert details.events[1].detail == "GPU 0"
    assert details.environment is None


def test_secrets_stay_hidden(background: Background) -> None:
    """Variables are shown on request, and what looks like a secret never."""
    background.environment["WANDB_API_KEY"] = "s3cret"
    background.environment["HARMLESS"] = "yes"
    extra = (("MY_TOKEN", "hush"), ("SEED", "4"))
    (job_id,) = background.submit("true", extra_env=extra, start=False)
    (details,) = told(background, str(job_id), "--environment").jobs
    assert details.variables == {"MY_TOKEN": "********", "SEED": "4"}
    assert details.environment is not None
    assert (details.environment["WANDB_API_KEY"], details.environment["HARMLESS"]) == ("********", "yes")


def test_jobs_are_named_in_many_ways(background: Background) -> None:
    """By number, range, task, name, and the newest; many of them are a line each."""
    background.submit("true", "true", names=["first", "second"], start=False)
    background.submit(*["true"] * 5, array=True, start=False)
    assert [details.label for details in told(background, "1-2").jobs] == ["1", "2"]
    assert [details.label for details in told(background, "3.2").jobs] == ["3.2"]
    assert [details.label for details in told(background, "second").jobs] == ["2"]
    assert len(told(background, "last").jobs) == 5
    assert len(background("status", "3", "--plain").out.splitlines()) == 6


@pytest.mark.parametrize(("word", "hint"), [("99", "the newest is 1"), ("furst", "did you mean first?")])
def test_an_unknown_job(background: Background, word: str, hint: str) -> None:
    """Exit code 4, and what there is instead; as JSON too."""
    background.submit("true", names=["first"], start=False)
    outcome = background("status", word)
    assert outcome.code == 4
    assert hint in outcome.err
    outcome = background("status", word, "--json")
    assert outcome.code == 4
    assert hint in json.loads(outcome.out)["error"]["hint"]


def test_names_that_are_no_text(background: Background) -> None:
    """Bytes that are not UTF-8 are escaped in every form."""
    odd = os.fsdecode(b"\xff\x1b[2J")
    background.submit(f"echo {odd}", start=False)
    assert status(background).jobs[0].command == "echo \\xff\x1b[2J"
    assert r"echo \xff\x1b[2J" in background("status", "--plain").out
    assert r"echo \xff\x1b[2J" in background("status", "1", "--plain").out


def test_a_damaged_queue_is_told(background: Background) -> None:
    """In words, and it is left as it is."""
    background.paths.database.write_bytes(b"this is no queue")
    outcome = background("status")
    assert outcome.code == 125
    assert "damaged, or not a queue of Stoker" in outcome.err
    assert background.paths.database.read_bytes() == b"this is no queue"


@pytest.mark.parametrize("words", [["status", "--json"], ["status", "--plain"], ["--help"]])
def test_little_is_loaded(background: Background, words: list[str]) -> None:
    """What programs ask often must not cost the import of what only a screen or an engine needs."""
    background.submit("true", start=False)
    command = [sys.executable, "-X", "importtime", "-m", "stoker", *words]
    done = subprocess.run(
        command, env=background.environment, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time")}
    assert "click" in loaded
    assert loaded.isdisjoint(NOT_LOADED)
    assert ("msgspec" in loaded) == (words != ["--help"])


def test_nothing_is_collected(background: Background) -> None:
    """What was just loaded is not looked through for garbage, which would take a tenth of the time."""
    background.submit("true", start=False)
    program = (
        "import gc, os; from stoker.cli import main; gc.collect()\n"
        "gc.callbacks.append(lambda phase, info: os.write(2, b'collected')); main()"
    )
    command = [sys.executable, "-c", program, "status", "--plain"]
    done = subprocess.run(
        command, env=background.environment, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
    )
    assert "true" in done.stdout
    assert not done.stderr


def test_json_and_plain_are_two_forms(background: Background) -> None:
    """Asking for both is a mistake; a variable chooses JSON for all."""
    assert background("status", "--json", "--plain").code == 2
    assert json.loads(background("status", STOKER_OUTPUT="json").out)["schema"] == "stoker.status/1"


def test_plain_lines_of_a_large_array(background: Background) -> None:
    """They are few, and say how many jobs are missing; all are counted."""
    background("submit", "--hold", "-G", "0", "--array", "0-99999", "--", "true")
    few = background("status", "1", "--plain")
    assert [line.split("\t")[0] for line in few.out.splitlines()] == ["ID", "1.[0-99999]"]
    assert not few.err
    ids = [str(number) for number in range(3, 1000, 2)]
    some = background("status", *ids, "--plain")
    assert [line.split("\t")[0] for line in some.out.splitlines()] == ["ID", "1.[2-998:2]"]
    background.submit(*["true"] * 300, held="held by you", start=False)
    more = background("status", "100001-100300", "--plain")
    assert len(more.out.splitlines()) == 201
    assert "100 more jobs of 300 (stoker status -a ID...)" in more.err
    assert len(background("status", "100001-100300", "--plain", "-a").out.splitlines()) == 301


def test_the_table_without_a_terminal(background: Background) -> None:
    """`--table` and `--color always` print it, in COLUMNS and LINES; NO_COLOR and the default stay as they are."""
    background.environment |= {"COLUMNS": "60", "LINES": "14"}
    background.submit("true", names=["x" * 90], held="held by you", start=False)
    table, coloured = background("status", "--table"), background("status", "--color", "always")
    assert "STATE" in table.out
    assert "\x1b" not in table.out
    assert max(map(len, table.out.splitlines())) <= 60
    assert "\x1b[" in coloured.out
    assert background("status").out.startswith("ID\tST\t")
    assert background("status", "--plain", "--color", "always").out.startswith("ID\tST\t")
    assert background("status", "--plain", "--table").code == 2
    assert "finished jobs" in background("history", "--table", STOKER_OUTPUT="json").out


def test_a_filter_chooses_jobs_and_counts(background: Background) -> None:
    """Also by why they wait; states that only ended jobs have are refused with the command that shows those."""
    (gate,) = background.submit(until("gate"), names=["gate"], tags=(("sweep", "3"),))
    background.wait_word("running", gate)
    (behind,) = background.submit("true", names=["behind"], tags=(("sweep", "3"),), after=(Dependency(gate),))
    array, *_ = background.submit(*["true"] * 5, array=True, held="held by you", group="big")

    def seen(*words: str) -> tuple[list[str], tuple[int, int, int]]:
        found = status(background, *words)
        assert found.filtered
        return [job.label for job in found.jobs], (found.counts.active, found.counts.waiting, found.counts.held)

    assert seen("--tag", "sweep=3") == ([str(gate), str(behind)], (1, 1, 0))
    assert seen("--state", "blocked") == ([str(behind)], (0, 1, 0))
    assert seen("--state", "queued") == ([], (0, 0, 0))
    assert seen("--state", "R") == ([str(gate)], (1, 0, 0))
    assert seen("--group", "big", "--state", "held") == ([f"{array}.[0-4]"], (0, 0, 5))
    assert "no job matches the filter" in background("status", "--table", "--name", "nothing").out
    assert "stoker history --state failed" in background("status", "--state", "failed").err
    groups = status(background, "--by-group").groups
    assert [(one.group, one.active, one.waiting, one.held) for one in groups] == [("", 1, 1, 0), ("big", 0, 0, 5)]
    (own,) = status(background, "--by-user").users
    assert (own.you, own.running, own.waiting) == (True, 1, 1)


@pytest.mark.parametrize(("line", "header"), [("stoker status", " ID "), ("stoker status | cat", "ID\t")])
def test_watch_gets_the_table(background: Background, line: str, header: str) -> None:
    """watch(1) reads through a pipe and sets COLUMNS and LINES; a pipe inside its command still gets plain lines."""
    background.submit("true", held="held by you", start=False)
    program = background.write("watch", "#!/bin/sh", line, "true")
    program.chmod(0o755)
    outcome = background.typed(str(program), COLUMNS="80", LINES="24")
    assert any(text.startswith(header) for text in outcome.out.splitlines()), outcome.out


class TestTerminal:
    """On a real terminal."""

    @pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 10)])
    def test_the_first_screen(self, background: Background, width: int, height: int) -> None:
        """All of it can be seen: the heading is not scrolled away, and nothing wraps."""
        running = background.submit(until("go"), until("go"), names=["evil\x1b[31m\nname", "b"])
        background.wait_word("running", *running)
        background.submit(*["true"] * 60)
        wait_until(lambda: len(status(background).devices) == 2)
        with open_terminal(background.home, **self.variables(background), LINES=str(height)) as terminal:
            terminal.start(["stoker", "status"], width, height + 1)  # one more, for the exit code
            screen = terminal.wait_for("exit code 0")
        lines = screen.splitlines()
        assert lines[0].startswith(" SIM  stoker on ")
        assert "(stoker status -a)" in screen
        assert r"evil\x1b[31m; name" in screen
        assert "needs 1 GPU" in screen

    def test_a_story(self, background: Background) -> None:
        """The whole story is text that can be read."""
        (job_id,) = background.submit("exit 3", names=["try"])
        background.wait_over(job_id)
        with open_terminal(background.home, **self.variables(background)) as terminal:
            terminal.start(["stoker", "status", str(job_id)], 80, 40)
            screen = terminal.wait_for("exit code 0")
        assert f"SIM  job {job_id} · try · failed (exit 3) after 0:0" in screen
        assert f"its output: stoker logs {job_id}" in screen
        assert "exited  exit 3" in screen

    def variables(self, queue: Background) -> dict[str, Any]:
        names = ("STOKER_STATE", "STOKER_LEDGER", "STOKER_SIM", "PATH")
        return {name: queue.environment[name] for name in names}


def test_a_task_is_called_as_people_type_it(background: Background) -> None:
    """A reason that names a task of an array gives the id that other verbs take for it."""
    first, second = background.submit(until("gate"), until("gate"), array=True, limit=600.0)
    background.wait_word("running", first, second)
    behind, waiting = background("submit", "--parsable", "-d", f"{first}.1", "true"), background.submit("true")
    assert behind.code == 0
    wait_until(lambda: f"#{first}." in background("status", str(waiting[0])).out)
    assert f"waiting for {first}.1 to succeed" in background("status").out
    background.open_gate("gate")


def test_the_end_of_a_chain_names_its_beginning(background: Background) -> None:
    """Jobs that were skipped one behind the other tell which one failed at first."""
    (root,) = background.submit("false", held="not yet")
    chain = [root]
    for _ in range(3):
        chain += background.submit("true", after=(Dependency(chain[-1]),))
    background("resume", str(root))
    background.wait_over(*chain)
    assert background.ended(chain[1]).note == f"job {root} did not succeed"
    assert background.ended(chain[3]).note == f"job {root} did not succeed; so job {chain[2]} was skipped"


def test_the_end_of_a_job_in_plain_lines(background: Background) -> None:
    """A job that is over has the moment of its end where others have the one that is expected."""
    (job,) = background.submit("true")
    background.wait_over(job)
    header, line = background("status", str(job), "--plain").out.splitlines()
    assert dict(zip(header.split("\t"), line.split("\t"), strict=True))["END"] != "-"
