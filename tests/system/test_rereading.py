"""Settings that are changed while the engine runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.job import Active
from support.background import Background
from support.cli import until
from support.wait import wait_until


@pytest.fixture
def file(background: Background) -> Path:
    """The user's own configuration, which is not there yet."""
    background.environment["XDG_CONFIG_HOME"] = str(background.home / "config")
    path = background.home / "config/stoker/config.toml"
    path.parent.mkdir(parents=True)
    return path


def test_a_changed_file_is_gone_by_at_the_next_ring(background: Background, file: Path) -> None:
    """No job is started by the old settings after whoever changed them has submitted."""
    background.start_engine()
    file.write_text("max_use = 1\n")
    first, second = background.submit(until("go"), until("go"))
    background.wait_word("running", first)
    wait_until(lambda: "--max-use" in background("status", str(second)).out)
    file.unlink()
    background("engine", "status")
    background.wait_word("running", second)


def test_what_follows_an_end_and_when_to_leave_change_too(background: Background, file: Path) -> None:
    """The command of on_finish, and idle_exit."""
    background.start_engine()
    file.write_text(f"on_finish = 'touch {background.cwd}/followed'\nidle_exit = '0s'\n")
    background.submit("true")
    wait_until((background.cwd / "followed").exists)
    wait_until(lambda: background.engine_process is None)


def test_a_broken_file_changes_nothing_and_is_told_once(background: Background, file: Path) -> None:
    """The engine goes on with what it had."""
    file.write_text("max_use = 1\n")
    background.start_engine()
    pid = background.engine_process
    file.write_text("max_use = \n")
    first, second = background.submit(until("go"), until("go"))
    background.wait_word("running", first)
    for _ in range(2):
        background("engine", "status")
    assert not isinstance(background.job(second).state, Active)
    assert background.engine_process == pid
    assert background.paths.log.read_text().count("is not TOML") == 1


def test_what_the_engine_was_started_with_goes_before_the_files(background: Background, file: Path) -> None:
    """STOKER_* of whoever started it stay in force, and config and status say what is not."""
    background("engine", "start", STOKER_MAX_USE="1")
    file.write_text("max_use = 2\nreserve = '1G'\n")
    first, second = background.submit(until("go"), until("go"))
    background.wait_word("running", first)
    sentence = "the engine was started with other settings: max_use takes effect after stoker engine restart"
    assert sentence in background("engine", "status").out
    assert sentence in background("engine", "config").err
    assert not isinstance(background.job(second).state, Active)


def test_devices_stay_as_they_are(background: Background, file: Path) -> None:
    """Config and status say so."""
    background.start_engine()
    assert background("engine", "config").err == ""
    file.write_text("devices = '0'\n")
    for outcome in (background("engine", "config").err, background("engine", "status").out):
        assert "devices takes effect after stoker engine restart" in outcome
