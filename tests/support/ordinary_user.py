"""Run a part of the tests as an ordinary user with the system's own Python, as most people have it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from support.interpreter import ROOT, make_environment
from support.users import made_users, reachable_directory, typed_by

CHOSEN = ("cli/test_top.py", "runner", "store", "system/test_run.py")
UNNEEDED = shutil.ignore_patterns(".*", "__pycache__", "node_modules", "build", "dist")


def main() -> int:
    """Return the exit code of the tests; where there is no other user to become, they are left out."""
    try:
        return run_tests()
    except pytest.skip.Exception as reason:
        print(f"no tests as an ordinary user: {reason}", file=sys.stderr)
        return 0


def run_tests() -> int:
    """Run them in a copy of the sources that belongs to the user."""
    with made_users(1) as (user,), reachable_directory() as place:
        shutil.copytree(ROOT, tree := place / "stoker", ignore=UNNEEDED)
        programs = make_environment(place / "python", tree / "src")
        subprocess.run(["chown", "-R", f"{user.uid}:{user.gid}", place], check=True, timeout=60)
        environment = {name: value for name, value in os.environ.items() if name != "CI"}
        environment |= {"HOME": str(place), "TMPDIR": str(place), "USER": user.name, "LOGNAME": user.name}
        environment["STOKER_TEST_PROGRAM"] = "1"  # each command as a program of its own
        environment["PATH"] = f"{programs}:/usr/local/bin:/usr/bin:/bin"
        start = [
            str(programs / "python"),
            "-m",
            "pytest",
            "-q",
            "-rfE",
            "-n",
            "3",
            "--dist",
            "loadfile",
            f"--basetemp={place}/t",
        ]
        command = typed_by(user, *start, *sys.argv[1:], *(f"tests/{name}" for name in CHOSEN))
        return subprocess.call(command, env=environment, cwd=tree, timeout=1800)


if __name__ == "__main__":
    sys.exit(main())
