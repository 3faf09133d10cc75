"""The schemas in docs/schema are those of the code; only additions may change them within a version."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def test_the_schemas_are_what_the_code_says() -> None:
    """`make schema` would change no file, and there is none that it does not write."""
    script = runpy.run_path(str(DOCS / "make_schema.py"))
    written = {f"stoker.{name}.json": script["schema_text"](place) for name, place in script["TYPES"].items()}
    assert {path.name: path.read_text() for path in (DOCS / "schema").iterdir()} == written


def test_the_types_of_the_page_are_what_the_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make schema` would not change them; node is not needed to know it."""
    monkeypatch.syspath_prepend(DOCS)
    script = runpy.run_path(str(DOCS / "make_types.py"))
    assert script["FILE"].read_text() == script["text"]()
