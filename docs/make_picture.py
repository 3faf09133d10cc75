"""Draws docs/picture.svg: one frame of the live display, taken from a real run of the demonstration."""

from __future__ import annotations

import argparse
import re
import socket
import tempfile
from contextlib import ExitStack, closing
from io import StringIO
from pathlib import Path

from rich.console import Console

from stoker.cli.commands.demo import Demonstration, demo_jobs
from stoker.cli.foreground import Batch, Request, RunReader
from stoker.cli.views.run import drawing, render_run
from stoker.cli.views.text import Line
from stoker.core.job import JobEvent
from stoker.devices.detect import simulate
from stoker.engine.foreground import Foreground, Setup
from stoker.ledger import prepare_ledger
from stoker.queue.options import JobOptions, current_user
from stoker.queue.run_view import Recent
from stoker.queue.view_model import RunStatus
from stoker.sites.machine.site import MachineConfig
from stoker.store.paths import find_paths

WIDTH, HEIGHT = 110, 30
_OUTSIDE_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""A picture in a document must not load anything from elsewhere."""


class Photographer:
    """A view that keeps the moment in which the display has most to show."""

    interval: float | None = 0.2

    def __init__(self, expected: int) -> None:
        self._recent = Recent()
        self._reader = RunReader(expected, "")
        self._best = 0
        self.lines: list[Line] = []

    def happened(self, job_event: JobEvent) -> None:
        """Remember it for the next picture."""
        self._recent.note(job_event)

    def refresh(self, run: Foreground) -> None:
        """Keep the picture if it is better than those before."""
        status = self._reader.read(run, self._recent)
        if worth(status) > self._best:
            self._best = worth(status)
            self.lines = render_run(status, WIDTH, HEIGHT)

    def say(self, text: str) -> None:
        """Nothing that is said is in the picture."""

    def close(self) -> None:
        """Nothing to undo."""


def worth(status: RunStatus) -> int:
    """How much there is to see: jobs whose end is known count most, and so do reasons for being idle."""
    spans = [(job.seconds, job.expected_end, job.started) for job in status.jobs]
    parts = [ran / (end - start).total_seconds() for ran, end, start in spans if ran and end and start]
    halfway = [part for part in parts if 0.3 < part < 0.7]
    idle = sum(not device.jobs for device in status.devices) if "next" in status.next else 0
    return 3 * len(halfway) + len(status.jobs) + 2 * len(status.notices) + 3 * idle


def photograph(state: str) -> list[Line]:
    """The lines of the best frame of a demonstration whose state lives in the directory."""
    request = Request(options=JobOptions(), demo=True)
    paths = find_paths({"STOKER_STATE": state}, socket.gethostname(), simulated=True)
    jobs = demo_jobs()
    with ExitStack() as stack:
        devices = stack.enter_context(closing(simulate(request.simulation, str(paths.simulator), [], 0.0)))
        batch = Batch(request, "--demo", jobs, devices, paths)
        batch.make_log_directory(paths)
        ledger = prepare_ledger(paths.state / "ledger")
        site = MachineConfig(ledger=ledger, devices=devices, user=current_user())
        setup = Setup(paths=paths, site=site, policy=batch.policy, label="stoker run --demo")
        photographer = Photographer(len(jobs))
        view = Demonstration(photographer)
        run = stack.enter_context(closing(Foreground(setup, view)))
        batch.keep(run.store, paths)
        run.run(batch.source(run, view))
    return photographer.lines


def picture(lines: list[Line]) -> str:
    """The lines as an SVG that needs nothing from elsewhere."""
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="standard")
    console.print(drawing(lines))
    exported = console.export_svg(title="stoker run --demo", unique_id="stoker")
    # Without the attribute some programs that show SVG swallow the blanks before a word.
    return _OUTSIDE_FONTS.sub("", exported).replace("<svg ", '<svg xml:space="preserve" ', 1)


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).with_name("picture.svg"))
    file: Path = parser.parse_args().file
    with tempfile.TemporaryDirectory() as state:
        file.write_text(picture(photograph(state)), encoding="utf-8")


if __name__ == "__main__":
    main()
