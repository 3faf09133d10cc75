"""The shape of `stoker run --json`, as it is promised in docs/schema."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from stoker.cli.foreground.summary import RunResult
from support.cli import Stoker

SCHEMA = Path(__file__).parents[2] / "docs/schema/stoker.run-1.json"


def test_the_schema_is_what_the_code_says() -> None:
    """The promised schema is the one msgspec makes of the code; only additions may change it within a version."""
    assert json.loads(SCHEMA.read_text()) == msgspec.json.schema(RunResult)


def test_every_promised_field_is_there(stoker: Stoker) -> None:
    """A run's value has exactly the fields of the schema, for a job that ended and for one that never started."""
    definitions = json.loads(SCHEMA.read_text())["$defs"]
    result = stoker("run", "--devices", "0", "--json", "-", stdin="exit 1\n")
    run = json.loads(result.out)
    assert set(run) == set(definitions["RunResult"]["properties"])
    assert set(run["jobs"][0]) == set(definitions["JobResult"]["properties"])
    assert run["jobs"][0]["started"].endswith("+00:00")
