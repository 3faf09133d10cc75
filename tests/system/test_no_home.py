"""A user without a home, or with one that cannot be written to, as in a container with a user id of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from support.interpreter import reachable_bin
from support.users import User, reachable_directory, require_root, typed_by
from support.wait import PATIENCE_SECONDS


@pytest.fixture
def stranger() -> Iterator[User]:
    """A user id that has no name; what it leaves in /var/tmp is removed."""
    require_root()
    uid = 61_000 + os.getpid() % 4000
    yield User("", uid, uid)
    shutil.rmtree(f"/var/tmp/stoker-{uid}", ignore_errors=True)


@pytest.mark.parametrize("home", [{}, {"HOME": "/"}], ids=["unset", "root"])
def test_commands_and_older_tools_work(stranger: User, home: dict[str, str]) -> None:
    """The queue is in /var/tmp, and those that start jobs say so."""
    with reachable_directory() as place:
        ledger = place / "ledger"
        ledger.mkdir()
        ledger.chmod(0o1777)
        programs = reachable_bin()
        environment = {"PATH": f"{programs}:{os.environ['PATH']}", "STOKER_LEDGER": str(ledger), **home}

        prefix = typed_by(stranger)

        def typed(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
            command = [*prefix, str(programs / words[0]), *words[1:]]
            return subprocess.run(
                command,
                input=stdin,
                env=environment,
                cwd="/",
                text=True,
                capture_output=True,
                check=False,
                timeout=PATIENCE_SECONDS,
            )

        run = typed("stoker", "run", "--devices", "0", "--", "echo", "hello")
        assert (run.returncode, run.stdout) == (0, "hello\n"), run.stderr
        assert f"the queue is in /var/tmp/stoker-{stranger.uid}/" in run.stderr
        older = typed("simple_gpu_scheduler", "--gpus", "0", stdin="echo x\n")
        assert (older.returncode, "x" in older.stdout.split()) == (0, True), older.stderr
        assert typed("stoker", "status").returncode == 0
        assert "Traceback" not in typed("stoker", "engine", "check").stderr
