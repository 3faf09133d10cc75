"""`stoker sweep --estimate`: the cost of a sweep as lines or as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

from stoker.app.jobs.config import config_here
from stoker.app.jobs.local_time import clock_text
from stoker.cli.console import say
from stoker.cli.output_options import write_json
from stoker.core.units import duration_text
from stoker.features.sweep.estimate import Estimate, estimate_sweep
from stoker.features.sweep.submit import PreparedSweep
from stoker.store.paths import Paths
from stoker.store.writer import open_store


def show_estimate(prepared: PreparedSweep, paths: Paths, *, as_json: bool) -> int:
    with closing(open_store(paths)) as store:
        estimate = estimate_sweep(paths, config_here(say), prepared, store)
    if as_json:
        write_json(estimate)
    else:
        print("\n".join(_lines(estimate)))
    return 0


def _lines(estimate: Estimate) -> Iterator[str]:
    yield f"trials        {estimate.trials:,}"
    if estimate.kinds > 1:
        yield f"kinds         {estimate.kinds:,} that may differ in memory and time; {estimate.kinds_known:,} known"
    if estimate.seconds_per_trial is None:
        yield "run time      unknown"
        yield "GPU-hours     unknown"
    else:
        source = "the time limit" if estimate.from_limit else "earlier runs"
        yield f"run time      {duration_text(estimate.seconds_per_trial)} per trial, from {source}"
        yield f"GPU-hours     {estimate.gpu_hours:,.1f}"
    now = time.time()
    end = "unknown" if estimate.end is None else f"about {clock_text(estimate.end.timestamp(), now)}"
    yield f"expected end  {end}{f': {estimate.why_no_end}' if estimate.why_no_end else ''}"
