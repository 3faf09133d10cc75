"""The virtual machine runs the jobs of a trace as the real one would."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from features.simulate.test_workload import some_rows
from stoker.core.errors import UsageError
from stoker.features.simulate.policies import (
    REFERENCES,
    RULES,
    SENTENCES,
    Rules,
    by_pairs,
    scaled_name,
    shortest_remaining_first,
)
from stoker.features.simulate.replay import ReplayOptions, machine_of, prepare, replay, virtual_devices
from stoker.features.simulate.report import figures
from stoker.features.simulate.workload import (
    BUILT_IN,
    ReplayOutcome,
    TraceJob,
    Work,
    draw,
    extract,
    paced,
    with_sessions,
)

GIB = 2**30
NO_PAIRS = by_pairs({})
ALONE = RULES["first-fit"]
PACKED = RULES["packing"]
JOBS = [TraceJob(float(number), 60.0, 1 + number % 2, memory=2**30, devices=("0", "1")) for number in range(30)]


def a_work(
    number: int,
    arrival: float = 0.0,
    seconds: float = 1000.0,
    *,
    gpus: int = 1,
    kind: str = "a",
    gib: float = 4,
    load: int = 20,
    swell: float = 1.0,
    session: bool = False,
) -> Work:
    """A job that takes 1000 seconds and little of everything by default."""
    return Work(number, arrival, seconds, gpus, kind, "model", int(gib * GIB), load, swell, session)


def played(*works: Work, gib: tuple[float, ...] = (40,), rules: Rules = PACKED) -> ReplayOutcome:
    """What comes of the jobs on GPUs of these sizes."""
    return replay(works, virtual_devices([int(size * GIB) for size in gib]), rules, NO_PAIRS)


def ends(outcome: ReplayOutcome) -> list[float | None]:
    """When each job ended, to the second."""
    return [None if life.end is None else round(life.end) for life in outcome.lives]


# -- the jobs to replay ------------------------------------------------------------------------------


def test_the_machine_is_the_one_that_the_jobs_had() -> None:
    """At least as wide as the widest job; the usual one where the trace names no GPU."""
    assert machine_of(JOBS) == "2x40G"
    assert machine_of([*JOBS, TraceJob(0.0, 1.0, 6, devices=("0",))]) == "6x40G"
    assert machine_of([TraceJob(0.0, 1.0)]) == "8x40G"


def test_what_cannot_run_is_left_out_and_told() -> None:
    """Jobs without a duration or a GPU, and jobs wider than the machine."""
    odd = [TraceJob(1.0, 0.0), TraceJob(2.0, 60.0, 0), TraceJob(3.0, 60.0, 9)]
    setup = prepare([*JOBS, *odd], ReplayOptions("a trace", "2x24G"))
    assert len(setup.works) == len(JOBS)
    assert [note.partition(": ")[2] for note in setup.notes] == [
        "no GPU needed", "no time taken", "more than 2 GPUs needed"
    ]  # fmt: skip
    with pytest.raises(UsageError, match="none of 3 jobs can run"):
        prepare(odd, ReplayOptions("a trace", "2x24G"))


def test_doubts_are_told() -> None:
    """Few jobs, and memory that was not measured."""
    setup = prepare([replace(job, memory=None) for job in JOBS[:5]], ReplayOptions("your history"))
    assert setup.notes == [
        "only 5 jobs: the results are not significant",
        "the memory of 5 jobs was not measured and is assumed",
    ]


# -- speed -------------------------------------------------------------------------------------------


def test_a_measured_pair_runs_as_it_was_measured() -> None:
    """Each member at its own speed; where there are three, or the pair is unknown, the law of interference speaks."""
    first, second = Work(1, 0, 1, 1, "a", "A", 1, 90), Work(2, 0, 1, 1, "b", "B", 1, 90)
    speeds = by_pairs({(scaled_name("A", 1), scaled_name("B", 1)): 0.25})
    assert speeds(first, [first, second]) == 0.25
    assert speeds(second, [first, second]) == pytest.approx(0.715)
    assert speeds(first, [first, second, second]) < 0.715


def test_light_jobs_hardly_slow_each_other_down() -> None:
    """Two that need a fifth of a GPU each take as long as one; two that need most of it take longer."""
    assert played(a_work(1), a_work(2, 2000), a_work(3, 2000)).lives[2].end == pytest.approx(3000, rel=0.02)
    heavy = played(*(a_work(number, at, load=60) for number, at in ((1, 0), (2, 2000), (3, 2000))))
    assert heavy.lives[2].end == pytest.approx(3000 + 1000 * (1 / 0.898 - 1), rel=0.02)


def test_a_job_is_as_fast_as_its_slowest_gpu() -> None:
    """A co-tenant on one of two GPUs counts."""
    learn = [a_work(1, kind="a", gpus=2, load=60), a_work(2, 3000, kind="b", load=60)]
    outcome = played(
        *learn, a_work(3, 6000, kind="a", gpus=2, load=60), a_work(4, 6000, kind="b", load=60), gib=(40, 40)
    )
    assert outcome.lives[2].end == pytest.approx(outcome.lives[3].end)
    assert outcome.lives[2].end == pytest.approx(7114, abs=2)


# -- decisions ---------------------------------------------------------------------------------------


def test_the_first_of_a_kind_runs_alone_and_the_next_are_packed() -> None:
    """What is not known is measured; what is known shares."""
    outcome = played(a_work(1), a_work(2), a_work(3))
    assert [life.start for life in outcome.lives] == [0.0, 1000.0, 1000.0]
    assert figures(outcome).packed == pytest.approx(0.5, abs=0.02)


def test_without_packing_jobs_take_whole_cards() -> None:
    """One after the other, each at full speed."""
    assert ends(played(a_work(1), a_work(2), a_work(3), rules=ALONE)) == [1000, 2000, 3000]


def test_busy_jobs_are_not_put_together() -> None:
    """The product's bound holds here as well."""
    assert [life.start for life in played(*(a_work(number, load=90) for number in (1, 2, 3))).lives] == [0, 1000, 2000]


@pytest.mark.parametrize(("policy", "passes"), [("fifo", False), ("first-fit", True), ("age", False)])
def test_whoever_may_pass_does(policy: str, passes: bool) -> None:
    """A narrow job behind a wide one passes where all may; not in strict order, nor where it might delay that one."""
    works = [a_work(1), a_work(2, 100, gpus=2, kind="b"), a_work(3, 200, kind="c")]
    _, wide, narrow = played(*works, gib=(40, 40), rules=RULES[policy]).lives
    assert (narrow.start == 200) == passes
    assert (wide.start == 1000) != passes


def test_the_shortest_go_first_once_they_are_known() -> None:
    """Two kinds have run; of two that wait, the older starts by age, and the short one where the shortest go first."""
    known = [a_work(1, 0, 4000, kind="long", load=90), a_work(2, 4000, 100, kind="short", load=90)]
    works = [*known, a_work(3, 4100, 5000), a_work(4, 4200, 4000, kind="long"), a_work(5, 4300, 100, kind="short")]
    by_age, by_length = (played(*works, rules=RULES[policy]).lives for policy in ("first-fit", "shortest"))
    assert [life.start for life in by_age[3:]] == [9100, 13100]
    assert [life.start for life in by_length[3:]] == [9200, 9100]


def test_an_oracle_needs_no_experience() -> None:
    """It knows how long the first of a kind takes."""
    works = [a_work(1, kind="a"), a_work(2, 10, 4000, kind="b"), a_work(3, 20, 2000, kind="c")]
    learnt, told = (played(*works, rules=replace(RULES["shortest"], exact=exact)).lives for exact in (False, True))
    assert [life.start for life in learnt] == [0, 1000, 5000]
    assert [life.start for life in told] == [0, 3000, 1000]


# -- memory ------------------------------------------------------------------------------------------


def test_a_job_that_runs_out_of_memory_runs_again_with_more() -> None:
    """It grew beside others beyond what was reserved; the second time it has room, and nothing is lost."""
    outcome = played(a_work(1, gib=6), a_work(2, 2000, gib=6), a_work(3, 2000, gib=6, swell=1.8), gib=(16,))
    told = figures(outcome)
    assert (told.out_of_memory, told.lost) == (1, 0)
    assert outcome.lives[2].shared_failures == 1
    assert (outcome.lives[2].end or 0) > (outcome.lives[1].end or 0)


def test_a_neighbour_that_took_too_much_costs_nobody_his_place() -> None:
    """The last job finds the memory gone, though it asked for enough; it runs again."""
    works = [a_work(1, gib=6), a_work(2, 2000, gib=6, swell=1.8), a_work(3, 2001, gib=6)]
    told = figures(played(*works, gib=(16,)))
    assert told.lost == 0
    assert told.out_of_memory >= 1


@settings(max_examples=25, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from(sorted(RULES)), st.sampled_from([(12, 12), (40, 40, 40), (24,)]))
def test_every_job_comes_to_its_end(seed: int, policy: str, sizes: tuple[float, ...]) -> None:
    """Whatever runs out of memory or overtakes: no job is lost, none ends too early, and GPU-time adds up."""
    random = Random(seed)
    rows = [
        TraceJob(
            random.uniform(0, 9000), random.lognormvariate(6, 1), random.randint(1, len(sizes)), random.choice("ab")
        )
        for _ in range(30)
    ]
    works = draw(extract(rows), BUILT_IN, int(min(sizes) * GIB), random)
    outcome = played(*works, gib=sizes, rules=RULES[policy])
    told = figures(outcome)
    assert told.lost == 0
    assert told.utilisation <= 1
    for work, life in zip(works, outcome.lives, strict=True):
        assert life.start is not None
        assert life.end is not None
        assert life.arrival <= life.start <= life.end - work.seconds + 1e-3
    held = sum(stay.end - stay.start for stay in outcome.stays)
    assert outcome.busy <= held + 1e-3


# -- references ---------------------------------------------------------------------------------------


def test_no_policy_comes_near_the_reference() -> None:
    """On a busy machine, all known and stopping for nothing is far better than any policy."""
    rows = paced(some_rows(120), 4, 1.0)
    works = draw(rows, BUILT_IN, 40 * GIB, Random(2))
    best = figures(shortest_remaining_first(works, 4, 2))
    for rules in RULES.values():
        assert figures(played(*works, gib=(40,) * 4, rules=rules)).completion_mean > best.completion_mean


def test_the_reference_stops_long_jobs_for_short_ones() -> None:
    """Two at once on one GPU; the shortest of what is left goes on."""
    works = [a_work(1, 0, 1000), a_work(2, 0, 1000), a_work(3, 100, 50)]
    assert ends(shortest_remaining_first(works, 1, 2)) == [1000, 1050, 150]


def test_every_policy_has_a_sentence() -> None:
    """Every policy of the table has a sentence."""
    assert set(SENTENCES) == {*RULES, *REFERENCES}


# -- jobs that give way ------------------------------------------------------------------------------

GIVING = replace(RULES["stoker"], preemptible=1.0, switch=60.0, exact=True)
LONG_FIRST = (a_work(1, 0.0, 40000.0), a_work(2, 10000.0, 600.0, kind="b"))


def test_a_long_job_gives_way_to_a_short_one_and_comes_back() -> None:
    """Saving takes its time, and so does the next start; nothing of the work is lost."""
    outcome = played(*LONG_FIRST, rules=GIVING)
    assert ends(outcome) == [40000 + 60 + 600 + 60, 10000 + 60 + 600]
    assert [life.preemptions for life in outcome.lives] == [1, 0]
    assert figures(outcome).most_switches == 1
    assert figures(outcome).switches == 0.5


def test_a_session_takes_the_gpu_of_a_job_that_gives_way() -> None:
    """It waits until the job has saved, though less work is left of that; figures of jobs leave sessions out."""
    works = a_work(1, 0.0, 11000.0), a_work(2, 10000.0, 3600.0, kind="session", session=True)
    outcome = played(*works, rules=GIVING)
    found = figures(outcome)
    assert (found.session_wait_median, found.session_wait_mean) == (60.0, 60.0)
    assert (found.jobs, found.completion_mean, found.wait_mean) == (1, 11000.0 + 60 + 3600 + 60, 0.0)
    assert figures(played(*works, rules=replace(GIVING, preemptible=0.0))).session_wait_median == 1000.0


def test_sessions_are_spread_over_the_days() -> None:
    """Beside the jobs, which stay as they are."""
    rows = [TraceJob(0.0, 60.0), TraceJob(2 * 86400.0, 60.0)]
    with_some = with_sessions(rows, 5.0, Random(1))
    assert [row for row in with_some if not row.session] == rows
    assert sum(row.session for row in with_some) == 10
    assert with_some == sorted(with_some, key=lambda row: row.arrival)
    assert with_sessions(rows, 0.0, Random(1)) == rows


def test_no_job_gives_way_where_that_costs_more_than_it_saves() -> None:
    """A costly switch, or a job that is nearly done."""
    assert ends(played(*LONG_FIRST, rules=replace(GIVING, switch=20000.0))) == [40000, 40600]
    assert ends(played(a_work(1, 0.0, 11000.0), LONG_FIRST[1], rules=GIVING)) == [11000, 11600]


@settings(max_examples=20, derandomize=True, deadline=None)
@given(st.integers(0, 2**20), st.sampled_from([0.25, 0.5, 1.0]), st.booleans())
def test_no_job_is_lost_when_jobs_give_way(seed: int, share: float, packing: bool) -> None:
    """Each does all its work, and gives way four times at most."""
    works = draw(some_rows(60), BUILT_IN, 40 * GIB, Random(seed))
    rules = replace(RULES["stoker"], preemptible=share, packing=packing)
    outcome = played(*works, gib=(40,) * 4, rules=rules)
    assert max(life.preemptions for life in outcome.lives) <= 4
    for life in outcome.lives:
        assert life.start is not None
        assert life.end is not None
        assert life.end - life.start >= life.seconds - 1.0
