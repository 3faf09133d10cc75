"""The work itself: memory along its curve, progress as fast as the neighbours let it go."""

from __future__ import annotations

import time

from stoker.core.units import size_text
from stoker.simjob.curve import memory_at
from stoker.simjob.gpus import Gpus
from stoker.simjob.options import Options
from stoker.simjob.progress import Bar, Steps

_TICK_SECONDS = 0.05


def train(options: Options, gpus: Gpus) -> None:
    """Hold memory along the curve and show the progress, until the work is done or something kills it."""
    where = ",".join(map(str, gpus.visible)) or "none"
    print(f"{options.name}: {size_text(options.memory.level)} on GPU {where}", flush=True)
    progress = (Bar if options.tqdm else Steps)(options.steps)
    began = time.monotonic()
    worked, elapsed = 0.0, 0.0
    while True:
        gpus.check()
        gpus.hold(memory_at(options.memory, worked))
        progress.show(_part(worked, options.seconds), elapsed)
        if options.fault is not None and worked >= min(options.fault, options.seconds):
            gpus.fault()
        if worked >= options.seconds:
            return
        speed = gpus.speed()
        time.sleep(min(_TICK_SECONDS, (options.seconds - worked) / speed))
        passed = time.monotonic() - began - elapsed
        gpus.pass_time(passed)
        worked, elapsed = worked + passed * speed, elapsed + passed


def _part(worked: float, seconds: float) -> float:
    return min(1.0, worked / seconds) if seconds > 0 else 1.0
