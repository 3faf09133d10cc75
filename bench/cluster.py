"""Jobs through Stoker beside arrays of Slurm's own, on a real Slurm with three nodes of four fake GPUs.

Ratios compare two runs of the same round. Jobs of half a second come in whole waves of all slots.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from bars import Bar, bars_shown, table
from gaps import build_stamp, compiler, gaps_of, percentile
from machine import parser, say, workshop

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from features.slurm.cluster import NAME, ClusterQueue
from support.cli import Stoker
from support.slurm import Slurm, running_slurm

NO_OPS = 200
NO_OP_RUNS = 3
"""Runs of an array of no-ops in one round, of which the median counts: Slurm's own rate varies by half."""
NO_OPS_IN_PILOTS = 3000
WAVES = 17
"""Times that every slot runs a job of half a second."""
GPUS = 12
PACKED = 4 * GPUS
GAP_JOBS = 200
MARK = "echo >> marks"
LIMIT = 120.0
"""Seconds that a step may take."""
BARS = {
    "direct / array, no-ops": 0.9,
    "pilots / array, 0.5 s, one per GPU": 2.0,
    "pilots / array, 0.5 s, four per GPU": 6.0,
    "pilots / array, no-ops": 20.0,
}


def wait_for(condition: Callable[[], object], what: str, interval: float = 0.02) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {LIMIT:g} s for {what}")
        time.sleep(interval)


def wait_marks(marks: Path, count: int) -> None:
    wait_for(lambda: marks.exists() and marks.stat().st_size >= count, f"{count} jobs")
    marks.unlink()


# -- rates ---------------------------------------------------------------------------------------


def array_seconds(slurm: Slurm, home: Path, line: str, count: int) -> float:
    """Seconds that a plain array takes, until its last task has run."""
    began = time.perf_counter()
    options = [f"--array=0-{count - 1}", "--gres=gpu:1", "-o", "/dev/null"]
    slurm.run("sbatch", "--parsable", *options, "--wrap", f"{line}; echo >> {home / 'marks'}")
    wait_marks(home / "marks", count)
    return time.perf_counter() - began


def stoker_seconds(lab: ClusterQueue, line: str, count: int, *options: str) -> float:
    """Seconds from the submit until the last task has run."""
    began = time.perf_counter()
    lab.submit(*options, f"{line}; {MARK}", count=f"0-{count - 1}")
    wait_marks(lab.cwd / "marks", count)
    return time.perf_counter() - began


@contextlib.contextmanager
def queue(slurm: Slurm, *, sim: str = "", **settings: object) -> Iterator[ClusterQueue]:
    """A queue that asks Slurm as seldom as it does by default."""
    with tempfile.TemporaryDirectory(prefix="stoker-bench-", dir="/var/tmp") as home:
        lab = ClusterQueue(Path(home), slurm, sim=sim, **{"poll": "30s", **settings})
        with contextlib.closing(lab):
            yield lab
    slurm.wait_idle()


@contextlib.contextmanager
def pilots(slurm: Slurm, count: int = 3, sim: str = "", *options: str) -> Iterator[ClusterQueue]:
    """A queue whose pilots are up and have worked, each with the four GPUs of a node."""
    with queue(slurm, sim=sim, pilots="always", pilots_max=count) as lab:
        stoker_seconds(lab, "sleep 2", 8 * count, *options)
        running = ("squeue", "-h", "-t", "R", "-n", "stoker-pilot")
        wait_for(lambda: len(slurm.run(*running).splitlines()) == count, "pilots", 0.1)
        yield lab


def with_pilots(slurm: Slurm, line: str, count: int, sim: str, *options: str) -> float:
    with pilots(slurm, 3, sim, *options) as lab:
        return stoker_seconds(lab, line, count, *options)


def direct_seconds(slurm: Slurm) -> float:
    with queue(slurm) as lab:
        lab.wait(lab.submit("true"))
        return stoker_seconds(lab, "true", NO_OPS)


def no_op_rates(slurm: Slurm, home: Path) -> tuple[float, float]:
    """Jobs per second of an array, and of the same in direct mode."""
    array = NO_OPS / array_seconds(slurm, home, "true", NO_OPS)
    slurm.wait_idle()
    direct = NO_OPS / direct_seconds(slurm)
    say(f"no-ops: array {array:.1f}, direct {direct:.1f} jobs/s")
    return array, direct


def measure_rates(slurm: Slurm, home: Path) -> dict[str, float]:
    """Jobs per second of one round."""
    packed = ("4x24G", "--vram", "5G")
    runs: dict[str, tuple[int, Callable[[int], float]]] = {
        "pilots, no-ops": (NO_OPS_IN_PILOTS, lambda count: with_pilots(slurm, "true", count, "")),
        "array, 0.5 s": (WAVES * GPUS, lambda count: array_seconds(slurm, home, "sleep 0.5", count)),
        "pilots, 0.5 s, one per GPU": (WAVES * GPUS, lambda count: with_pilots(slurm, "sleep 0.5", count, "")),
        "pilots, 0.5 s, four per GPU": (WAVES * PACKED, lambda count: with_pilots(slurm, "sleep 0.5", count, *packed)),
    }
    arrays, direct = zip(*(no_op_rates(slurm, home) for _ in range(NO_OP_RUNS)), strict=True)
    rates = {"array, no-ops": median(arrays), "direct, no-ops": median(direct)}
    for name, (count, run) in runs.items():
        rates[name] = count / run(count)
        say(f"{name}: {rates[name]:.1f} jobs/s")
        slurm.wait_idle()
    return rates


def ratios_of(rates: dict[str, float]) -> dict[str, float]:
    return {
        "direct / array, no-ops": rates["direct, no-ops"] / rates["array, no-ops"],
        "pilots / array, 0.5 s, one per GPU": rates["pilots, 0.5 s, one per GPU"] / rates["array, 0.5 s"],
        "pilots / array, 0.5 s, four per GPU": rates["pilots, 0.5 s, four per GPU"] / rates["array, 0.5 s"],
        "pilots / array, no-ops": rates["pilots, no-ops"] / rates["array, no-ops"],
    }


def rate_bars(slurm: Slurm, home: Path, rounds: int) -> list[Bar]:
    found = [measure_rates(slurm, home) for _ in range(rounds)]
    rows = [
        [name, f"{median(each[name] for each in found):.1f}", _spread([each[name] for each in found])]
        for name in found[0]
    ]
    print(table(["what", "jobs/s", "rounds"], rows))
    ratios = [ratios_of(each) for each in found]
    most = median(2 * GPUS / each["array, 0.5 s"] for each in found)
    print(f"\nWithout any gap, one job of 0.5 s per GPU would be {most:.2f} x the array, four {4 * most:.2f} x.\n")
    return [Bar(name, median(each[name] for each in ratios), wanted) for name, wanted in BARS.items()]


def _spread(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


# -- gaps ----------------------------------------------------------------------------------------


def gap_bars(slurm: Slurm, home: Path) -> list[Bar]:
    """The gap on a slot of a pilot with four GPUs beside that of the local engine with four devices."""
    if (found := compiler()) is None:
        say("no C compiler, so no gaps")
        return []
    stamp = build_stamp(found, home)
    gaps = {"pilot": list[float](), "local engine": list[float]()}
    for _ in range(2):
        gaps["local engine"] += local_gaps(stamp, home)
        with pilots(slurm, 1) as lab:
            gaps["pilot"] += submit_stamps(lab, stamp, "-M", NAME)
    rows = [
        [name, f"{1000 * median(values):.1f}", f"{1000 * percentile(values, 0.99):.1f}", f"{len(values)}"]
        for name, values in gaps.items()
    ]
    print(table(["gap", "median ms", "p99 ms", "gaps"], rows), end="\n\n")
    ratio = median(gaps["pilot"]) / median(gaps["local engine"])
    return [Bar("gap median, pilot / local engine", ratio, 1.5, at_most=True)]


def local_gaps(stamp: Path, home: Path) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="stoker-bench-", dir=home) as place:
        lab = LocalQueue(Path(place))
        with contextlib.closing(lab):
            return submit_stamps(lab, stamp)


class LocalQueue(Stoker):
    """The queue of this machine with four declared devices."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.environment["STOKER_DEVICES"] = "0,1,2,3"


def submit_stamps(lab: Stoker, stamp: Path, *options: str) -> list[float]:
    line = f"exec {stamp} 0.2 stamps $CUDA_VISIBLE_DEVICES"
    done = lab("submit", *options, "--parsable", "-a", f"0-{GAP_JOBS - 1}", "--", "sh", "-c", line)
    assert done.code == 0, done.err
    stamps = lab.cwd / "stamps"
    wait_for(lambda: stamps.exists() and stamps.read_bytes().count(b"\n") >= GAP_JOBS, "stamps", 0.1)
    return gaps_of(stamps.read_text())


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--only", choices=("rates", "gaps"), help="leave the other one out")
    chosen = options.parse_args()
    bars: list[Bar] = []
    with workshop(chosen.directory) as home, running_slurm() as slurm:
        if chosen.only != "gaps":
            bars += rate_bars(slurm, home, chosen.rounds)
        if chosen.only != "rates":
            bars += gap_bars(slurm, home)
        print(bars_shown(bars))


if __name__ == "__main__":
    main()
