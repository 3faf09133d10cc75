"""Draw the pictures of the README from real runs: the live display of a list, and the screen of the queue."""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from io import StringIO
from pathlib import Path

from rich.console import Console

from stoker.app.jobs.context import current_user
from stoker.app.jobs.options import JobOptions
from stoker.app.jobs.run import Batch, RunRequest
from stoker.app.views.facts import read_facts
from stoker.app.views.model import RunStatus
from stoker.app.views.run import Recent
from stoker.app.views.status import status_of
from stoker.cli.commands.demo import Demonstration, demo_jobs
from stoker.cli.foreground import RunReader
from stoker.cli.screens.run import drawing, render_run
from stoker.cli.screens.status import render_status
from stoker.cli.screens.text import Line
from stoker.core.job import JobEvent
from stoker.devices.detect import simulate
from stoker.engine.foreground import Foreground, Setup
from stoker.ledger import prepare_ledger
from stoker.sites.machine.site import MachineConfig
from stoker.store.paths import find_paths

WIDTH, HEIGHT = 110, 30
EXAMPLES = Path(__file__).parents[1] / "examples"
_OUTSIDE_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""A picture in a document must not load external files."""


class Photographer:
    """A view that keeps the frame with the most to show."""

    interval: float | None = 0.2

    def __init__(self, expected: int) -> None:
        self._recent = Recent()
        self._reader = RunReader(expected, "")
        self._best = 0
        self.lines: list[Line] = []

    def happened(self, job_event: JobEvent) -> None:
        """Remember the event for the next frame."""
        self._recent.note(job_event)

    def refresh(self, run: Foreground) -> None:
        """Keep the frame if it is better than the best so far."""
        status = self._reader.read(run, self._recent)
        if worth(status) > self._best:
            self._best = worth(status)
            self.lines = render_run(status, WIDTH, HEIGHT)

    def say(self, text: str) -> None:
        """Messages are not in the picture."""

    def close(self) -> None:
        """Nothing to undo."""


def worth(status: RunStatus) -> int:
    """How much a frame shows: jobs with a known end and reasons for idle GPUs count most."""
    spans = [(job.seconds, job.expected_end, job.started) for job in status.jobs]
    parts = [ran / (end - start).total_seconds() for ran, end, start in spans if ran and end and start]
    halfway = [part for part in parts if 0.3 < part < 0.7]
    idle = sum(not device.jobs for device in status.devices) if "next" in status.next else 0
    return 3 * len(halfway) + len(status.jobs) + 2 * len(status.notices) + 3 * idle


def photograph(state: str) -> list[Line]:
    """The lines of the best frame of a demonstration with its state in this directory."""
    request = RunRequest(options=JobOptions(), demo=True)
    paths = find_paths({"STOKER_STATE": state}, socket.gethostname(), simulated=True)
    jobs = demo_jobs()
    with ExitStack() as stack:
        devices = stack.enter_context(closing(simulate(request.simulation, str(paths.simulator), [], 0.0)))
        batch = Batch(request, "--demo", jobs, devices, paths, say=print)
        batch.make_log_directory(paths)
        ledger = prepare_ledger(paths.state / "ledger")
        site = MachineConfig(ledger=ledger, devices=devices, user=current_user())
        setup = Setup(paths=paths, site=site, policy=batch.policy, label="stoker run --demo")
        photographer = Photographer(len(jobs))
        view = Demonstration(photographer)
        run = stack.enter_context(closing(Foreground(setup, view)))
        batch.keep(run.store)
        run.run(batch.source(run, view))
    return photographer.lines


QUEUE = (
    "-J vit-b -m 14G -t 10m -- python train.py --bs 200 --epochs 60 --seconds 0.5",
    "-J seeds -m 7G -t 10m -a 0-5%3 -- python train.py --bs 90 --epochs 50 --seconds 0.5 --seed {i}",
    "-G 2 -t 20m -- python train.py --lr 3e-4 --epochs 80 --seconds 0.5",
    "-J wrong -G 0 -- python train.py --epochs many",
    "-J vit-l -G 4 -t 1h -- python train.py --epochs 40",
    "-t 10m -- python train.py --lr 1e-5 --bs 64",
    "-J eval -d vit-l -- python eval.py",
)
"""Options and commands of the jobs on the second picture."""


def queue_screen(state: str) -> list[Line]:
    """The lines of `stoker` with running, waiting and failed jobs."""
    own = {"STOKER_STATE": state, "STOKER_SIM": "4x24G", "STOKER_LEDGER": prepare_ledger(Path(state, "ledger"))}
    environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
    for words in (*(f"submit {job}" for job in QUEUE), "wait wrong"):
        command = [sys.executable, "-m", "stoker", *words.split()]
        subprocess.run(command, cwd=EXAMPLES, env=environment, capture_output=True, timeout=60, check=False)
    paths = find_paths({"STOKER_STATE": state}, socket.gethostname(), simulated=True)
    try:
        deadline = time.monotonic() + 60
        while True:
            with read_facts(paths, simulated=True) as facts:
                status = status_of(facts, "lab7", None)
            running = [job for job in status.jobs if job.state == "running"]
            if len(running) >= 4 and all((job.progress or 0) > 0.1 for job in running):
                return render_status(status, WIDTH, HEIGHT)
            assert time.monotonic() < deadline, "the jobs did not start"
            time.sleep(0.5)
    finally:
        for ending in ("cancel all --grace 0", "wait all", "engine stop"):
            command = [sys.executable, "-m", "stoker", *ending.split()]
            subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)


def picture(lines: list[Line], title: str = "stoker run --demo") -> str:
    """The lines as an SVG without external files."""
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="standard")
    console.print(drawing(lines))
    exported = console.export_svg(title=title, unique_id=title.replace(" ", ""))
    # Without the attribute some SVG viewers remove the blanks before a word.
    return _OUTSIDE_FONTS.sub("", exported).replace("<svg ", '<svg xml:space="preserve" ', 1)


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=Path(__file__).parent)
    directory: Path = parser.parse_args().directory
    with tempfile.TemporaryDirectory() as state:
        (directory / "picture.svg").write_text(picture(photograph(state)), encoding="utf-8")
    with tempfile.TemporaryDirectory() as state:
        (directory / "status.svg").write_text(picture(queue_screen(state), "stoker"), encoding="utf-8")


if __name__ == "__main__":
    main()
