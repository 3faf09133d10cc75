"""Whether the users of this machine tell each other in one place what they use."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from stoker.checkup.verdict import Subject, Verdict, note, ok, problem
from stoker.core.errors import StokerError
from stoker.ledger import PLACES, Ledger, LedgerView, find_ledger


def look_at_ledger(subject: Subject, places: Iterable[Path] = PLACES) -> Iterator[Verdict]:
    """The directory of leases: whether it can be used, is open to all, and is the one that all use."""
    if subject.simulated and not subject.environment.get("STOKER_LEDGER"):
        yield ok("ledger", "simulated GPUs are shared with nobody")
        return
    try:
        path = find_ledger(subject.environment, places)
    except StokerError as error:
        yield problem("ledger", error.message, error.hint)
        return
    yield _openness(path)
    yield from (note("ledger", warning) for warning in Ledger(path).live().warnings)
    yield from _elsewhere(path, places)


def _openness(path: Path) -> Verdict:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o002:
        return ok("ledger", f"{path} is open to all users")
    text = f"{path} has mode {mode:o}: other users cannot tell there what they use"
    return problem("ledger", text, f"let its owner run 'chmod 1777 {path}', or set STOKER_LEDGER to another one")


def _elsewhere(path: Path, places: Iterable[Path]) -> Iterator[Verdict]:
    """Others who use another ledger do not see our leases, nor we theirs."""
    for other in places:
        if other == path or not os.path.isdir(other):
            continue
        view = Ledger(other).live()
        if view.leases or view.wants:
            text = f"{_names(view)} use {other}, you use {path}: you may get each other's GPUs"
            yield problem("ledger", text, "let all set the same STOKER_LEDGER, or nobody any")


def _names(view: LedgerView) -> str:
    owners = {lease.owner for lease in view.leases.values()} | {want.owner for want in view.wants.values()}
    return ", ".join(sorted(owners))
