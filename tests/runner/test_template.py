"""Templates: processes that have imported modules, and fork workers whose jobs start with them."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.core.warm import Template, WarmRun
from stoker.runner import templates
from stoker.runner.interface import WorkerLost
from stoker.runner.journal import AttemptReturned
from stoker.runner.template import _HANDLES
from support.local import Yard, lives, wait_pid
from support.wait import wait_until

LOOK = """
import heavy, json, os, signal, sys
print(json.dumps({
    "variable": os.environ.get("HOME_OF_JOB"), "cwd": os.getcwd(), "umask": os.umask(0), "session": os.getsid(0),
    "process": os.getpid(), "parent": os.getppid(), "argv": sys.argv, "blocked": len(signal.pthread_sigmask(0, [])),
    "open": sorted(int(name) for name in os.listdir("/proc/self/fd")), "imported_in": heavy.process,
    "term": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "hup": str(signal.getsignal(signal.SIGHUP)),
}))
"""


def write(works: Yard, name: str, text: str) -> Path:
    """A file in the yard's directory."""
    path = works.directory / name
    path.write_text(text)
    return path


def heavy(works: Yard, more: str = "") -> Template:
    """A template whose module remembers the process that imported it."""
    write(works, "heavy.py", f"import os\nprocess = os.getpid()\n{more}")
    return works.template("heavy")


class TestProcess:
    """The process of a job that was forked."""

    def test_is_like_a_new_one(self, works: Yard) -> None:
        """It has its own session, variables, directory and umask, and no descriptor of its worker."""
        template = heavy(works)
        write(works, "look.py", LOOK)
        worker = works.fork("1.1", template, "look.py", "a", "b", extra={"HOME_OF_JOB": "here"}, umask=0o027)
        assert works.wait_over().code == 0
        seen = json.loads(works.log().read_text())
        assert (seen["variable"], seen["cwd"], seen["umask"]) == ("here", str(works.directory), 0o027)
        assert (seen["session"], seen["parent"]) == (seen["process"], works.process_of(worker).pid)
        assert seen["imported_in"] not in (seen["process"], seen["parent"])
        assert seen["argv"] == ["look.py", "a", "b"]
        assert (seen["blocked"], seen["term"], seen["hup"]) == (0, True, "0")
        assert [number for number in seen["open"] if number not in (0, 1, 2, 60, max(seen["open"][:-1]))] == []

    def test_is_found_by_its_words_and_its_worker(self, works: Yard) -> None:
        """`ps` shows the command, and the kernel the variable by which processes of a dead worker are found."""
        template = heavy(works)
        write(works, "sleeper.py", "import os, time\nopen('pid', 'w').write(f'{os.getpid()}\\n')\ntime.sleep(600)")
        worker = works.fork("1.1", template, "sleeper.py", "--lr", "0.1")
        process = psutil.Process(wait_pid(works.directory / "pid"))
        assert " ".join(process.cmdline()).endswith("sleeper.py --lr 0.1")
        variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        assert f"STOKER_WORKER={worker}".encode() in variables
        works.process_of(worker).kill()
        works.wait_lost(worker)
        assert not lives(process.pid)

    def test_stop_and_leftovers(self, works: Yard) -> None:
        """An order to stop reaches it and its children, as those of any attempt."""
        template = heavy(works)
        write(
            works,
            "family.py",
            "import os, signal, subprocess, time\n"
            "signal.signal(signal.SIGTERM, lambda *_: exit(7))\n"
            "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
            "open('pid', 'w').write(f'{child.pid}\\n')\ntime.sleep(600)",
        )
        worker = works.fork("1.1", template, "family.py")
        child = wait_pid(works.directory / "pid")
        works.runner.stop(worker, "1.1", 30.0)
        end = works.wait_over()
        assert (end.code, end.why) == (7, "stopped")
        assert not lives(child)

    def test_a_thousand_share_one_import(self, works: Yard) -> None:
        """Many forks need one template, and each process has its own random numbers."""
        template = heavy(works, "import random\n")
        write(works, "number.py", "import heavy, random\nprint(heavy.process, random.random())")
        worker = works.fork("1.1", template, "number.py")
        for number in range(2, 41):
            warm = WarmRun(template.key, "file", "number.py", ())
            works.start(worker, f"1.{number}", sys.executable, "number.py", warm=warm)
        works.wait_over("1.40")
        lines = [works.log(f"1.{number}").read_text().split() for number in range(1, 41)]
        assert len({imported for imported, _ in lines}) == 1
        assert len({value for _, value in lines}) == 40


BAD_MODULES = {
    "raises": ("raise ValueError('no')", "bad cannot be imported (ValueError: no)"),
    "misses": ("import not_there_at_all", "bad cannot be imported (ModuleNotFoundError"),
    "exits": ("import sys; sys.exit(3)", "bad cannot be imported (SystemExit: 3)"),
    "ends": ("import os; os._exit(4)", "exited with code 4 while it imported"),
    "kills itself": ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL while it imported"),
    "thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "the modules started 1 threads",
    ),
    "process": ("import subprocess; child = subprocess.Popen(['sleep', '600'])", "the modules started a process"),
    "forks": ("import os; os.fork()", "the modules started a process"),
    "socket": ("import socket; kept = socket.socket()", "the modules opened a socket"),
    "queue": ("import select; kept = select.epoll()", "the modules opened a socket or an event queue"),
    "patches": ("import os; os.pwrite = print", "the modules replace os.pwrite"),
    "directory": ("import tempfile; kept = tempfile.TemporaryDirectory()", "the modules made a temporary directory"),
}


class TestCannotFork:
    """Modules with which no job may start."""

    @pytest.mark.parametrize("name", BAD_MODULES)
    def test_bad_module(self, works: Yard, name: str) -> None:
        """The attempt does not start there, and the next one is told why it starts cold."""
        text, why = BAD_MODULES[name]
        write(works, "bad.py", text)
        template = works.template("bad")
        worker = works.fork("1.1", template, "bad.py")
        wait_until(lambda: why in works.runner.refusal(template))
        works.wait_lost(worker)
        assert works.said[worker] == [WorkerLost(warm=True)]

    def test_a_module_that_hangs_is_ended(self, works: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
        """The kernel ends the template when the time is over."""
        write(works, "bad.py", "import signal, time\nsignal.alarm(1)\nwhile True: time.sleep(600)")
        template = works.template("bad")
        works.fork("1.1", template, "bad.py")
        wait_until(lambda: "ended by SIGALRM while it imported" in works.runner.refusal(template))

    def test_no_python(self, works: Yard) -> None:
        """A program that is not there leaves the job to a worker without modules."""
        template = works.template("os", start=("/nowhere/python",))
        write(works, "ok.py", "print('ok')")
        works.fork("1.1", template, "ok.py")
        assert "cannot be started" in works.runner.refusal(template)

    def test_text_and_input_of_modules(self, works: Yard) -> None:
        """Each job prints what the modules print, and modules read an empty input."""
        template = heavy(works, "import sys\nprint('read', repr(sys.stdin.read()))\nprint('oh', file=sys.stderr)")
        write(works, "ok.py", "print('mine')")
        for attempt in ("1.1", "2.1"):
            works.fork(attempt, template, "ok.py")
            works.wait_over(attempt)
            assert works.log(attempt).read_text() == "read ''\noh\nmine\n"


class TestLife:
    """Templates begin, are replaced and end."""

    def test_a_changed_module(self, works: Yard) -> None:
        """No job runs with a module that has changed: the attempt comes back, and a new template takes it."""
        template = heavy(works, "value = 1")
        write(works, "show.py", "import heavy; print(heavy.value)")
        worker = works.fork("1.1", template, "show.py")
        works.wait_over()
        heavy(works, "value = 22")
        works.start(worker, "2.1", sys.executable, "show.py", warm=WarmRun(template.key, "file", "show.py", ()))
        works.wait_back("2.1")
        assert works.runner.journal_is_full(worker)
        works.fork("2.2", template, "show.py")
        assert works.wait_over("2.2").code == 0
        assert works.log("2.2").read_text() == "22\n"
        assert [type(record) for record in works.records(AttemptReturned, "2.1")] == [AttemptReturned]

    def test_another_template(self, works: Yard) -> None:
        """A process is never forked from the modules of other jobs; the log says that it started cold."""
        template = heavy(works)
        write(works, "ok.py", "print('ok')")
        worker = works.runner.start_worker(template)
        works.start(worker, "1.1", sys.executable, "ok.py", warm=WarmRun("other", "file", "ok.py", ()))
        assert works.wait_over().code == 0
        assert works.log().read_text() == "stoker: started cold: its worker has the modules of other jobs\nok\n"

    def test_at_most_two(self, works: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
        """A third waits until one of them was not used for a while."""
        heavy(works)
        write(works, "ok.py", "print('ok')")
        made = [works.template("heavy", name) for name in ("json", "csv", "ast")]
        for number, template in enumerate(made[:2], 1):
            works.fork(f"{number}.1", template, "ok.py")
            works.wait_over(f"{number}.1")
        assert works.runner.refusal(made[2]) == "2 other templates are in use"
        monkeypatch.setattr(templates, "BUSY_SECONDS", 0.0)
        works.fork("3.1", made[2], "ok.py")
        assert works.wait_over("3.1").code == 0

    def test_idle_and_short_of_memory(self, works: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
        """A template that is not used ends, also early if memory is scarce; its idle workers end with it."""
        template = heavy(works)
        write(works, "ok.py", "import heavy; print(heavy.process)")
        worker = works.fork("1.1", template, "ok.py")
        works.wait_over()
        process = int(works.log().read_text())
        monkeypatch.setattr(templates, "free_memory", lambda: 0.01)
        monkeypatch.setattr(templates, "BUSY_SECONDS", 0.0)

        def is_over() -> bool:
            works.listen()
            return not lives(process)

        wait_until(is_over)
        works.wait_lost(worker)

    @pytest.mark.parametrize("victim", ["importing", "idle"])
    def test_a_killed_template(self, works: Yard, victim: str) -> None:
        """Jobs that run go on, one that waited for it comes back, and the next one starts cold for a while."""
        path = works.directory / "gate"
        wait = "import time\nwhile not os.path.exists('gate'): time.sleep(0.01)" if victim == "importing" else ""
        template = heavy(works, f"open('pid', 'w').write(f'{{process}}\\n')\n{wait}")
        write(works, "long.py", "import os, time\nwhile not os.path.exists('gate'): time.sleep(0.01)")
        worker = works.fork("1.1", template, "long.py")
        process = wait_pid(works.directory / "pid")
        if victim == "idle":
            works.wait_began()
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: "SIGKILL" in works.runner.refusal(template))
        path.touch()
        if victim == "idle":
            assert works.wait_over().code == 0
        else:
            works.wait_lost(worker)
            assert works.said[worker] == [WorkerLost(warm=True)]


def test_gpu_handles_are_found() -> None:
    """Descriptors of GPUs cannot be shared by processes."""
    cases: dict[str, Any] = {
        **dict.fromkeys(["/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dri/renderD128", "socket:[12]"], True),
        **dict.fromkeys(["/dev/null", "/dev/shm/x", "pipe:[3]", "/home/me/dev/nvidia"], False),
    }
    assert {name: _HANDLES.match(name) is not None for name in cases} == cases
