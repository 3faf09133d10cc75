"""Measures how long the echo of a key takes in `stoker shell`, beside plain bash in the same run."""

from __future__ import annotations

import argparse
import os
import pty
import select
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bars import Bar, bars_shown, table
from gaps import percentile
from machine import exit_code, milliseconds, parser, workshop
from programs import environment
from rounds import Incomplete

BASH = ("/bin/bash", "--norc", "--noprofile", "-i")
ADDED_P99_MILLISECONDS = 10.0
PROMPT = b"ready> "
PATIENCE_SECONDS = 60.0
_PROGRAM = Path(sys.executable).parent / "stoker"


class Typist:
    """A shell on a terminal of its own, and the keys typed into it."""

    def __init__(self, words: Sequence[str], variables: Mapping[str, str]) -> None:
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.execve(words[0], list(words), dict(variables))
        self._read_until(PROMPT)
        self._keys = 0

    def press(self) -> float:
        """Type a letter and return the seconds until it is echoed; a line is emptied now and then."""
        self._keys += 1
        if self._keys % 40 == 0:
            os.write(self._terminal, b"\x15")  # Ctrl-U
            self._read_rest()
        began = time.perf_counter()
        os.write(self._terminal, b"x")
        self._read_until(b"x")
        return time.perf_counter() - began

    def leave(self) -> None:
        """End the shell."""
        os.write(self._terminal, b"\x15exit\r")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while os.waitpid(self._pid, os.WNOHANG)[0] == 0:
            self._read_rest()
            if time.monotonic() > deadline:
                raise Incomplete("the shell did not end")
        os.close(self._terminal)

    def _read_until(self, text: bytes) -> None:
        seen, deadline = b"", time.monotonic() + PATIENCE_SECONDS
        while text not in seen:
            if not select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise Incomplete(f"the shell showed {seen!r} and not {text!r}")
            seen += os.read(self._terminal, 4096)

    def _read_rest(self) -> None:
        while select.select([self._terminal], [], [], 0.05)[0]:
            try:
                os.read(self._terminal, 4096)
            except OSError:  # all processes have closed it
                return


def main() -> None:
    """Measure and print; raises Incomplete where a shell did not answer."""
    options = _options()
    with workshop(options.directory) as directory:
        seconds = _measure(directory, options.keys, options.pause)
    rows = [[name, *milliseconds([median(each), percentile(each, 0.99)])] for name, each in seconds.items()]
    print(table(["shell", "median ms", "p99 ms"], rows))
    plain, session = (percentile(each, 0.99) for each in seconds.values())
    bar = Bar("p99 above bash, ms", 1000 * (session - plain), ADDED_P99_MILLISECONDS, at_most=True)
    print(f"\n{bars_shown([bar])}")


def _options() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--keys", type=int, default=1000, help="in each shell, default %(default)s")
    options.add_argument("--pause", type=float, default=0.02, help="seconds between two keys, default %(default)s")
    return options.parse_args()


def _measure(directory: Path, keys: int, pause: float) -> dict[str, list[float]]:
    """Press a key in one shell and then in the other, so that both meet the same machine."""
    variables = {**environment(directory), "PS1": PROMPT.decode(), "TERM": "xterm"}
    session = [str(_PROGRAM), "shell", "--sim", "1x24G", "--", *BASH]
    typists = {"bash": Typist(BASH, variables), "stoker shell": Typist(session, variables)}
    seconds: dict[str, list[float]] = {name: [] for name in typists}
    for _ in range(keys):
        for name, typist in typists.items():
            seconds[name].append(typist.press())
            time.sleep(pause)
    for typist in typists.values():
        typist.leave()
    return seconds


if __name__ == "__main__":
    sys.exit(exit_code(main))
