"""Programs that some tests need and a fresh machine lacks: at a desk such a test is skipped, in CI it fails.

Run as a program, it prints the Debian packages of the programs that this machine lacks; `.ci/run` installs them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from typing import NoReturn

PACKAGES: Mapping[str, str] = {
    "cc": "gcc libc6-dev",
    "chromium": "chromium",
    "git": "git",
    "groff": "groff-base",
    "munged": "munge",
    "setpriv": "util-linux",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    **dict.fromkeys(("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"), "slurm-client"),
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "strace": "strace",
    "systemd-analyze": "systemd",
    "tmux": "tmux",
    "unshare": "util-linux",
    "useradd": "passwd",
    "usermod": "passwd",
}
"""Every program that a test may ask for, and Debian's packages that bring it."""
NOTES = "STOKER_TEST_NOTES"
"""Names a file to which tests that ask are written, one to a line (support.bare)."""
asked = 0
"""How often this process has asked."""


def search_path() -> str:
    """PATH, with the directories of the administrator's programs, which Debian does not give to ordinary users."""
    path = os.environ.get("PATH", "")
    return f"{path}:/usr/sbin:/sbin" if "/usr/bin" in path.split(":") else path


def find(name: str) -> str | None:
    """The path of an optional program."""
    global asked
    assert name in PACKAGES, f"{name} is not in the table of optional programs"
    asked += 1
    note()
    return shutil.which(name, path=search_path())


def missing(*names: str) -> str:
    """Say which of the programs are missing and how to get them; empty if all are here."""
    absent = [name for name in names if find(name) is None]
    return f"{', '.join(absent)} missing: apt-get install {' '.join(_packages(absent))}" if absent else ""


def require(*names: str) -> str:
    """Go on only if the programs are here; returns the path of the first."""
    if why := missing(*names):
        refuse(why)
    return find(names[0]) or names[0]


def refuse(why: str) -> NoReturn:
    """Skip the test; in CI, where a skip is easily overlooked, fail it."""
    import pytest  # CI runs this module before pytest is installed

    if os.environ.get("CI") == "true":
        pytest.fail(why)
    pytest.skip(why)


def note() -> None:
    """Write down that the test that runs now needs a program; the test may be that of a parent process."""
    test, file = os.environ.get("PYTEST_CURRENT_TEST"), os.environ.get(NOTES)
    if test and file:
        with open(file, "a") as notes:
            notes.write(test.rpartition(" (")[0] + "\n")


def _packages(names: Iterable[str]) -> list[str]:
    return sorted({package for name in names for package in PACKAGES[name].split()})


if __name__ == "__main__":
    print(*_packages(name for name in PACKAGES if find(name) is None))
