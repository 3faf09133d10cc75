"""The picture in the documents and the script that draws it."""

from __future__ import annotations

import runpy
from pathlib import Path
from xml.etree import ElementTree

from stoker.cli.screens.text import Span

DOCUMENTS = Path(__file__).parents[2] / "docs"


def test_a_picture_needs_nothing_from_elsewhere() -> None:
    """Fonts are those of the reader, and the text of the frame is in it."""
    script = runpy.run_path(str(DOCUMENTS / "make_picture.py"))
    svg = script["picture"]([(Span(" GPU0 "), Span("█████", "good"))])
    assert "GPU0" in svg
    assert "url(http" not in svg.replace('"', "").replace("'", "")
    assert "font-face" not in svg


def test_the_picture_shows_the_demonstration() -> None:
    """What is checked in is a well-formed frame of a demonstration under way."""
    svg = (DOCUMENTS / "picture.svg").read_text(encoding="utf-8")
    text = "".join(ElementTree.fromstring(svg).itertext())
    for word in ("SIM", "GPU3", "RuntimeError:", "running", "waiting"):
        assert word in text


def test_the_second_picture_shows_the_queue() -> None:
    """Running jobs, and waiting ones with their reasons."""
    svg = (DOCUMENTS / "status.svg").read_text(encoding="utf-8")
    text = "".join(ElementTree.fromstring(svg).itertext())
    for word in ("SIM", "running", "queued", "blocked", "vit-b", "failed"):
        assert word in text
