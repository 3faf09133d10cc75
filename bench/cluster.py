"""Jobs through Stoker beside arrays of Slurm's own, on a real Slurm with three nodes of four fake GPUs."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bars import Bar, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.cluster import ClusterQueue
from support.slurm import Slurm, running_slurm

COUNT = 200
MANY = 10_000
MARK = "echo >> marks"


def array_seconds(slurm: Slurm, home: Path, line: str, count: int) -> float:
    """Seconds that a plain array takes, until its last task has run."""
    marks = home / "marks"
    began = time.perf_counter()
    wrapped = f"{line}; {MARK}".replace("marks", str(marks))
    options = [f"--array=0-{count - 1}", "--gres=gpu:1", "-o", "/dev/null"]
    slurm.run("sbatch", "--parsable", *options, "--wrap", wrapped)
    wait_marks(marks, count)
    return time.perf_counter() - began


def wait_marks(marks: Path, count: int, limit: float = 300.0) -> None:
    deadline = time.monotonic() + limit
    while not marks.exists() or len(marks.read_bytes()) < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"only {len(marks.read_bytes()) if marks.exists() else 0} of {count} ran")
        time.sleep(0.02)
    marks.unlink()


def stoker_seconds(lab: ClusterQueue, line: str, count: int, *options: str) -> float:
    """Seconds from the submit until the last task has run."""
    began = time.perf_counter()
    lab.submit(*options, f"{line}; {MARK}", count=f"0-{count - 1}")
    wait_marks(lab.cwd / "marks", count)
    return time.perf_counter() - began


@contextlib.contextmanager
def queue(slurm: Slurm, *, sim: str = "", **settings: object) -> Iterator[ClusterQueue]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as home:
        lab = ClusterQueue(Path(home), slurm, sim=sim, **settings)
        with contextlib.closing(lab):
            yield lab


def with_pilots(slurm: Slurm, line: str, count: int, sim: str, *options: str) -> float:
    """The same in three pilots that are up already, each with the four GPUs of a node."""
    with queue(slurm, sim=sim, pilots="always", pilots_max=3) as lab:
        stoker_seconds(lab, "sleep 2", 24, *options)
        while len(slurm.run("squeue", "-h", "-t", "R", "-n", "stoker-pilot").splitlines()) < 3:
            time.sleep(0.1)
        return stoker_seconds(lab, line, count, *options)


def submit_many(slurm: Slurm) -> tuple[float, float, int]:
    """Seconds to submit many jobs, to recover a killed head that holds them all, and its questions by then."""
    with queue(slurm, queued_max=MANY, poll="30s", options=["--hold"]) as lab:
        began = time.perf_counter()
        lab.submit("true", count=f"0-{MANY - 1}")
        submitted = time.perf_counter() - began
        deadline = time.monotonic() + 120.0
        while len(slurm.run("squeue", "-h").splitlines()) < 11 and time.monotonic() < deadline:
            time.sleep(0.5)
        lab.kill_engine()
        began = time.perf_counter()
        lab("status", "--json")
        while f"{MANY} waiting in Slurm, which answered" not in lab("status", "--json").out:
            if time.perf_counter() - began > 60.0:
                break
        return submitted, time.perf_counter() - began, 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    rounds = parser.parse_args().rounds
    ratios: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}

    def note(name: str, seconds: float, count: int = COUNT) -> float:
        rates.setdefault(name, []).append(count / seconds)
        return seconds

    with running_slurm() as slurm, tempfile.TemporaryDirectory() as home:
        for _ in range(rounds):
            plain = note("sbatch --array, no-ops", array_seconds(slurm, Path(home), "true", COUNT))
            with queue(slurm) as lab:
                lab.submit("true")
                direct = note("stoker, direct, no-ops", stoker_seconds(lab, "true", COUNT))
            half = note("sbatch --array, 0.5 s", array_seconds(slurm, Path(home), "sleep 0.5", COUNT))
            alone = note("pilots, one per GPU, 0.5 s", with_pilots(slurm, "sleep 0.5", COUNT, ""))
            packed = note(
                "pilots, four per GPU, 0.5 s", with_pilots(slurm, "sleep 0.5", COUNT, "4x24G", "--vram", "5G")
            )
            no_ops = note("pilots, no-ops", with_pilots(slurm, "true", 1500, ""), 1500)
            ratios.setdefault("direct / array, no-ops", []).append(plain / direct)
            ratios.setdefault("pilots / array, 0.5 s, one per GPU", []).append(half / alone)
            ratios.setdefault("pilots / array, 0.5 s, four per GPU", []).append(half / packed)
            ratios.setdefault("pilots / array, no-ops", []).append((1500 / no_ops) / (COUNT / plain))
        submitted, recovered, _ = submit_many(slurm)
    print(
        table(
            ["what", "jobs/s", "rounds"],
            [[n, f"{median(v):.1f}", f"{min(v):.1f} to {max(v):.1f}"] for n, v in rates.items()],
        )
    )
    wanted = {"direct / array, no-ops": 0.9, "pilots / array, 0.5 s, one per GPU": 2.0}
    wanted |= {"pilots / array, 0.5 s, four per GPU": 6.0, "pilots / array, no-ops": 20.0}
    bars = [Bar(name, median(values), wanted[name]) for name, values in ratios.items()]
    bars.append(Bar(f"seconds to submit {MANY:,} jobs", submitted, 1.0, at_most=True))
    bars.append(Bar(f"seconds until a new head holds {MANY:,} jobs", recovered, 3.0, at_most=True))
    print(table(["bar", "reached", "wanted", ""], [bar.row for bar in bars]))


if __name__ == "__main__":
    main()
