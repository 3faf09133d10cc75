"""Render the summaries of `stoker status --by-group` and `--by-user`."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.app.views.model import GroupLine, UserLine
from stoker.cli.screens.text import Column, Line, Span, or_dash, table_lines
from stoker.core.units import ago_text, count_text, short_size

MIN_LIMIT_COLUMNS = 5
MIN_SINCE_COLUMNS = 8


def group_table(groups: Sequence[GroupLine], width: int) -> list[Line]:
    """A header and a line for each group."""
    columns = [
        Column("GROUP", [Span(group.group or "-", "id") for group in groups], 9, most=24),
        Column("RUNNING", [Span(str(group.active), "good" if group.active else "") for group in groups], 8, right=True),
        Column("WAITING", [Span(str(group.waiting)) for group in groups], 7, right=True),
        Column("HELD", [Span(str(group.held)) for group in groups], 3, right=True),
        Column("GPUS", [Span(str(group.gpus)) for group in groups], 5, right=True),
    ]
    return table_lines(columns, "LIMIT", [(Span(or_dash(group.limit)),) for group in groups], width, MIN_LIMIT_COLUMNS)


def user_table(users: Sequence[UserLine], now: float, width: int) -> list[Line]:
    """A header and a line for each user; what only the user's own queue knows is `-` for others."""
    names = [user.user + (" (you)" if user.you else "") for user in users]
    memory = ["whole GPUs" if user.vram_bytes is None else short_size(user.vram_bytes) for user in users]
    since = ["" if user.waiting_since is None else ago_text(user.waiting_since.timestamp(), now) for user in users]
    columns = [
        Column("USER", [Span(name, "id") for name in names], 9, most=24),
        Column("RUNNING", [Span(str(user.running), "good" if user.running else "") for user in users], 8, right=True),
        Column("GPUS", [Span(str(user.gpus)) for user in users], 7, right=True),
        Column("MEM", [Span(size) for size in memory], 4, right=True),
        Column("WAITING", [Span(_waiting(user)) for user in users], 6, right=True),
        Column("COULD USE", [Span(_usable(user)) for user in users], 5, right=True),
        Column("USED LATELY", [Span(or_dash(user.recent_gpu_hours, "{:.2f} GPU-h")) for user in users], 3, right=True),
    ]
    return table_lines(columns, "WAITS SINCE", [(Span(text or "-"),) for text in since], width, MIN_SINCE_COLUMNS)


def _waiting(user: UserLine) -> str:
    return "-" if user.waiting is None else count_text(user.waiting, "job")


def _usable(user: UserLine) -> str:
    return count_text(user.waiting_gpus, "GPU") if user.waiting_gpus else "-"
