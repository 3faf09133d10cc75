"""Keeps HyperQueue running and does what standard input says: `occupy`, `bulk N`, `lines FILE` or `single N PAUSE`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from hyperqueue import Job, LocalCluster  # type: ignore[import-not-found]
from hyperqueue.cluster import WorkerConfig  # type: ignore[import-not-found]

ANSWER = "answer "
"""The prefix of answers; the library prints other lines."""


def main(slots: int) -> None:
    """Serve until standard input ends."""
    with LocalCluster(worker_config=WorkerConfig(cores=slots)) as cluster:
        client = cluster.client()
        _answer("ready")
        for line in sys.stdin:
            match line.split():
                case ["occupy"]:
                    client.submit(_job(slots, "sleep", "100000"))
                    _answer("occupied")
                case ["bulk", count]:
                    started = time.perf_counter()
                    client.submit(_job(int(count), "true"))
                    _answer(time.perf_counter() - started)
                case ["lines", file]:
                    started = time.perf_counter()
                    _submit_lines(client, Path(file))
                    _answer(time.perf_counter() - started)
                case ["single", count, pause]:
                    _answer([_single(client, float(pause)) for _ in range(int(count))])


def _job(count: int, *words: str) -> Any:
    job = Job(Path.cwd())
    for _ in range(count):
        job.program(list(words))
    return job


def _submit_lines(client: Any, file: Path) -> None:
    job = Job(Path.cwd())
    with file.open() as lines:
        for line in lines:
            job.program(["/bin/sh", "-c", line.rstrip()])
    client.submit(job)


def _single(client: Any, pause: float) -> float:
    time.sleep(pause)
    started = time.perf_counter()
    client.submit(_job(1, "true"))
    return time.perf_counter() - started


def _answer(value: object) -> None:
    print(ANSWER + json.dumps(value), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
