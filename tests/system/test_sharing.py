"""Several users and engines on one machine: each gets a fair part of it, and what is left over goes to the others."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import Struct

from stoker.app.jobs.context import current_user
from stoker.core.job import Ended
from stoker.core.lease import Claim
from stoker.core.planner.fairshare import YIELD_SECONDS
from stoker.core.planner.reasons import Leased, MaxUse, Occupied, Yields
from stoker.core.settings import Policy
from stoker.core.spec import Resources
from stoker.devices.detect import DeclaredDevices
from stoker.ledger import HeldLease, Ledger, prepare_ledger
from support.cli import PROGRAM, Stoker, stoker
from support.engines import Workshop
from support.simulated_machine import GIB, SimulatedMachine, simulated_machine
from support.users import User, made_users, reachable_directory, typed_by
from support.wait import PATIENCE_SECONDS, wait_until

__all__ = ["stoker"]


class Run(Struct, frozen=True):
    """One job that was run, from its start to its end."""

    start: float
    end: float


class Person:
    """A user who runs a list on GPUs that others use too."""

    def __init__(self, user: User, home: Path, ledger: Path) -> None:
        self.user = user
        self.home = home
        self.joblog = home / "joblog"
        self.said = home / "said"
        self._ledger = ledger
        home.mkdir()
        os.chown(home, user.uid, user.gid)

    @contextlib.contextmanager
    def running(self, gpus: str, seconds: float, count: int) -> Iterator[subprocess.Popen[bytes]]:
        """Run a job that takes so long over and over, until it is enough."""
        (self.home / "list").write_text(f"sleep {seconds}\n" * count)
        options = ["--sim", gpus, "--no-bar", "--joblog", str(self.joblog), "--results", str(self.home / "logs")]
        paths = {"STOKER_STATE": str(self.home / "state"), "STOKER_LEDGER": str(self._ledger), "HOME": str(self.home)}
        with self.said.open("wb") as said:
            process = subprocess.Popen(
                typed_by(self.user, PROGRAM, "run", *options, "list"),
                cwd=self.home,
                env={**os.environ, **paths},
                stdout=said,
                stderr=said,
            )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)

    def runs(self) -> list[Run]:
        """What was run so far."""
        if not self.joblog.exists():
            return []
        rows = [line.split("\t") for line in self.joblog.read_text().splitlines()[1:]]
        return [Run(float(row[2]), float(row[2]) + float(row[3])) for row in rows if len(row) > 3]


def served(runs: Sequence[Run], start: float, end: float) -> float:
    """GPU-seconds between two moments."""
    return sum(max(0.0, min(run.end, end) - max(run.start, start)) for run in runs)


def most_at_once(runs: Sequence[Run], start: float, end: float) -> int:
    """How many runs there were at the same moment, at most; the next run of a GPU does not count as such."""
    within = [Run(run.start + 0.02, run.end - 0.02) for run in runs if start < run.start < end]
    return max(sum(other.start <= run.start < other.end for other in within) for run in within)


def last_start(runs: Sequence[Run]) -> float:
    """When the last of the runs was started."""
    return max(run.start for run in runs)


@pytest.fixture
def common() -> Iterator[Ledger]:
    """A ledger that all users can reach."""
    with reachable_directory() as directory:
        yield Ledger(prepare_ledger(directory / "ledger"))


@pytest.fixture
def people(common: Ledger) -> Iterator[list[Person]]:
    """Three users of this machine who share a ledger."""
    with made_users(3) as users:
        yield [Person(user, common.path.parent / user.name, common.path) for user in users]


def test_three_users_get_equal_shares(people: list[Person], common: Ledger) -> None:
    """While all wait, each gets a third of the machine; the part of one who is done goes to the others."""
    demand = [(0.2, 600), (0.4, 300), (0.3, 70)]
    held = common.claim(tuple(Claim(f"sim:{number}") for number in range(4)), "until all wait", time.time())
    assert held
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(person.running("4x24G", *each)) for person, each in zip(people, demand, strict=True)
        ]
        wait_until(lambda: len(common.live().demands) == 3)
        common.release(held)
        began = time.time() + 0.5
        assert processes[2].wait(timeout=90) == 0, people[2].said.read_text()
        done = time.time()
        wait_until(lambda: all(sum(run.start > done for run in person.runs()) > 25 for person in people[:2]))
        end = time.time() - 0.5
    runs = [person.runs() for person in people]
    stopped = last_start(runs[2])
    shares = [served(each, began, stopped) for each in runs]
    assert all(share == pytest.approx(sum(shares) / 3, rel=0.15) for share in shares), shares
    assert last_start(runs[0]) > stopped < last_start(runs[1]), "the others were still waiting"

    after = done + 0.5
    rests = [served(each, after, end) for each in runs[:2]]
    assert rests[0] == pytest.approx(rests[1], rel=0.35), rests
    assert most_at_once([*runs[0], *runs[1]], after, end) >= 4, "no GPU is kept for the one who is done"


# -- engines of one user ------------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """The ledger that the engines share."""
    return Ledger(prepare_ledger(tmp_path / "ledger"))


@pytest.fixture
def shops(tmp_path: Path, ledger: Ledger) -> Iterator[list[Workshop]]:
    """Two engines on the same two GPUs."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(a_shop(tmp_path, name, ledger)) for name in ("first", "second")]


def a_shop(directory: Path, name: str, ledger: Ledger, policy: Policy | None = None) -> Workshop:
    """An engine with a queue of its own, on a ledger that it shares."""
    (directory / name).mkdir()
    devices = DeclaredDevices(["0", "1"])
    return Workshop(directory / name, devices, policy or Policy(), name, ledger.path)


def taken(ledger: Ledger) -> HeldLease:
    """A lease on both GPUs."""
    held = ledger.claim((Claim("name:0"), Claim("name:1")), "work", time.time())
    assert held
    return held


def waits(shop: Workshop, ledger: Ledger, demands: int) -> None:
    """Let an engine turn until the ledger shows so many wants."""
    shop.work_until(lambda: len(ledger.live().demands) == demands)


def test_waiting_is_told_and_taken_back(shops: list[Workshop], ledger: Ledger) -> None:
    """Who waits for another's devices says so in the ledger, and no longer when he has got them."""
    held = taken(ledger)
    (job,) = shops[0].submit("true")
    waits(shops[0], ledger, 1)
    (demand,) = ledger.live().demands.values()
    assert (demand.gpus, demand.claims, demand.pid) == (1, ("name:0", "name:1"), os.getpid())
    assert isinstance(shops[0].engine.reason(shops[0].job(job)), Leased)
    ledger.release(held)
    shops[0].finish()
    assert ledger.live().demands == {}


def test_want_ends_with_the_wish(shops: list[Workshop], ledger: Ledger) -> None:
    """A job that is cancelled while it waits for others is not waited for any more."""
    held = taken(ledger)
    (job,) = shops[0].submit("true")
    waits(shops[0], ledger, 1)
    shops[0].engine.cancel(job, None, "not needed")
    waits(shops[0], ledger, 0)
    ledger.release(held)


def test_alone_nobody_is_told(shops: list[Workshop], ledger: Ledger) -> None:
    """An engine that is alone on the machine writes no want, however much waits."""
    seen = set()
    shops[0].on_event = lambda _: seen.add(len(ledger.live().demands))
    shops[0].submit(*["true"] * 20)
    shops[0].finish()
    assert seen == {0}


def test_one_user_is_served_first_come_first_served(shops: list[Workshop], ledger: Ledger) -> None:
    """Of two engines of one user, the one that has waited longer gets what becomes free."""
    first, second = shops
    held = taken(ledger)
    first.submit("true", "true")
    waits(first, ledger, 1)
    (late,) = second.submit("true")
    waits(second, ledger, 2)
    ledger.release(held)
    second.work_until(lambda: second.engine.reason(second.job(late)) == Yields("", "waited longer"))
    assert second.job_events == []
    first.finish()
    second.finish()


def test_stuck_engine_is_passed_over(shops: list[Workshop], ledger: Ledger) -> None:
    """An engine that goes first but does not move holds others up for some seconds, and not for ever."""
    stuck, second = shops
    held = taken(ledger)
    stuck.submit("true", "true")
    waits(stuck, ledger, 1)
    second.submit("true")
    waits(second, ledger, 2)
    ledger.release(held)
    freed = time.monotonic()
    second.finish()
    assert time.monotonic() - freed > YIELD_SECONDS - 1.0


def test_narrow_wish_leaves_the_rest(shops: list[Workshop], ledger: Ledger) -> None:
    """One that goes first and wants one GPU keeps nobody from the other."""
    first, second = shops
    held = taken(ledger)
    first.submit("true")
    waits(first, ledger, 1)
    (job_id,) = second.submit("true")
    waits(second, ledger, 2)
    ledger.release(held)
    reasons = []

    def over() -> bool:
        reasons.append(second.engine.reason(second.job(job_id)))
        return second.engine.idle

    second.work_until(over)
    assert not any(isinstance(reason, Yields) for reason in reasons)


def test_limit_counts_all_engines_of_the_user(tmp_path: Path, ledger: Ledger) -> None:
    """With max_use a second engine leaves free GPUs alone while the first one has as many as the user wants."""
    modest = Policy(max_use=1)
    with a_shop(tmp_path, "first", ledger, modest) as first, a_shop(tmp_path, "second", ledger, modest) as second:
        first.submit("sleep 60")
        first.work_until(lambda: len(first.engine.active_jobs) == 1)
        (job,) = second.submit("true")
        second.work_until(lambda: second.engine.reason(second.job(job)) == MaxUse(1))
        assert second.engine.active_jobs == []
        first.engine.stop(0.0, "enough")
        first.work_until(lambda: first.engine.at_rest)
        second.finish()


@pytest.mark.parametrize("limit", [("--max-use", "1"), ("--min-free", "2")])
def test_run_keeps_within_the_limit(stoker: Stoker, limit: tuple[str, str]) -> None:
    """With either limit a list runs on one of three GPUs, one job after the other."""
    (stoker.cwd / "list").write_text("sleep 0.1\n" * 4)
    outcome = stoker("run", "--sim", "3x24G", *limit, "--joblog", "log", "list")
    assert outcome.code == 0, outcome.err
    rows = [line.split("\t") for line in (stoker.cwd / "log").read_text().splitlines()[1:]]
    runs = sorted((float(row[2]), float(row[3])) for row in rows)
    assert len(runs) == 4
    assert all(later >= start + length - 0.01 for (start, length), (later, _) in pairwise(runs))


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--max-use", "0"), 2, "0 is not in the range x>=1"),
        (("--min-free", "-1"), 2, "-1 is not in the range x>=0"),
        (("--max-use", "1", "-G", "2"), 5, "needs 2 GPUs; --max-use allows 1"),
        (("--min-free", "2", "-G", "2"), 5, "needs 2 of 3 GPUs; --min-free keeps 2 free"),
    ],
)
def test_run_refuses_what_the_limits_never_allow(
    stoker: Stoker, options: tuple[str, ...], code: int, words: str
) -> None:
    """A limit that lets nothing start is said before anything has started."""
    outcome = stoker("run", "--sim", "3x24G", *options, "--", "true")
    assert (outcome.code, words in outcome.err) == (code, True), outcome.err


# -- strangers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SimulatedMachine]:
    """One GPU of 8G, of which a process that nobody announced holds 6G."""
    with simulated_machine("1x8G", tmp_path / "simulator") as made:
        made.start("--memory", "6G", "--seconds", "600")
        made.wait_used(6 * GIB)
        yield made


def test_strangers_are_kept_off(tmp_path: Path, machine: SimulatedMachine) -> None:
    """A job waits while somebody's process is on the GPU, and the reason names him; when he leaves it starts."""
    with Workshop(tmp_path, machine.devices) as shop:
        (job,) = shop.submit("true", resources=Resources(memory=GIB))
        shop.work_until(lambda: shop.engine.reason(shop.job(job)) == Occupied("0", current_user(), 6 * GIB))
        machine.jobs[0].kill()
        shop.finish()


def test_strangers_memory_is_counted(tmp_path: Path, machine: SimulatedMachine) -> None:
    """Where that is wished, what fits beside a stranger runs there; what does not is told whose memory it is."""
    with Workshop(tmp_path, machine.devices, Policy(strangers="count")) as shop:
        small, large = shop.submit("true", resources=Resources(memory=GIB)) + shop.submit(
            "true", resources=Resources(memory=4 * GIB)
        )
        shop.work_until(lambda: isinstance(shop.job(small).state, Ended))
        shop.work_until(lambda: shop.engine.reason(shop.job(large)) == Occupied("0", current_user(), 6 * GIB))
        machine.jobs[0].kill()
        shop.finish()


def test_the_jobs_of_another_user_are_told(people: list[Person], common: Ledger) -> None:
    """By the process that runs, not by the engine; and how many wait, also if they could not start."""
    with people[0].running("1x24G", PATIENCE_SECONDS, 3):
        wait_until(lambda: any(lease.process for lease in common.live().leases.values()))
        (lease,) = common.live().leases.values()
        assert lease.process != lease.pid
        # The shell, or the program that it becomes; in between the kernel shows no words.
        wait_until(lambda: b"sleep" in Path(f"/proc/{lease.process}/cmdline").read_bytes())
        wait_until(lambda: common.live().waiting == {people[0].user.name: 2})
