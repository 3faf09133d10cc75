"""Files of the queue that are damaged: database, write-ahead log and journals."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from support.faults.disks import expect_end
from support.faults.table import fault
from support.storm.background import QueueStorm
from support.storm.jobs import Work

PAGE = 4096
CUT = 3000
"""Bytes: less than a page, so that the last one is not whole and its transaction does not count."""


@fault(
    "damaged-database", "refused with a word and left as it is to the byte; jobs go on, and a copy put back is right"
)
def damaged_database(trial: QueueStorm) -> None:
    """The first page is overwritten, or most pages are cut off, while there is no engine; later all is put back."""
    trial.feed(10)
    trial.wait_running()
    trial.end_engine()
    files = [path for path in trial.killer.state.glob("queue.db*") if path.suffix != ".db-shm"]
    kept = {path: path.read_bytes() for path in files}
    for path in trial.killer.state.glob("queue.db-*"):
        path.unlink()
    whole = kept[trial.paths.database]
    damaged = trial.dice.choice([trial.dice.randbytes(PAGE) + whole[PAGE:], whole[: PAGE * 2 + 100]])
    trial.paths.database.write_bytes(damaged)
    for words in (["submit", "true"], ["status"], ["engine", "start"]):
        code, said = trial.typed(*words)
        if code == 0 or "Traceback" in said:
            trial.broken.append(f"`stoker {' '.join(words)}` ended with {code} on a damaged database: {said}")
    if trial.paths.database.read_bytes() != damaged:
        trial.broken.append("a damaged database was written to")
    for path in trial.killer.state.glob("queue.db-*"):
        path.unlink()
    for path, content in kept.items():
        path.write_bytes(content)
    trial.disruptions["database damaged"] += 1


@fault("cut-wal", "only the last transaction is gone, which the disk had promised to keep")
def cut_wal(trial: QueueStorm) -> None:
    """The machine loses the end of the write-ahead log, in which there is one submit."""
    trial.feed(10)
    trial.wait_running()
    trial.end_engine()
    wal, index = (Path(f"{trial.paths.database}-{kind}") for kind in ("wal", "shm"))
    with contextlib.closing(sqlite3.connect(trial.paths.database)) as reader:
        reader.execute("SELECT count(*) FROM jobs").fetchone()  # while it is open, nobody clears the log away
        before = wal.stat().st_size
        last = trial.submit([Work(trial.next_number)])
        database, log = trial.paths.database.read_bytes(), wal.read_bytes()
    if len(log) <= before:  # the log began again at its start, so that its end is old
        return
    index.unlink(missing_ok=True)
    trial.paths.database.write_bytes(database)
    wal.write_bytes(log[:-CUT])
    for job in last:
        del trial.request_log.submitted[job]
    trial.disruptions["log cut"] += 1


@fault(
    "damaged-journal",
    "an unreadable journal costs only the attempts in it; the others and new jobs go on",
    noisy=True,
    losses_known=False,
)
def damaged_journal(trial: QueueStorm) -> None:
    """A line that cannot be read is in the journal of a worker that lives or died."""
    trial.submit([Work(trial.next_number + at, seconds=1.0) for at in range(3)])
    trial.wait_running(2)
    trial.disruptions["engine"] += trial.at_work().kill()
    name, pid = trial.dice.choice(trial.killer.workers([]))
    if trial.dice.random() < 0.5:
        trial.killer.kill_one(name, pid, with_job=True)
    garbage = trial.dice.choice([b"GARBAGE \xff\xfe line\n", b"S\n", b"E x y z\n", b"\xff" * 200])
    with (trial.killer.state / "workers" / name / "journal").open("r+b") as journal:
        journal.seek(trial.dice.choice([0, 0, 10]))
        journal.write(garbage)
    trial.disruptions["journal damaged"] += 1
    expect_end(trial, trial.submit([Work(trial.next_number, gpus=0)]), "beside a damaged journal")
