"""Write web/src/types.ts from the code: types of the JSON that page and server exchange, and states of jobs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import msgspec
from make_schema import TYPES

from stoker.core import outcomes
from stoker.core.amounts import VramMode
from stoker.features.sweep.model.space import Scalar
from stoker.web.api import Name

FILE = Path(__file__).parents[1] / "web/src/types.ts"
SCHEMAS = (
    "session-1",
    "status-1",
    "changes-1",
    "jobs-page-1",
    "jobs-1",
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
