"""The field `code` of a job: its snapshot and how it uses it, or why it has none."""

from __future__ import annotations

from typing import NamedTuple

_TREE, _NONE = " tree", "no: "


class FrozenCode(NamedTuple):
    """The code of a job."""

    snapshot: str = ""
    """Id of its snapshot; empty if it runs the code that is there when it starts."""
    in_tree: bool = False
    """Whether it runs inside the snapshot."""
    reason: str = ""
    """Why it has no snapshot; empty if it has one, or needs none."""


def code_of(field: str) -> FrozenCode:
    """The meaning of the field of a job."""
    if field.startswith(_NONE):
        return FrozenCode(reason=field.removeprefix(_NONE))
    return FrozenCode(field.removesuffix(_TREE), field.endswith(_TREE))


def field_of(code: FrozenCode) -> str:
    if code.snapshot:
        return code.snapshot + _TREE * code.in_tree
    return _NONE + code.reason if code.reason else ""
