"""Commands that are forked behave as the program does."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from support.background import Background
from support.cli import PROGRAM, Stoker, until
from support.forked import Forked, can_fork, forked_daemons
from support.wait import PATIENCE_SECONDS, wait_until

LINES = (
    ["--version"],
    ["submit", "--hold", "--", "echo", "a b"],
    ["status", "--plain"],
    ["statu"],
    ["status", "--no-such-option"],
    ["run", "-G", "0", "--no-bar", "-"],
    ["logs", "99"],
)


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_it_prints_and_ends_as_the_program(stoker: Stoker, words: list[str]) -> None:
    """Also with input, an error, or an option that nobody knows."""
    outcomes = []
    for start in (Forked, subprocess.Popen):
        environment = stoker.environment | {"STOKER_STATE": str(stoker.home / start.__name__), "STOKER_SIM": "1x8G"}
        pipe = subprocess.PIPE
        process = start([PROGRAM, *words], cwd=stoker.cwd, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)
        out, _ = process.communicate(b"exit 3\n", timeout=PATIENCE_SECONDS)
        outcomes.append((process.returncode, out))
        if words[0] == "submit":  # the fixture does not know the engine that it started
            subprocess.run([PROGRAM, "engine", "stop"], env=environment, check=True, timeout=PATIENCE_SECONDS)
    assert outcomes[0] == outcomes[1]


def test_a_signal_ends_it(stoker: Stoker) -> None:
    """Its exit status is that of waitpid."""
    process = stoker.start("run", "-G", "0", "--no-bar", "--", "sh", "-c", f"echo >> began; {until('never')}")
    assert can_fork(stoker.environment)
    stoker.wait_lines("began", 1)
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def test_an_engine_that_it_starts_is_forked_too(background: Background) -> None:
    """The template process knows it by its state directory, and the fixture ends it."""
    assert background("engine", "start").code == 0
    assert background.engine_process is not None
    assert forked_daemons(f"{background.home}/state") == [background.engine_process]
    assert background("engine", "stop").code == 0
    wait_until(lambda: not forked_daemons(f"{background.home}/state"))


def test_variables_of_the_start_need_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the interpreter and of the loader."""
    monkeypatch.delenv("STOKER_TEST_PROGRAM", raising=False)
    assert can_fork({**os.environ, "STOKER_SIM": "1x8G"})
    assert not can_fork({**os.environ, "PYTHONUNBUFFERED": "x", "LD_PRELOAD": "y"})
