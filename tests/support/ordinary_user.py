"""Run a part of the tests as an ordinary user with the system's own Python, as most people have it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from support.interpreter import ROOT, make_environment
from support.users import made_users, reachable_directory, typed_by

CHOSEN = ("cli", "engine", "python", "runner", "store", "system/test_run.py", "system/test_submit.py")
UNNEEDED = shutil.ignore_patterns(".*", "__pycache__", "node_modules", "build", "dist")


def main() -> int:
    """Return the exit code of the tests; without root there is no other user to become."""
    if os.geteuid() != 0:
        print("only root can run tests as another user: left out", file=sys.stderr)
        return 0
    with made_users(1) as (user,), reachable_directory() as place:
        shutil.copytree(ROOT, tree := place / "stoker", ignore=UNNEEDED)
        programs = make_environment(place / "python", tree / "src")
        subprocess.run(["chown", "-R", f"{user.uid}:{user.gid}", place], check=True, timeout=60)
        environment = {name: value for name, value in os.environ.items() if name != "CI"}
        environment |= {"HOME": str(place), "TMPDIR": str(place), "USER": user.name, "LOGNAME": user.name}
        environment["PATH"] = f"{programs}:/usr/local/bin:/usr/bin:/bin"
        pytest = [str(programs / "python"), "-m", "pytest", "-q", "-rfE", "-n", "3", "--dist", "loadfile"]
        command = typed_by(user, *pytest, *sys.argv[1:], *(f"tests/{name}" for name in CHOSEN))
        return subprocess.call(command, env=environment, cwd=tree, timeout=1800)


if __name__ == "__main__":
    sys.exit(main())
