"""Runs a list with HyperQueue, its server and worker as a library, and prints the seconds from submit to last end."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from hyperqueue import Job, LocalCluster  # type: ignore[import-not-found]
from hyperqueue.cluster import WorkerConfig  # type: ignore[import-not-found]


def main(slots: int, commands: list[str], written: Path) -> float:
    """Seconds until the last command wrote; waiting for the job itself is only precise to a second."""
    with LocalCluster(worker_config=WorkerConfig(cores=slots)) as cluster:
        client = cluster.client()
        job = Job(Path.cwd())
        for command in commands:
            job.program(["/bin/sh", "-c", command])
        submitted = time.time()
        client.wait_for_jobs([client.submit(job)])
    return written.stat().st_mtime - submitted


if __name__ == "__main__":
    print(main(int(sys.argv[1]), Path(sys.argv[2]).read_text().splitlines(), Path("marks")))
