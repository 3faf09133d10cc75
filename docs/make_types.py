"""Write web/src/types.ts from the code: types of the JSON that page and server exchange, states and columns of jobs."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from make_schema import TYPES

from stoker.app.views.columns import COLUMNS, PAGE_HISTORY_TABLE, PAGE_JOBS_TABLE
from stoker.app.views.job import JobFacts, JobLine, PastLine
from stoker.core import outcomes
from stoker.core.amounts import VramMode
from stoker.features.sweep.model.space import Scalar
from stoker.store.filters import SORTS
from stoker.web.api import Name

FILE = Path(__file__).parents[1] / "web/src/types.ts"
SCHEMAS = (
    "session-1",
    "status-1",
    "changes-1",
    "jobs-page-1",
    "jobs-1",
    "code-diff-1",
    "log-part-1",
    "log-search-1",
    "series-1",
    "gpu-samples-1",
    "timeline-1",
    "history-page-1",
    "usage-1",
    "sweeps-1",
    "sweep-page-1",
    "action-1",
    "change-1",
    "lab-page-1",
)
"""What the page exchanges with the server, by the names in docs/schema."""
NAMED: dict[str, Any] = {
    "JobState": outcomes.JobStateName,
    "Tone": outcomes.Tone,
    "VramMode": VramMode,
    "ActionName": Name,
    "Scalar": Scalar,
    "Point": tuple[float, float],
}
"""Types that are no structs and have a name in the page."""
CONSTANTS = {
    "WAITING": "readonly JobState[]",
    "ACTIVE": "readonly JobState[]",
    "RESULTS": "readonly JobState[]",
    "FAILURES": "readonly JobState[]",
    "TONES": "Record<JobState, Tone>",
}
"""Values of core/outcomes, with their types in the page."""
TABLES: dict[str, tuple[type[JobFacts], Sequence[str]]] = {
    "JOBS_TABLE": (JobLine, PAGE_JOBS_TABLE),
    "HISTORY_TABLE": (PastLine, PAGE_HISTORY_TABLE),
}
"""Tables of jobs in the page: the struct of a line, and names of columns."""
UNITS = ("bytes", "seconds", "percent", "hours")
"""Last words of fields that are amounts."""
COLUMN = """/** A column of a table of jobs; `field` is empty if its cell is made of several fields. */
export interface JobColumn<Line> {
  name: string;
  title: string;
  field: (keyof Line & string) | "";
  kind: "bytes" | "seconds" | "percent" | "hours" | "time" | "list" | "text";
  /** The name of this order at the server, if it has one. */
  sort: string;
  right: boolean;
}"""
_PLAIN = {"string": "string", "boolean": "boolean", "integer": "number", "number": "number", "null": "null"}


def text() -> str:
    """The text of the file."""
    schemas, structs = msgspec.json.schema_components([*map(_imported, SCHEMAS), *NAMED.values()])
    plain = {type_text(schema, {}): name for name, schema in zip(NAMED, schemas[len(SCHEMAS) :], strict=True)}
    parts = ["/** Generated from the code by `make schema`; the structs there tell what the fields mean. */"]
    parts += [f"export type {name} = {known};" for known, name in plain.items()]
    parts += [
        f"export const {name}: {kind} = {json.dumps(getattr(outcomes, name))};" for name, kind in CONSTANTS.items()
    ]
    parts += [_interface(name, struct, plain) for name, struct in sorted(structs.items())]
    parts += [COLUMN, *(_table(name, line, columns) for name, (line, columns) in TABLES.items())]
    return "\n\n".join(parts) + "\n"


def _imported(schema: str) -> Any:
    module, _, name = TYPES[schema].partition(":")
    return getattr(importlib.import_module(module), name)


def _interface(name: str, struct: dict[str, Any], named: dict[str, str]) -> str:
    """A struct of the server always has all fields; one that it reads without accepting others has optional ones."""
    is_read = struct.get("additionalProperties") is False
    optional = set(struct["properties"]) - set(struct["required"]) if is_read else set()
    lines = [
        f"  {field}{'?' * (field in optional)}: {type_text(schema, named)};"
        for field, schema in struct["properties"].items()
    ]
    comment = [f"/** {line} */" for line in struct.get("description", "").splitlines()[:1]]
    return "\n".join([*comment, f"export interface {name} {{", *lines, "}"])


def _table(name: str, line: type[JobFacts], columns: Sequence[str]) -> str:
    fields = get_type_hints(line)
    rows = [f"  {json.dumps(_column(column, fields))}," for column in columns]
    return "\n".join([f"export const {name}: readonly JobColumn<{line.__name__}>[] = [", *rows, "];"])


def _column(name: str, fields: dict[str, Any]) -> dict[str, object]:
    column = COLUMNS[name]
    return {
        "name": name,
        "title": column.page or (column.title or column.plain).capitalize(),
        "field": column.field,
        "kind": _kind(column.field, fields.get(column.field)),
        "sort": next((order for order in (name, column.field) if order in SORTS), ""),
        "right": column.right,
    }


def _kind(field: str, type_: Any) -> str:
    unit = field.rpartition("_")[2]
    if unit in UNITS:
        return unit
    return "time" if datetime in (type_, *get_args(type_)) else "list" if get_origin(type_) is list else "text"


def type_text(schema: dict[str, Any], named: dict[str, str]) -> str:
    """A JSON schema as a type of TypeScript; `named` are names of types by their text."""
    shown: str
    match schema:
        case {"$ref": reference}:
            shown = reference.rpartition("/")[2]
        case {"enum": words}:
            shown = " | ".join(map(json.dumps, words))
        case {"anyOf": kinds}:
            shown = " | ".join(dict.fromkeys(type_text(kind, named) for kind in kinds))
        case {"prefixItems": kinds}:
            shown = f"[{', '.join(type_text(kind, named) for kind in kinds)}]"
        case {"items": kind}:
            item = type_text(kind, named)
            shown = f"({item})[]" if " | " in item else f"{item}[]"
        case {"type": "object"}:
            shown = f"Record<string, {type_text(schema.get('additionalProperties', {}), named)}>"
        case _:
            shown = _PLAIN.get(schema.get("type", ""), "unknown")
    return named.get(shown, shown)


if __name__ == "__main__":
    FILE.write_text(text())
