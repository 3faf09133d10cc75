"""GPUTaskScheduler: signals, threads, crashes, and other schedulers on the same GPUs."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from features.compat.gpu_tasks import Lab, script
from support.local import lives
from support.shell import Running
from support.wait import wait_until

TASK = """\
import os, subprocess, time
from gpu_task_scheduler.gpu_task import GPUTask

class Task(GPUTask):
    def main(self):
        i = self._config["i"]
        os.mkdir("busy")
        helper = subprocess.Popen(["sleep", "1000"])
        with open("pids.new", "w") as f:
            f.write("%d %d" % (os.getpid(), helper.pid))
        os.rename("pids.new", "pids-%s" % i)
        print("begun", i)
        while not os.path.exists("gate"):
            time.sleep(0.01)
        helper.kill()
        os.rmdir("busy")
        with open("ran", "a") as f:
            f.write(str(i))
"""
SCRIPT = script('"scheduler_config": {"gpu": ["0"]}, "test_config": [{"i": [0, 1, 2]}]')
IN_A_THREAD = """\
import threading, time
from task import Task
from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler
config = {"scheduler_config": {"gpu": ["0"]}, "test_config": [{"i": [0, 1, 2]}]}
over = threading.Event()
def work():
    try:
        GPUTaskScheduler(config=config, gpu_task_class=Task).start()
    finally:
        over.set()
threading.Thread(target=work).start()
while not over.is_set():  # not is_alive(): an interrupted one takes the thread for dead in Python 3.11
    time.sleep(0.01)
"""


class Script(Running):
    """A script that was started."""

    def __init__(self, lab: Lab, text: str, name: str = "script") -> None:
        self._lab = lab
        lab.write(**{name: text, "task": TASK})
        super().__init__([sys.executable, f"{name}.py"], lab.directory, lab.environment)

    def wait_begun(self, number: int) -> None:
        """Wait until an instance runs."""
        wait_until((self._lab.directory / f"pids-{number}").exists)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    for process in processes_of(lab):
        process.kill()


def processes_of(lab: Lab) -> list[psutil.Process]:
    """Every process that works in the lab."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(lab.directory):
                found.append(process)
        except psutil.Error:
            continue
    return found


def engine_of(script: Script) -> psutil.Process | None:
    """The process that runs the script's instances, if there is one."""
    living = [child for child in psutil.Process(script.process.pid).children() if child.status() != "zombie"]
    return living[0] if living else None


def goes_on(lab: Lab, ran: str) -> None:
    """The script, run again, runs what is missing, each once."""
    (lab.directory / "gate").touch()
    if (lab.directory / "busy").exists():
        (lab.directory / "busy").rmdir()
    code, _, said = Script(lab, SCRIPT).end()
    assert (code, lab.unfinished(), "".join(sorted(lab.text("ran")))) == (0, [], ran), said


# -- signals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [SCRIPT, IN_A_THREAD])
def test_sigterm_leaves_nothing_running_and_nothing_lost(lab: Lab, script: str) -> None:
    """SIGTERM ends the running instance with all it started, in whatever thread; the next run runs all that is left."""
    started = Script(lab, script)
    started.wait_begun(0)
    started.press(signal.SIGTERM)
    assert started.end()[0] == -signal.SIGTERM
    wait_until(lambda: not processes_of(lab))
    assert (lab.folders(), lab.unfinished()) == (["i-0,"], ["i-0,"])
    wait_until(lambda: not any(lives(int(pid)) for pid in lab.text("pids-0").split()))
    assert lab.typed("stoker status --plain").stdout.count(b"\n") == 1
    goes_on(lab, "012")


@pytest.mark.parametrize("whole_group", [False, True])
def test_first_interrupt_lets_the_running_finish(lab: Lab, whole_group: bool) -> None:
    """After Ctrl-C, typed or sent, no more jobs start and the running ones finish; then KeyboardInterrupt is raised."""
    started = Script(lab, SCRIPT)
    started.wait_begun(0)
    (os.killpg if whole_group else os.kill)(started.process.pid, signal.SIGINT)
    started.wait_said("starting no more jobs; 1 running; press again to stop them")
    (lab.directory / "gate").touch()
    code, _, said = started.end()
    assert code == -signal.SIGINT
    assert "KeyboardInterrupt" in said
    assert "gpu_task_scheduler: 2 instances not started; run this script again to continue" in said
    assert (lab.folders(), lab.unfinished(), lab.text("ran")) == (["i-0,"], [], "0")
    goes_on(lab, "012")


def test_second_interrupt_stops_the_running(lab: Lab) -> None:
    """Two Ctrl-C stop what runs."""
    started = Script(lab, SCRIPT)
    started.wait_begun(0)
    started.press(signal.SIGINT)
    started.wait_said("press again")
    started.press(signal.SIGINT)
    code, _, said = started.end()
    assert code == -signal.SIGINT
    assert f"gpu_task_scheduler: cancelled: {lab.directory}/results/i-0,: stopped by SIGINT" in said
    assert lab.unfinished() == ["i-0,"]
    wait_until(lambda: not processes_of(lab))


def test_many_interrupts(lab: Lab) -> None:
    """Whoever presses Ctrl-C again and again gets out with a KeyboardInterrupt, and loses nothing either."""
    started = Script(lab, SCRIPT)
    started.wait_begun(0)
    while started.process.poll() is None:
        started.press(signal.SIGINT)
        time.sleep(0.002)
    code, _, said = started.end()
    assert code == -signal.SIGINT, said
    assert "KeyboardInterrupt" in said
    assert "StokerError" not in said
    wait_until(lambda: not processes_of(lab))
    goes_on(lab, "012")


def test_interrupt_from_the_terminal_in_a_thread(lab: Lab) -> None:
    """Ctrl-C reaches a scheduler that was started in another thread as well."""
    started = Script(lab, IN_A_THREAD)
    started.wait_begun(0)
    os.killpg(started.process.pid, signal.SIGINT)
    started.wait_said("press again")
    (lab.directory / "gate").touch()
    assert "StokerError: stopped by SIGINT" in started.end()[2]
    assert (lab.folders(), lab.unfinished()) == (["i-0,"], [])


def test_signal_of_the_scripts_own(lab: Lab) -> None:
    """A handler that the script had is called at the end, and a later start goes on with what is left."""
    text = SCRIPT.replace("GPUTaskScheduler(config", "scheduler = GPUTaskScheduler(config").replace(").start()", ")")
    handler = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('handled', flush=True))\n"
    ending = "scheduler.start()\nimport os\nopen('gate', 'w').close()\nos.rmdir('busy')\nscheduler.start()\n"
    started = Script(lab, handler + text + ending)
    started.wait_begun(0)
    started.press(signal.SIGTERM)
    code, _, said = started.end()
    assert (code, lab.text("ran"), lab.unfinished()) == (0, "12", ["i-0,"]), said


# -- crashes ---------------------------------------------------------------------------------------


def test_script_killed(lab: Lab) -> None:
    """When the script is killed, nothing of it goes on running."""
    started = Script(lab, SCRIPT)
    started.wait_begun(0)
    started.process.kill()
    started.process.wait(timeout=60)
    wait_until(lambda: not processes_of(lab))
    goes_on(lab, "012")


def test_engine_killed(lab: Lab) -> None:
    """When the process that runs the instances is killed, start() says so; the next one waits for what goes on."""
    text = SCRIPT.replace("GPUTaskScheduler(config", "scheduler = GPUTaskScheduler(config").replace(").start()", ")")
    started = Script(lab, text + "try: scheduler.start()\nexcept Exception as error: print(error)\nscheduler.start()\n")
    started.wait_begun(0)
    first = engine_of(started)
    assert first is not None
    first.kill()
    wait_until(lambda: engine_of(started) not in (first, None))
    (lab.directory / "gate").touch()
    code, _, said = started.end()
    assert (code, lab.text("ran"), lab.unfinished()) == (0, "012", []), said


# -- other schedulers ---------------------------------------------------------------------------------------


def test_two_schedulers_and_stoker_run_take_turns(lab: Lab) -> None:
    """On one GPU, instances of two scripts and commands of a run never meet, and the second says whom it waits for."""
    first = Script(lab, SCRIPT)
    first.wait_begun(0)
    other = SCRIPT.replace('"gpu"', '"result_root_folder": "other", "gpu"')
    second = Script(lab, other, "second")
    second.wait_said("GPU 0 is held by ")
    (lab.directory / "gate").touch()
    run = lab.typed("printf 'mkdir busy && rmdir busy\\n%.0s' 1 2 3 | stoker run --devices 0 -")
    assert (run.returncode, first.end()[0], second.end()[0]) == (0, 0, 0)
    assert "".join(sorted(lab.text("ran"))) == "001122"


def test_same_instances_in_two_scripts(lab: Lab) -> None:
    """Instances that another run has in hand are left to it."""
    first = Script(lab, SCRIPT)
    first.wait_begun(0)
    code, _, said = Script(lab, SCRIPT, "second").end()
    assert code == 0
    assert said.count("skips task") == 3
    assert "being run by another scheduler" in said
    (lab.directory / "gate").touch()
    assert first.end()[0] == 0
    assert lab.text("ran") == "012"
