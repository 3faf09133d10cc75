"""Build the summaries of `stoker status --by-group` and `--by-user`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from stoker.app.jobs.local_time import to_datetime
from stoker.app.views.facts import QueueFacts
from stoker.app.views.model import GroupLine, UserLine
from stoker.core.job import Active, resources_of
from stoker.core.lease import Lease
from stoker.core.planner.fairshare import Demand
from stoker.core.spec import amount_on
from stoker.ledger import Ledger, LedgerView, ledger_path
from stoker.store.filters import NO_FILTER, Filter, counts_by_group
from stoker.store.paths import Paths


def ledger_here(paths: Paths) -> Ledger:
    """The ledger of this machine; simulated GPUs have one of their own."""
    own = paths.is_simulated and not os.environ.get("STOKER_LEDGER")
    return Ledger(paths.state / "ledger" if own else ledger_path(os.environ))


def group_lines(facts: QueueFacts, chosen: Filter = NO_FILTER) -> list[GroupLine]:
    """The user's groups with open jobs; jobs without a group come first."""
    gpus: Counter[str] = Counter()
    for job, _ in facts.active:
        gpus[job.spec.group] += len(job.state.devices) if isinstance(job.state, Active) else 0
    status = facts.statuses.queue
    limits = status.settings.groups if status and status.settings else {}
    return [
        GroupLine(count.group, count.active, count.waiting, count.held, gpus[count.group], limits.get(count.group))
        for count in counts_by_group(facts.store, chosen)
    ]


def user_lines(facts: QueueFacts, ledger: LedgerView) -> list[UserLine]:
    """This user first, then all others with leases or demands in the ledger, the largest users of GPUs first."""
    demands = list(ledger.demands.values())
    waiting = {owner: jobs for owner, jobs in ledger.waiting.items() if jobs}
    owners = {lease.owner for lease in ledger.leases.values()} | {demand.owner for demand in demands} | waiting.keys()
    others = [
        _other(owner, ledger.leases.values(), demands, ledger.waiting.get(owner)) for owner in owners - {facts.user}
    ]
    return [_own(facts, demands), *sorted(others, key=lambda line: (-line.gpus, line.user))]


def _own(facts: QueueFacts, demands: Iterable[Demand]) -> UserLine:
    placed = [
        (job, device)
        for job, _ in facts.active
        if isinstance(job.state, Active) and job.id not in facts.nested
        for device in facts.devices_of(job.state.devices)
    ]
    amounts = [amount_on(resources_of(job), device) or device.memory or 0 for job, device in placed]
    waiting = sum(load.waiting for load in facts.loads.values())
    usage, since, gpus = _demanded(facts.user, demands)
    return UserLine(
        user=facts.user,
        you=True,
        running=len(facts.active),
        gpus=len({device.id for _, device in placed}),
        vram_bytes=sum(amounts),
        waiting=waiting,
        waiting_gpus=gpus,
        waiting_since=since,
        recent_gpu_hours=usage,
    )


def _other(owner: str, leases: Iterable[Lease], demands: Iterable[Demand], waiting: int | None) -> UserLine:
    held = [lease for lease in leases if lease.owner == owner]
    claims = [claim for lease in held for claim in lease.claims]
    usage, since, gpus = _demanded(owner, demands)
    sizes = [claim.memory for claim in claims]
    return UserLine(
        user=owner,
        you=False,
        running=len(held),
        gpus=len({claim.name for claim in claims}),
        vram_bytes=None if None in sizes else sum(filter(None, sizes)),
        waiting=waiting,
        waiting_gpus=gpus,
        waiting_since=since,
        recent_gpu_hours=usage,
    )


def _demanded(owner: str, demands: Iterable[Demand]) -> tuple[float | None, datetime | None, int]:
    """GPU-hours used lately, since when the user waits, and for how many GPUs; unknown for a user who does not wait."""
    own = [demand for demand in demands if demand.owner == owner]
    if not own:
        return None, None, 0
    usage, since = max(demand.usage for demand in own), min(demand.since for demand in own)
    return round(usage / 3600, 4), to_datetime(since), sum(demand.gpus for demand in own)
