"""A run shown live on a terminal; the only place that draws with rich."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from stoker.cli.views.run import Recent, Scene, frame, scene_of
from stoker.cli.views.text import Line, Look, Span
from stoker.core.job import JobEvent
from stoker.core.text import printable
from stoker.engine.foreground import Complaints, Foreground

STYLES: dict[Look, str] = {
    "heading": "bold",
    "simulated": "bold reverse",
    "good": "green",
    "bad": "bold red",
    "odd": "magenta",
    "faint": "dim",
    "id": "bold",
}
"""Only the terminal's own colours, and none that is hard to see on a light or a dark one."""


class LiveView:
    """Redraws a few lines at the bottom of the terminal; nothing of them is left when it is closed."""

    interval: float | None = 0.2

    def __init__(self, console: Console | None = None, *, expected: int | None = None, logs: str = "") -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._recent = Recent()
        self._complaints = Complaints(self.say)
        self._expected = expected
        self._logs = logs
        self._due = 0.0
        self._drawn: object = None
        self._gone = False

    def happened(self, job_event: JobEvent) -> None:
        """Remember it for the next frame."""
        self._recent.note(job_event)

    def refresh(self, run: Foreground) -> None:
        """Draw, if the last frame is old enough and something has changed."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + (self.interval or 0.0)
        self._complaints.check(run)
        self.draw(scene_of(run, self._recent, time.time(), expected=self._expected, logs=self._logs))

    def draw(self, scene: Scene) -> None:
        """Show a scene, unless it looks like the one that is shown."""
        size = self._console.size
        lines = frame(scene, size.width, size.height)
        if (lines, size) == self._drawn:
            return
        self._drawn = (lines, size)
        self._on_terminal(self._live.start)
        self._on_terminal(lambda: self._live.update(drawing(lines), refresh=True))

    def say(self, text: str) -> None:
        """A sentence above the display."""
        self._on_terminal(lambda: self._console.print(Text(f"stoker: {printable(text)}")))

    def close(self) -> None:
        """Take the display away."""
        self._on_terminal(self._live.stop)

    def _on_terminal(self, act: Callable[[], object]) -> None:
        """When the terminal is gone, the run goes on without it."""
        if self._gone:
            return
        try:
            act()
        except OSError:
            self._gone = True


def drawing(lines: Sequence[Line]) -> Text:
    """The lines in colour."""
    spans = [(span.text, STYLES.get(span.look, "")) for line in lines for span in (*line, Span("\n"))]
    return Text.assemble(*spans[:-1], no_wrap=True, overflow="crop")
