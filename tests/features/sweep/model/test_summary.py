"""A summary that follows changes is the one of the trials as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite, isnan, nan
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stoker.core.outcomes import ACTIVE, GOOD_RESULTS, RESULTS
from stoker.features.sweep.model import summary as module
from stoker.features.sweep.model.objective import Objective, score
from stoker.features.sweep.model.summary import MICRO, SortedNumbers, TrialRecord, TrialSummary

OBJECTIVES = (Objective("loss", "min"), Objective("acc", "max"))
VALUES = some.sampled_from([None, nan, -1.0, 0.0, 0.5, 0.5, 2.0, 7.5])
STATES = some.sampled_from(["queued", "held", "running", "stopping", *RESULTS, "done", "done", "stopped"])
NOW = 50.0


@some.composite
def records(draw: some.DrawFn, count: int) -> TrialRecord:
    """A trial in any state."""
    state = draw(STATES)
    is_over, has_run = state in RESULTS, draw(some.booleans()) or state in ACTIVE
    number = draw(some.integers(0, 11))
    return TrialRecord(
        number=number,
        job=100 + number,
        state=state,
        attempt=int(has_run),
        started=10.0 if has_run else None,
        finished=12.0 if has_run and is_over else None,
        devices=2,
        ended=draw(some.integers(11, 14).map(float)) if is_over else None,
        gpu_time=draw(some.sampled_from([0, 10, 20, 4000])) if has_run else 0,
        values=tuple(draw(VALUES) for _ in range(count)),
        step=None,
        message="",
        notice=draw(some.sampled_from(["", "", "odd lines"])),
        has_curve=draw(some.booleans()),
        is_settled=is_over and draw(some.booleans()),
    )


@some.composite
def histories(draw: some.DrawFn) -> tuple[int, int, list[dict[int, TrialRecord | None]]]:
    """The number of objectives and of repeats, and changes in order."""
    count, repeat = draw(some.integers(0, 2)), draw(some.integers(1, 3))
    lists = draw(some.lists(some.lists(records(count), max_size=8), max_size=6))
    changes = [
        {record.number: None if draw(some.integers(0, 7)) == 0 else record for record in several} for several in lists
    ]
    return count, repeat, changes


def best_so_far(values: Sequence[float | None], *, smallest: bool) -> list[float | None]:
    """The best of the values up to each place; None before the first number."""
    bests: list[float | None] = []
    best: float | None = None
    for value in values:
        if value is not None and isfinite(value):
            best = value if best is None else (min if smallest else max)(best, value)
        bests.append(best)
    return bests


def expected(trials: Mapping[int, TrialRecord], objectives: Sequence[Objective], repeat: int) -> dict[str, object]:
    """The same by plain computation over all trials."""
    rows = [trials[number] for number in sorted(trials)]
    valued = [row for row in rows if not isnan(row.value)] if objectives else []
    good = [row for row in valued if row.state in GOOD_RESULTS]
    ended = sorted(good, key=lambda row: (row.ended, row.number))
    ranked = sorted(good, key=lambda row: score(objectives[0].goal, row.value))
    table = sorted(
        [row for row in valued if row.state != "failed"],
        key=lambda row: (score(objectives[0].goal, row.value), row.state not in ACTIVE, row.number),
    )
    full = [row.gpu_time / MICRO for row in rows if row.state == "done" and row.gpu_time]
    saved = [max(0.0, median(full) - row.gpu_time / MICRO) for row in rows if row.state == "stopped" and full]
    bests = best_so_far(
        [row.value if row.state == "done" else None for row in ended],
        smallest=bool(objectives) and objectives[0].goal == "min",
    )
    places = [(place, best) for place, best in enumerate(bests, 1) if best is not None]
    return {
        "counts": Counter(row.state for row in rows),
        "notices": {row.notice for row in rows if row.notice},
        "ranked": [row.number for row in ranked],
        "table": [row.number for row in table],
        "by_end": [row.number for row in ended],
        "steps": [step for before, step in zip([(0, None), *places], places, strict=False) if before[1] != step[1]],
        "best": best_points(rows, objectives, repeat),
        "curves": [row.number for row in rows if row.has_curve],
        "running": {row.number for row in rows if row.is_running},
        "unsettled": {row.number for row in rows if not row.is_settled and (row.attempt or row.ended is not None)},
        "full": pytest.approx(median(full)) if full else None,
        "saved": pytest.approx(sum(saved)),
        "gpu": pytest.approx(sum(row.gpu_hours(NOW) for row in rows), abs=1e-5),
    }


def best_points(rows: Sequence[TrialRecord], objectives: Sequence[Objective], repeat: int) -> list[int]:
    points: dict[int, list[TrialRecord]] = {}
    for row in rows:
        if objectives and row.state == "done" and all(value is not None and not isnan(value) for value in row.values):
            points.setdefault(row.number // repeat, []).append(row)
    scores = {
        point: tuple(
            score(objective.goal, fmean(row.values[place] or 0.0 for row in repeats))
            for place, objective in enumerate(objectives)
        )
        for point, repeats in points.items()
    }
    order = sorted(scores, key=lambda point: scores[point])
    if len(objectives) < 2:
        return order
    return [point for point in order if not any(_beats(scores[other], scores[point]) for other in order)]


def _beats(scores: Sequence[float], others: Sequence[float]) -> bool:
    return scores != others and all(one <= other for one, other in zip(scores, others, strict=True))


def told(summary: TrialSummary) -> dict[str, object]:
    return {
        "counts": +summary.counts,
        "notices": set(+summary.notices),
        "ranked": summary.ranked.numbers,
        "table": summary.in_table,
        "by_end": summary.by_end.numbers,
        "steps": summary.steps,
        "best": summary.best(),
        "curves": summary.with_curve.numbers,
        "running": summary.running,
        "unsettled": summary.unsettled,
        "full": summary.full_hours,
        "saved": summary.saved_hours,
        "gpu": summary.gpu_hours(NOW),
    }


@given(histories(), some.sampled_from([0, 3, 1000]))
def test_changes_one_after_another(history: tuple[int, int, list[dict[int, TrialRecord | None]]], many: int) -> None:
    """After any changes a summary says what plain computation over all trials says, also from its saved form."""
    count, repeat, changes = history
    objectives = OBJECTIVES[:count]
    summary = TrialSummary(objectives, repeat)
    trials: dict[int, TrialRecord] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MANY", many)
        for change in changes:
            summary.put(change)
            trials = {number: row for number, row in {**trials, **change}.items() if row is not None}
            assert told(summary) == expected(trials, objectives, repeat)
            restored = TrialSummary(objectives, repeat)
            restored.restore(summary.saved())
            summary = restored


def test_what_early_stopping_saved() -> None:
    """It is compared with the median of the trials that ran in full; without one nothing was saved."""
    hours = {0: ("done", 10), 1: ("done", 12), 2: ("done", 50), 3: ("stopped", 2), 4: ("stopped", 20)}
    rows = {
        number: TrialRecord(number, number, state, 1, 1.0, 2.0, 1, 2.0, used * MICRO, (), None, "", "", False, True)
        for number, (state, used) in hours.items()
    }
    summary = TrialSummary((), 1)
    summary.put({number: rows[number] for number in (3, 4)})
    assert (summary.full_hours, summary.saved_hours) == (None, 0.0)
    summary.put({number: rows[number] for number in (0, 1, 2)})
    assert (summary.full_hours, summary.saved_hours, summary.gpu_hours(NOW)) == (12.0, 10.0, 94.0)


def test_an_order_tells_where_it_changed() -> None:
    """What was derived from the places before stays valid."""
    order = SortedNumbers(lambda number: number if number < 10 else None, [1, 3, 5])
    assert (order.add([7, 4, 12]), order.numbers) == (2, [1, 3, 4, 5, 7])
    assert (order.discard([5, 12]), order.numbers) == (3, [1, 3, 4, 7])
    assert (order.add([]), order.discard([])) == (4, 4)
