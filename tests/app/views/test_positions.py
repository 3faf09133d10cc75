"""Which job goes before another one."""

from __future__ import annotations

from pathlib import Path

from stoker.app.views.facts import QueuePositions
from stoker.core.planner.order import QueuePosition
from stoker.store.paths import Paths
from stoker.store.status_file import EngineStatus
from stoker.store.writer import open_store
from support.build import a_job

NOW = 1000.0


def a_standing(job: int, gpus: int, seconds: float) -> QueuePosition:
    return QueuePosition(job, 1, 0, NOW - 1.0, seconds, True, gpus)


def test_jobs_with_and_without_gpus_do_not_compete(tmp_path: Path) -> None:
    """A job without GPUs at the head of the queue is no reason for a GPU job to wait."""
    order = (a_standing(9, 0, 15.0), a_standing(3, 1, 60.0), a_standing(1, 1, 7200.0))
    status = EngineStatus("queue", "", 1, "1", 0.0, NOW, 0, 0, (), {}, "", "", False, (), (), order=order)
    store = open_store(Paths(tmp_path))
    try:
        positions = QueuePositions(store, [status], NOW)
        assert positions.overtaken_by(a_job(3), "queue") is None
        first = positions.overtaken_by(a_job(1), "queue")
        assert first is not None
        assert first.job == 3
    finally:
        store.close()
