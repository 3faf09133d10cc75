"""Measure what a look at a sweep with many results costs: its page in a server, and `stoker sweep status`."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import reduce
from pathlib import Path

from bars import Bar, bars_shown, table
from machine import exit_code, parser, say, workshop
from stoker.core.job import Assigned, Event, Exited, Started, advance
from stoker.core.spec import Command, JobSpec
from stoker.core.text import to_json
from stoker.features.sweep.api import sweep_page
from stoker.features.sweep.model.grammar import parse_space
from stoker.features.sweep.model.record import SweepSpec, trial_jobs
from stoker.features.sweep.store import StoredSweep, add_sweep, set_trial_result
from stoker.features.sweep.summary import SweepSummaries
from stoker.features.sweep.view import opened_sweep, read_sweeps
from stoker.store.engine_lock import QUEUE
from stoker.store.paths import Paths, host_name
from stoker.store.schema import JOB, Change
from stoker.store.writer import Store

STOKER = str(Path(sys.executable).parent / "stoker")
SPACE = ("lr=1e-5..1e-1:log", "depth=2,4,8,16", "opt=adam,sgd,lion", "wd=0.0..0.1")
STEPS = 10
MORE = (1, 10, 100)
PART = 1000
CPU_MILLISECONDS = 300.0


class Sweep:
    """A sweep whose trials end as this program likes."""

    def __init__(self, store: Store, trials: int) -> None:
        self._store = store
        self._ended = 0
        self._chance = random.Random(3)
        spec = SweepSpec(
            space=parse_space(SPACE),
            command=Command(("train", "{lr}")),
            method="random",
            count=trials,
            seed=1,
            objectives=("loss:min",),
        )
        now = time.time()
        with store.writing():
            self._batch = store.add_batch("sweep", now)
            self._ids = store.add_jobs(self._batch, QUEUE, list(trial_jobs(spec, JobSpec())), now, array=True)
            add_sweep(store, StoredSweep(self._ids[0], self._batch, now, None, JobSpec(), spec))
        self.id = str(self._ids[0])

    def end(self, count: int) -> None:
        """Let some trials end, each with a result."""
        for first in range(self._ended, self._ended + count, PART):
            self._end(range(first, min(first + PART, self._ended + count)))
        self._ended += count

    def _end(self, numbers: range) -> None:
        with self._store.writing():
            rows = self._store.rows(f"{JOB} id BETWEEN ? AND ?", self._ids[numbers[0]], self._ids[numbers[-1]])
            changes = []
            for number, job in zip(numbers, map(self._store.job_of, rows), strict=True):
                began = 1e9 + 5 * number
                ended = Exited(1, 0, 0, began + self._chance.uniform(10, 60))
                events: list[Event] = [Assigned(f"w{job.id} - 0", ("0",), "", began), Started(1, began), ended]
                changes.append(Change(reduce(advance, events, job), [(1, event) for event in events]))
                loss = self._chance.gauss(1, 0.3)
                curve = [(step, loss + 1 / step - 1 / STEPS) for step in range(1, STEPS + 1)]
                result = {"attempt": 1, "curves": {"loss": curve}, "values": {"loss": loss}, "over": True}
                set_trial_result(self._store, self._batch, number, result)
            self._store.record(changes)


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--results", type=int, nargs="+", default=[1000, 10_000, 100_000], help="default %(default)s")
    given = options.parse_args()
    with workshop(given.directory) as directory:
        columns = {count: _measured(directory / str(count), count) for count in given.results}
    shown = [[what, *(f"{column[what]:,.0f}" for column in columns.values())] for what in columns[given.results[0]]]
    print("\nms of CPU\n" + table(["", *(f"{count:,} results" for count in columns)], shown))
    largest = columns[max(given.results)]
    bars = [
        Bar(f"{what}, ms", largest[what], CPU_MILLISECONDS, at_most=True)
        for what in largest
        if what.startswith("page") and "ever" not in what
    ]
    print("\nbars\n" + bars_shown(bars))


def _measured(directory: Path, count: int) -> dict[str, float]:
    say(f"{count:,} results ...")
    state = directory / host_name()
    state.mkdir(mode=0o700, parents=True)
    paths = Paths(state)
    with closing(Store(paths.database, durable=False)) as store:
        sweep = Sweep(store, count + sum(MORE))
        sweep.end(count)
        server = SweepSummaries(paths)
        found = {
            "page, first look ever": _cpu(lambda: _page(paths, sweep.id, server)),
            "page, again": _cpu(lambda: _page(paths, sweep.id, server)),
        }
        for more in MORE:
            sweep.end(more)
            found[f"page, after {more} more"] = _cpu(lambda: _page(paths, sweep.id, server))
        found["page, of a new server"] = _cpu(lambda: _page(paths, sweep.id, SweepSummaries(paths)))
        found["list of sweeps"] = _cpu(lambda: to_json(read_sweeps(paths, server)))
    found["an empty Python"] = _cpu_of(directory, [sys.executable, "-c", ""])
    for words in (["status"], ["status", "--json"], ["best"], ["table", "-n", "20"], ["plot"]):
        found[f"stoker sweep {' '.join(words)}"] = _cpu_of(directory, [STOKER, "sweep", *words])
    return found


def _page(paths: Paths, sweep: str, summaries: SweepSummaries) -> None:
    with opened_sweep(paths, sweep, summaries) as now:
        page = sweep_page(now, 1)
    to_json(page)


def _cpu(what: Callable[[], object]) -> float:
    """Milliseconds of CPU in this process."""
    began = time.process_time()
    what()
    return 1e3 * (time.process_time() - began)


def _cpu_of(directory: Path, words: Sequence[str]) -> float:
    """Milliseconds of CPU of a command."""
    before = os.times()
    environment = {**os.environ, "STOKER_STATE": str(directory)}
    subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return 1e3 * (after.children_user + after.children_system - before.children_user - before.children_system)


if __name__ == "__main__":
    sys.exit(exit_code(main))
