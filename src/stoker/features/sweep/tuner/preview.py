"""`python -m stoker.features.sweep.tuner.preview COUNT < SWEEP`: print the first points of a method."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import msgspec

from stoker.features.sweep.model.objective import parse_objectives
from stoker.features.sweep.model.record import SweepSpec
from stoker.features.sweep.tuner.study import Study


def main() -> None:
    """Ask a study that is thrown away; none of its points has a result."""
    sweep = msgspec.json.decode(sys.stdin.buffer.read(), type=SweepSpec)
    objectives = parse_objectives(sweep.objectives, sweep.goal or None)
    with tempfile.TemporaryDirectory() as folder:
        study = Study(Path(folder, "study"), "preview", sweep, objectives)
        for _ in range(int(sys.argv[1])):
            sys.stdout.buffer.write(msgspec.json.encode(study.ask()[1]) + b"\n")


if __name__ == "__main__":
    main()
