"""The claims in the ledger at a moment of a storm, when no process can claim anything."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from support.storm.processes import locked_files


def overfull(ledger: Path, sizes: Mapping[str, int]) -> list[str]:
    """Simulated devices on which more is leased than they have, or something beside one that has all of it."""
    on: dict[str, list[Any]] = defaultdict(list)
    for claim in _live_claims(ledger) if sizes else ():
        on[claim["name"].removeprefix("sim:")].append(claim.get("memory"))
    exclusive = [device for device, parts in on.items() if None in parts and len(parts) > 1]
    full = [device for device, parts in on.items() if sum(part or 0 for part in parts) > sizes[device]]
    return [f"leases on {device} do not go together: {on[device]}" for device in dict.fromkeys([*exclusive, *full])]


def _live_claims(ledger: Path) -> list[dict[str, Any]]:
    """All claims that somebody holds; leases that end meanwhile were there when this began."""
    with contextlib.suppress(FileNotFoundError), (ledger / "mutex").open() as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        return [claim for path in locked_files(ledger) for claim in _claims(path)]
    return []


def _claims(path: Path) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError):
        yield from json.loads(path.read_text())["claims"] if path.suffix == ".lease" else ()
