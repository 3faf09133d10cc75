"""Whether the queue is whole, its engine works, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from stoker.checkup.verdict import Subject, Verdict, note, ok, problem
from stoker.core.errors import StokerError
from stoker.core.job import Active
from stoker.core.units import count_text
from stoker.ledger import Ledger, find_ledger, owner_name
from stoker.presence import QUEUE, living_engines, process_of, version_notice
from stoker.published import read_view
from stoker.queue import forgotten_keepers, held_orphans, open_store, orphans
from stoker.store import Store
from stoker.store.integrity import damage
from stoker.store.preserving import DAMAGED_HINT, NEWER_HINT, is_beheaded


def look_at_queue(subject: Subject) -> Iterator[Verdict]:
    """The file of the queue, from its first page to its last."""
    path = subject.places.database
    if not path.exists() and not is_beheaded(path):
        yield ok("queue", "nothing was submitted yet")
    elif wrong := damage(path):
        yield problem("queue", f"{path}: {wrong}", NEWER_HINT if "newer Stoker" in wrong else DAMAGED_HINT)
    else:
        yield ok("queue", f"{path} is whole")


def look_at_engine(subject: Subject, *, answers: bool) -> Iterator[Verdict]:
    """Whether somebody serves what was submitted."""
    places = subject.places
    pid = process_of(places, QUEUE)
    if pid is None:
        yield _absent(subject)
        return
    if not answers:
        advice = f"see {places.log}; then: stoker engine stop && stoker engine start; jobs go on"
        yield problem("engine", f"the engine (process {pid}) does not answer", advice)
        return
    view = read_view(places.bulletin(QUEUE))
    if notice := version_notice(places):
        what, _, _ = notice.partition(";")
        yield note("engine", what, "stoker engine stop && stoker engine start; jobs go on")
    if view is not None and view.trouble:
        yield problem("engine", f"the engine cannot work as it should: {view.trouble}", f"see {places.log}")
    else:
        yield ok("engine", f"it runs (process {pid}) and answers")


def _absent(subject: Subject) -> Verdict:
    with _store(subject) as store:
        load = store.loads().get(QUEUE) if store else None
    if load is not None and load.open:
        text = f"{count_text(load.open, 'job')} in the queue, and no engine runs"
        return problem("engine", text, "stoker engine start")
    return ok("engine", "none runs, and none is needed; it starts with the next submit")


def look_at_leftovers(subject: Subject) -> Iterator[Verdict]:
    """What dead engines left: jobs, keepers and leases."""
    with _store(subject) as store:
        if store is None:
            return
        left = [*_jobs(subject, store), *_keepers(subject, store), *_leases(subject, store)]
    yield from left or [ok("leftovers", "none")]


def _jobs(subject: Subject, store: Store) -> Iterator[Verdict]:
    places = subject.places
    held = [orphan for orphan in held_orphans(places, store) if orphan.engine != QUEUE]
    if held:
        text = f"{count_text(len(held), 'job')} of a run that died, still in the hands of keepers"
        yield note("leftovers", text, "the engine records how they end: stoker engine start")
    waiting = sum(not isinstance(each.job.state, Active) for each in orphans(places, store) if each.engine != QUEUE)
    if waiting:
        text = f"{count_text(waiting, 'job')} of a run that died, left waiting"
        yield note("leftovers", text, "go on with them (stoker run --resume, stoker resume), or cancel them")


def _keepers(subject: Subject, store: Store) -> Iterator[Verdict]:
    with contextlib.suppress(FileNotFoundError):
        if names := forgotten_keepers(subject.places, store):
            text = f"{count_text(len(names), 'folder')} of keepers that nobody needs any more"
            yield note("leftovers", text, "the next engine removes them: stoker engine start")


def _leases(subject: Subject, store: Store) -> Iterator[Verdict]:
    """Leases of this user's that no job of this queue has; a living engine may hold some in reserve."""
    if any(True for _ in living_engines(subject.places)):
        return
    with contextlib.suppress(StokerError):
        view = Ledger(find_ledger(subject.environment)).live()
        known = {owned.job.state.lease for owned in store.all_active() if isinstance(owned.job.state, Active)}
        ours = {name: lease for name, lease in view.leases.items() if lease.owner == owner_name(os.geteuid())}
        for name, lease in ours.items():
            if name not in known:
                devices = ", ".join(claim.name for claim in lease.claims)
                text = f"a lease of yours on {devices} ({lease.what}) belongs to no job of this queue"
                yield note(
                    "leftovers", text, f"if nothing else of yours uses it, see process {lease.pid} and its children"
                )


@contextlib.contextmanager
def _store(subject: Subject) -> Iterator[Store | None]:
    """The store, where there is one that can be opened."""
    store: Store | None = None
    with contextlib.suppress(StokerError):
        store = open_store(subject.places) if subject.places.database.exists() else None
    try:
        yield store
    finally:
        if store is not None:
            store.close()
