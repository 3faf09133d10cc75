"""Every reason for waiting has one sentence, and survives being stored."""

from __future__ import annotations

import msgspec
import pytest

from stoker.core.planner.reasons import (
    AtLimit,
    Behind,
    Booked,
    CapFull,
    Crowded,
    Drained,
    Draining,
    HeldBack,
    InCluster,
    KeptFree,
    Leased,
    MaxUse,
    MemoryShort,
    MinFree,
    NeverFits,
    NotBefore,
    Occupied,
    OutOfResources,
    Outranked,
    QueuePaused,
    Reason,
    TooBusy,
    Unclaimable,
    UnknownDuration,
    Unusable,
    WeekUsed,
    Yields,
    sentence,
)
from stoker.core.spec import Dependency
from support.build import GIB

SENTENCES: list[tuple[Reason, str]] = [
    (Crowded(1, 0), "needs 1 GPU; none free"),
    (Crowded(4, 3, 42), "needs 4 GPUs; 3 free; #42 ends first"),
    (Crowded(1, 0, unmeasured=True), "first run needs 1 GPU to itself (measuring memory); none free"),
    (MemoryShort(24 * GIB, 21 * GIB, "1", 42), "needs 24.0G; most free is 21.0G (GPU 1); #42 ends first"),
    (TooBusy("1", 150, 120), "would load GPU 1 to 150% (limit 120%)"),
    (TooBusy("1", 150, 120, 9), "would load GPU 1 to 150% (limit 120%); #9 ends first"),
    (KeptFree(7, 4), "free GPUs are reserved for #7 (needs 4)"),
    (KeptFree(7, 1), "free GPUs are reserved for #7"),
    (KeptFree(7, 4, 12.5), "free GPUs are reserved for #7 (needs 4) from 12.5; this job may not finish by then"),
    (Outranked(7, "priority", 5, 0), "job 7 goes first: priority 5, this job 0"),
    (Outranked(7, "overdue", 28 * 86400.0), "job 7 goes first: it has waited more than 28 days"),
    (
        Outranked(7, "waited", 5.23, 1.31),
        "job 7 goes first: it has waited 5.2x its expected work, this job 1.3x",
    ),
    (
        Outranked(7, "waited", 12.3, 1.31, 6),
        "job 7 goes first: it has waited 12x its expected work, this job 1.3x; 6 jobs of its batch running",
    ),
    (Outranked(7, "smaller"), "job 7 goes first: it needs less GPU time, and both are new"),
    (Outranked(7, "alike"), "job 7 goes first: it is older and takes about as long"),
    (Outranked(7, "older"), "job 7 goes first: it is older"),
    (Outranked(7, "shorter"), "job 7 goes first: it is shorter or older"),
    (UnknownDuration(1800.0, 2), "its duration is unknown and counts as 30 min on 2 GPUs (set it with -t)"),
    (UnknownDuration(7800.0, 1), "its duration is unknown and counts as 2h10 (set it with -t)"),
    (Leased("0", "alice", "train.py"), "GPU 0 is held by alice (train.py)"),
    (Leased("0", "alice", "train.py", 4), "4 GPUs are held by alice (train.py)"),
    (Leased("0", "alice"), "GPU 0 is held by alice"),
    (Leased("0", "alice", short=TooBusy("0", 130, 120)), "would load GPU 0 to 130% (limit 120%); shared with alice"),
    (Occupied("2", "bob", 5 * GIB), "GPU 2 is in use by bob (5.0G)"),
    (Occupied("2", "bob"), "GPU 2 is in use by bob"),
    (
        Occupied("2", "bob", GIB, stale=True),
        "GPU 2 is in use by bob (1.0G), long idle; a job with -m SIZE could share it",
    ),
    (Draining("3"), "GPU 3 has not yet released the memory of its last job"),
    (Booked("3", "bob", 0.5, 43200.5, "deadline"), "GPU 3 is booked by bob from 0.5 for 12h: deadline"),
    (
        Booked("3", "bob", 0.5, 7200.5, later=True),
        "GPU 3 is booked by bob from 0.5 for 2h; this job may not end by then",
    ),
    (
        Booked("3", "bob", 0.5, 7200.5, later=True, unlimited=True),
        "GPU 3 is booked by bob from 0.5 for 2h; this job may not end by then (set a limit with -t)",
    ),
    (Unusable("3", "fell off the bus"), "GPU 3: fell off the bus"),
    (Yields("alice"), "alice is ahead (used less recently)"),
    (Yields("alice", "waited longer"), "alice is ahead (waited longer)"),
    (Yields(""), "your older run goes first"),
    (MaxUse(1), "1 GPU in use (limit --max-use)"),
    (MaxUse(4, "the rule gpus of a file"), "4 GPUs in use (the rule gpus of a file)"),
    (
        WeekUsed(200, 203.51, 9.5, "the rule gpu_hours of a file"),
        "203.5 of 200 GPU-hours of this week are used (the rule gpu_hours of a file); it ends 9.5",
    ),
    (MinFree(2), "2 GPUs left free for others (--min-free)"),
    (Drained("3", "drained by you"), "GPU 3 is drained by you"),
    (CapFull("group vision", 4), "group 'vision' is at its limit (4 running)"),
    (QueuePaused("paused by you"), "the queue is paused by you"),
    (HeldBack("held by you"), "held by you"),
    (HeldBack(""), "held"),
    (NotBefore(12.5), "begins 12.5"),
    (Behind((Dependency(46), Dependency(12, "any", array=True))), "waiting for 46 to succeed, array 12 to finish"),
    (AtLimit(2), "limit of 2 running jobs reached (-j)"),
    (OutOfResources("cannot start a process: no"), "cannot start a process: no; retrying soon"),
    (InCluster(None, "1000 jobs wait in Slurm already"), "1000 jobs wait in Slurm already"),
    (InCluster(7.5, "a reason"), "in Slurm since 7.5: a reason"),
    (InCluster(7.5, "a reason", 9.5), "in Slurm since 7.5: a reason; expected 9.5"),
    (Unclaimable("the ledger cannot be used"), "the ledger cannot be used"),
    (NeverFits("needs 5 GPUs; this machine has 4"), "needs 5 GPUs; this machine has 4"),
]


@pytest.mark.parametrize(("reason", "words"), SENTENCES)
def test_a_reason_in_plain_words(reason: Reason, words: str) -> None:
    """Screens, logs and status show exactly this sentence."""
    assert sentence(reason) == words


@pytest.mark.parametrize("reason", [reason for reason, _ in SENTENCES])
def test_a_stored_reason_comes_back_the_same(reason: Reason) -> None:
    """A reason survives encoding as JSON."""
    assert msgspec.json.decode(msgspec.json.encode(reason), type=Reason) == reason


def test_every_kind_of_reason_has_a_sentence() -> None:
    """The table above has every member of the union."""
    assert {type(reason) for reason, _ in SENTENCES} == set(Reason.__args__)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Crowded(4, 3, 12), "#11.1 ends first"),
        (MemoryShort(24 * GIB, 21 * GIB, "1", 12), "#11.1 ends first"),
        (KeptFree(12, 4), "reserved for #11.1 "),
        (Outranked(12, "alike"), "job 11.1 goes first"),
        (Behind((Dependency(12), Dependency(11, array=True))), "waiting for 11.1 to succeed, array 11 to succeed"),
    ],
)
def test_jobs_are_named_as_users_type_them(reason: Reason, words: str) -> None:
    """A task of an array is shown as array and index."""
    assert words in sentence(reason, name={12: "11.1"}.__getitem__)
