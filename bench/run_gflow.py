"""Runs a list with gflow, and prints the seconds from the first submit until the last command wrote."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from shlex import quote

from programs import SHELL
from rounds import MARKS, Incomplete
from servers import gflow

PATIENCE = 180.0
"""Seconds without any command after which it is given up."""


def main(commands: list[str], written: Path) -> float:
    """Each command is a job of one GPU."""
    with gflow(Path.cwd() / "gflow") as server:
        submitted = time.time()
        for command in commands:
            server.run(*server.submit, "--", SHELL, "-c", f"cd {quote(str(Path.cwd()))}; {command}")
        _wait_until_written(written, len(commands))
    return written.stat().st_mtime - submitted


def _wait_until_written(written: Path, lines: int) -> None:
    deadline = time.monotonic() + PATIENCE
    found = 0
    while found < lines:
        time.sleep(0.05)
        now = written.read_bytes().count(b"\n") if written.exists() else 0
        if now > found:
            found, deadline = now, time.monotonic() + PATIENCE
        if time.monotonic() > deadline:
            raise Incomplete(f"wrote {found} of {lines} lines")


if __name__ == "__main__":
    print(main(Path(sys.argv[1]).read_text().splitlines(), Path(MARKS)))
