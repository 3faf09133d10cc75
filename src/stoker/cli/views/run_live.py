"""The live display of a run; the only module that draws with rich."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from stoker.cli.views.run import render_run
from stoker.cli.views.text import Line, Look, Span
from stoker.core.job import JobEvent
from stoker.core.text import printable
from stoker.queue.run_view import Recent
from stoker.queue.view_model import RunStatus

STYLES: dict[Look, str] = {
    "heading": "bold",
    "simulated": "bold reverse",
    "good": "green",
    "bad": "bold red",
    "odd": "magenta",
    "faint": "dim",
    "id": "bold",
}
"""The looks of views/text.py in rich's words."""


class LiveView:
    """Redraws a few lines at the bottom of the terminal, and removes them when it is closed."""

    interval: float | None = 0.2

    def __init__(self, console: Console | None = None) -> None:
        self.recent = Recent()
        self._console = console or Console(stderr=True, highlight=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._due = 0.0
        self._drawn: object = None
        self._gone = False

    def happened(self, job_event: JobEvent) -> None:
        self.recent.note(job_event)

    def refresh(self, read: Callable[[Recent], RunStatus]) -> None:
        """Draw, if the last frame is old enough and something has changed."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + (self.interval or 0.0)
            self.draw(read(self.recent))

    def draw(self, status: RunStatus) -> None:
        """Show a status, unless it looks like the one on the screen."""
        size = self._console.size
        lines = render_run(status, size.width, size.height)
        if (lines, size) == self._drawn:
            return
        self._drawn = (lines, size)
        self._on_terminal(self._live.start)
        self._on_terminal(lambda: self._live.update(drawing(lines), refresh=True))

    def say(self, text: str) -> None:
        """Print a message above the display."""
        self._on_terminal(lambda: self._console.print(Text(f"stoker: {printable(text)}")))

    def close(self) -> None:
        self._on_terminal(self._live.stop)

    def _on_terminal(self, act: Callable[[], object]) -> None:
        """Ignore a terminal that is gone: the run goes on without it."""
        if self._gone:
            return
        try:
            act()
        except OSError:
            self._gone = True


def drawing(lines: Sequence[Line]) -> Text:
    spans = [(span.text, STYLES.get(span.look, "")) for line in lines for span in (*line, Span("\n"))]
    return Text.assemble(*spans[:-1], no_wrap=True, overflow="crop")
