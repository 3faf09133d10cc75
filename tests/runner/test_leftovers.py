"""Processes that outlive their worker: a job is over only when none of them lives."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from stoker.runner import processes
from stoker.runner.interface import AttemptStarted, WorkerLost
from support.local import Yard, lives, wait_pid
from support.optional import require
from support.users import made_users, run_as
from support.wait import PATIENCE_SECONDS, ending, wait_until

DISGUISE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
extern char **environ;
/* Writes over its arguments and environment, as programs do that show a title; then says who it is and stays. */
int main(int argc, char **argv) {
    char path[4096];
    snprintf(path, sizeof path, "%s", argv[1]);
    char *end = argv[argc - 1] + strlen(argv[argc - 1]);
    for (char **one = environ; *one; one++) end = *one + strlen(*one);
    memset(argv[0], 0, end - argv[0]);
    for (int i = 2; argc > 2 && i < 1024; i++) if (i != 2) close(i);
    FILE *file = fopen(path, "w");
    fprintf(file, "%d\n", getpid());
    fclose(file);
    for (;;) pause();
}
"""


@pytest.fixture(scope="module")
def disguise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that writes over its environment; with a second argument it closes all descriptors too."""
    compiler = require("cc")
    folder = tmp_path_factory.mktemp("disguise")
    (folder / "disguise.c").write_text(DISGUISE)
    command = [compiler, "-O1", "-o", "disguise", "disguise.c"]
    subprocess.run(command, cwd=folder, check=True, timeout=PATIENCE_SECONDS)
    return folder / "disguise"


STAYS = "sh -c 'echo $$ > pid; exec sleep 1000'"
SCRIPTS = {
    "no environment": f"exec env -i {STAYS}",
    "own session": f"setsid {STAYS} & wait",
    "own session, no environment": f"env -i setsid {STAYS} & wait",
    "daemon": f"(setsid {STAYS} &) & wait; exec sleep 1000",
    "daemon, no environment": f"(env -i setsid {STAYS} &) & wait; exec env -i sleep 1000",
    "new title": "exec DISGUISE pid",
    "new title, own session": "setsid DISGUISE pid & wait",
    "new title, daemon": "(setsid DISGUISE pid &) & wait; exec sleep 1000",
    "new title, no descriptors": "exec DISGUISE pid close",
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_what_a_killed_worker_left_is_ended(works: Yard, disguise: Path, kind: str) -> None:
    """Whatever its environment, session and parent are; only then the worker counts as lost."""
    worker = works.begin(SCRIPTS[kind].replace("DISGUISE", str(disguise)), shell="/bin/sh")
    left = wait_pid(works.directory / "pid")
    all_of_it = [left, *(child.pid for child in works.process_of(worker).children(recursive=True))]
    works.process_of(worker).kill()
    works.wait_gone(worker)
    assert not any(map(lives, all_of_it))


def test_a_process_that_stays(works: Yard) -> None:
    """While any process holds the inherited lock, the worker is not lost, and the job says why; a stop tries again."""
    worker = works.begin("sleep", "1000")
    with works.inherited_lock(worker):
        works.process_of(worker).kill()
        wait_until(lambda: works.records(AttemptStarted) and works.runner.survivors)
        (why,) = works.runner.survivors.values()
        assert why.startswith("its worker died; processes of its last attempt are still running")
        assert f"job 1: {why}" in works.runner.trouble
        assert WorkerLost() not in works.said[worker]
        works.runner.stop(worker, "1.1", 0.0)
        assert works.runner.next_cleanup == 0.0
    works.wait_gone(worker)
    assert works.runner.trouble == ""


def kill_session(leader: str) -> None:
    """Try to kill the processes of a session, and print those that are left."""
    processes.send(processes.of_session(int(leader), processes.ticks_now()), signal.SIGKILL)
    print(*(process.pid for process in processes.of_session(int(leader), processes.ticks_now())))


def test_a_process_of_another_user(works: Yard) -> None:
    """It cannot be killed by the user, so the job waits for its end and names it."""
    with made_users(1) as (user,):
        worker = works.begin("echo $$ > pid; exec sleep 1000", shell="/bin/sh")
        left = wait_pid(works.directory / "pid")
        seen = processes.of_session(left, processes.ticks_now())
        assert [process.pid for process in seen] == [left]
        assert run_as(user, kill_session, left).split() == [str(left)]
        assert lives(left)
        works.process_of(worker).kill()
        works.wait_gone(worker)
        assert not lives(left)


def test_another_process_with_the_same_number(works: Yard) -> None:
    """A process that started after the note was written is not the one that was meant."""
    with ending(subprocess.Popen(["sleep", "1000"], start_new_session=True)) as other:
        try:
            assert processes.of_session(other.pid, processes.ticks_now() + 1)
            (seen,) = processes.of_session(other.pid, processes.ticks_now() + 1)
            assert processes.of_session(other.pid, seen.started - 1) == []
        finally:
            other.kill()


def test_a_reader_of_the_lock_file_is_left_alone(works: Yard) -> None:
    """A backup that reads the file while a job is cleaned up is no process of the job."""
    worker = works.begin("sleep", "1000")
    with (
        (works.workers / worker / "jobs").open("rb") as lock,
        ending(subprocess.Popen(["sleep", "1000"], stdin=lock)) as reader,
    ):
        try:
            works.process_of(worker).kill()
            works.wait_gone(worker)
            assert reader.poll() is None
        finally:
            reader.kill()
