"""One run of one program over one list, in a directory of its own, with proof that every command ran once."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from programs import LIST, Program, environment

MARKS = "marks"
"""Every command adds to this file, so it shows what ran."""
NO_OP = f"echo >>{MARKS}"
"""A command that does nothing but count itself."""


class Incomplete(Exception):
    """The program did not run all commands."""


def keep_apart(directory: Path) -> None:
    """Ask ext4 to put the directory of each run elsewhere on the disk, as it does with those of different users.

    Without a journal it shuns a deleted inode for one to six minutes, and passes all of them by for every new file
    near by: right after 30,000 files had been deleted, one took 570 microseconds to make instead of 24.
    """
    with contextlib.suppress(FileNotFoundError):
        subprocess.run(["chattr", "+T", directory], stderr=subprocess.DEVNULL, check=False)


def take(program: Program, commands: Sequence[str], directory: Path) -> float:
    """Seconds from the start of the program to its end, when all commands ran just once."""
    directory.mkdir()
    listed = directory / LIST
    listed.write_text("".join(f"{command}\n" for command in commands))
    os.sync()  # so that no run pays for writes of the one before
    with listed.open() as stdin, (directory / "output").open("w") as output:
        started = time.perf_counter()
        process = subprocess.run(
            program.words,
            cwd=directory,
            env=environment(directory),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        seconds = time.perf_counter() - started
    _check(process.returncode, len(commands), directory)
    return float((directory / "output").read_text().split()[-1]) if program.tells_seconds else seconds


def _check(code: int, wanted: int, directory: Path) -> None:
    marks = directory / MARKS
    ran = marks.read_bytes().count(b"\n") if marks.exists() else 0
    if code != 0 or ran != wanted:
        raise Incomplete(f"ran {ran:,} of {wanted:,} commands, exit code {code}")


def interleaved(programs: Sequence[Program], rounds: int) -> Iterator[tuple[int, Program]]:
    """A B C A B C ..., so that other load on the machine affects all alike."""
    order = tuple(programs)  # a program may be left out while the rounds go on
    return ((number, program) for number in range(rounds) for program in order)
