"""`python -m stoker.adviser.preview COUNT < SWEEP`: print the first points of an adaptive method as JSON lines."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import msgspec

from stoker.adviser.study import Study
from stoker.core.sweep.objective import parse_objectives
from stoker.core.sweep.record import Sweep


def main() -> None:
    """Ask a study that is thrown away; none of its points has a result."""
    sweep = msgspec.json.decode(sys.stdin.buffer.read(), type=Sweep)
    objectives = parse_objectives(sweep.objectives, sweep.goal or None)
    with tempfile.TemporaryDirectory() as folder:
        study = Study(Path(folder, "study"), "preview", sweep, objectives)
        for _ in range(int(sys.argv[1])):
            sys.stdout.buffer.write(msgspec.json.encode(study.ask()[1]) + b"\n")


if __name__ == "__main__":
    main()
