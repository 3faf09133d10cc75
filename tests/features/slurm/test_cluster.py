"""Judging attempts on a cluster, bundling jobs, and reasons in words."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.core.job import Job, Waiting
from stoker.core.planner.queue import WaitingJobs
from stoker.core.planner.reasons import AtLimit, CapFull
from stoker.core.settings import ClusterSettings
from stoker.core.spec import Command, JobSpec, Resources
from stoker.features.slurm.cluster import (
    ENDED_STATES,
    SETTLE_SECONDS,
    START_SECONDS,
    Answers,
    Caps,
    JournalFact,
    SlurmFact,
    SlurmRoom,
    SubmitLimit,
    Verdict,
    bundles,
    count_answer,
    first_node,
    importance,
    is_ghost,
    judge,
    loss_text,
    minutes_of,
    offer_in_order,
    reason_text,
    sbatch_shape,
    sbatch_words,
)

ALIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "A_STATE_OF_A_LATER_RELEASE")
NOTHING, STARTED, ENDED = JournalFact(), JournalFact(started=True), JournalFact(started=True, ended=True)


def settled(state: str | None) -> Answers:
    """Slurm says this for long enough."""
    return Answers(SlurmFact(state) if state else None, 2, SETTLE_SECONDS)


@pytest.mark.parametrize("state", [None, *ALIVE, *sorted(ENDED_STATES)])
def test_the_end_in_the_journal_counts_whatever_slurm_says(state: str | None) -> None:
    """Slurm may have forgotten the task, or take it for running."""
    assert judge(ENDED, settled(state)) == "ended"


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        *((state, "cut off") for state in (None, *sorted(ENDED_STATES))),
        *((state, "runs") for state in ALIVE),
    ],
)
def test_an_attempt_that_started_and_left_no_end(state: str | None, verdict: Verdict) -> None:
    """Only Slurm knows what ended it."""
    assert judge(STARTED, settled(state)) == verdict


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ("CANCELLED", "called off"),
        ("FAILED", "take back"),
        ("COMPLETED", "take back"),
        (None, "take back"),
        *((state, "waits") for state in ALIVE),
    ],
)
def test_an_attempt_without_a_start(state: str | None, verdict: Verdict) -> None:
    """Its claim decides whether it began."""
    assert judge(NOTHING, settled(state)) == verdict


@pytest.mark.parametrize("answers", [Answers(), Answers(None, 1), Answers(None, 2, 1.0), Answers(None, 1, 60.0)])
def test_one_answer_or_a_moment_decides_nothing(answers: Answers) -> None:
    """A shared directory shows what a node wrote with a delay, and Slurm may forget a task for a moment."""
    assert judge(STARTED, answers) == "runs"
    assert judge(NOTHING, answers) == "waits"


def test_a_task_that_slurm_gave_up_is_taken_back_at_once() -> None:
    """Making its claim shows beyond doubt whether it began."""
    assert judge(NOTHING, Answers(SlurmFact("FAILED"), 1)) == "take back"
    assert judge(NOTHING, Answers(SlurmFact("CANCELLED"), 1)) == "called off"
    refused = SlurmFact("CANCELLED", node="n1")  # by a node that would not launch it
    assert judge(NOTHING, Answers(refused, 1)) == "take back"
    assert judge(STARTED, Answers(SlurmFact("FAILED"), 1)) == "runs"


def test_a_task_that_was_never_launched_is_taken_back() -> None:
    """A node may refuse it after a crash of the controller, which calls it running from then on."""
    for state, verdict in (("RUNNING", "take back"), ("COMPLETING", "take back"), ("PENDING", "waits")):
        assert judge(NOTHING, Answers(SlurmFact(state), 3, START_SECONDS)) == verdict
        assert judge(STARTED, Answers(SlurmFact(state), 3, START_SECONDS)) == "runs"


def test_answers_count_while_they_agree() -> None:
    """A task that is known again begins anew."""
    over, runs = SlurmFact("FAILED"), SlurmFact("RUNNING")
    answers = Answers()
    for fact, times in ((runs, 1), (runs, 2), (None, 1), (None, 2), (runs, 1), (over, 1), (SlurmFact("TIMEOUT"), 2)):
        answers = count_answer(answers, fact, 3.0)
        assert answers.times == times
    assert answers.seconds == 3.0


def test_a_task_that_is_over_stays_so_when_slurm_forgets_it() -> None:
    """Else its end would count as unknown after some minutes, while its node has still to be checked."""
    over = SlurmFact("FAILED", node="n1")
    assert count_answer(count_answer(Answers(), over, 0.0), None, 300.0) == Answers(over, 2, 300.0)
    assert count_answer(Answers(over, 2, 300.0), SlurmFact("RUNNING"), 1.0) == Answers(SlurmFact("RUNNING"), 1)


def test_an_attempt_that_its_node_shows_as_gone_is_lost_though_slurm_goes_on() -> None:
    """Slurm may not notice for minutes that its own process of a task was killed."""
    gone = JournalFact(started=True, gone=True)
    running = SlurmFact("RUNNING")
    assert judge(gone, Answers(running, 2, SETTLE_SECONDS)) == "runs"
    assert judge(gone, Answers(running, 3, SETTLE_SECONDS)) == "cut off"
    assert judge(gone, Answers(SlurmFact("COMPLETING"), 9, 99.0)) == "runs"
    assert judge(gone, Answers(SlurmFact("PREEMPTED"), 2, SETTLE_SECONDS)) == "cut off"


@pytest.mark.parametrize(
    ("nodes", "first"), [("n1", "n1"), ("n[1-3,7]", "n1"), ("a[07,09]", "a07"), ("a1,b2", "a1"), ("", "")]
)
def test_the_first_node(nodes: str, first: str) -> None:
    """There the batch script runs."""
    assert first_node(nodes) == first


def test_a_ghost_is_a_task_that_goes_on_after_its_attempt() -> None:
    """One that is completing leaves by itself."""
    assert is_ghost(Answers(SlurmFact("RUNNING"), 3, SETTLE_SECONDS))
    assert is_ghost(Answers(SlurmFact("PENDING"), 3, SETTLE_SECONDS))
    for state in ("COMPLETING", *ENDED_STATES):
        assert not is_ghost(Answers(SlurmFact(state), 9, 99.0))
    assert not is_ghost(Answers(SlurmFact("RUNNING"), 2, 99.0))


def test_a_loss_says_what_slurm_knows() -> None:
    """The user sees why the job ran again."""
    assert "vanished" in loss_text(Answers())
    assert "node" in loss_text(settled("NODE_FAIL"))
    assert "JobLaunchFailure" in loss_text(Answers(SlurmFact("FAILED", "JobLaunchFailure")))


# -- any order of facts -------------------------------------------------------------------------------


class World:
    """One job whose attempts a node runs, a Slurm that says anything, and a head that judges."""

    def __init__(self) -> None:
        self.attempt = 1
        self.claims: dict[int, str] = {}
        self.journals: dict[int, JournalFact] = {}
        self.runs: list[int] = []
        self.results: list[str] = []
        self.answers = Answers()

    def node(self, attempt: int) -> None:
        """Slurm starts a task, perhaps once more."""
        if attempt <= self.attempt and attempt not in self.claims:
            self.claims[attempt] = "node"
            self.runs.append(attempt)
            self.journals[attempt] = STARTED

    def end(self, attempt: int) -> None:
        if self.journals.get(attempt) == STARTED:
            self.journals[attempt] = ENDED

    def answer(self, fact: SlurmFact | None, seconds: float) -> None:
        self.answers = count_answer(self.answers, fact, seconds)

    def head(self) -> None:
        """Read the journal, judge, and act."""
        if self.results:
            return
        verdict = judge(self.journals.get(self.attempt, NOTHING), self.answers)
        if verdict in ("take back", "called off"):
            taken = self.claims.setdefault(self.attempt, "head") == "head"
            verdict = verdict if taken else "cut off"
        if verdict in ("waits", "runs"):
            return
        if verdict in ("ended", "called off"):
            self.results.append(verdict)
        else:
            self.attempt, self.answers = self.attempt + 1, Answers()


FACTS = st.one_of(st.none(), st.sampled_from([*ALIVE, *sorted(ENDED_STATES)]).map(SlurmFact))
STEPS = st.one_of(
    st.tuples(st.just("node"), st.integers(1, 6)),
    st.tuples(st.just("end"), st.integers(1, 6)),
    st.tuples(st.just("answer"), FACTS, st.sampled_from([0.1, 3.0, 30.0])),
    st.tuples(st.just("head")),
)


@settings(max_examples=400)
@given(st.lists(STEPS, max_size=60))
def test_no_order_of_facts_runs_an_attempt_twice(steps: Sequence[tuple[object, ...]]) -> None:
    """Whatever Slurm says, an attempt runs at most once, the job ends once, and a real end is always found."""
    world = World()
    for name, *arguments in steps:
        getattr(world, str(name))(*arguments)
    assert len(set(world.runs)) == len(world.runs)
    assert len(world.results) <= 1
    for attempt, claimant in world.claims.items():
        assert claimant == "node" or attempt not in world.runs
    if not world.results:  # the job is never forgotten: let its attempt run and end
        world.node(world.attempt)
        world.end(world.attempt)
        world.head()
        assert world.results == ["ended"] or world.claims[world.attempt] == "head"


# -- bundles ------------------------------------------------------------------------------------------


def job(number: int, array: int = 0, **spec: object) -> Job:
    return Job(number, 1, Command(("true",)), JobSpec(**spec), Waiting(0.0), 0.0, array=array)  # type: ignore[arg-type]


def ids(found: object) -> list[list[int]]:
    return [[each.id for each in bundle.jobs] for bundle in found]  # type: ignore[attr-defined]


def handed_over(waiting: Sequence[Job], room: SlurmRoom, most: int) -> list[list[int]]:
    """Ids of the jobs that are handed over while there is room, by bundle."""
    taken: list[Job] = []

    def offer(one: Job) -> bool:
        taken.extend([one] if (took := room.take(one)) else [])
        return took

    groups = WaitingJobs()
    for one in waiting:
        groups.add(one)
    offer_in_order(groups.groups(), offer)
    return ids(bundles(taken, most))


def test_jobs_alike_make_one_bundle_and_no_bundle_is_too_large() -> None:
    """An array above MaxArraySize becomes several."""
    assert ids(bundles([job(number) for number in range(7)], 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert ids(bundles([job(1), job(2, resources=Resources(gpus=2)), job(3)], 10)) == [[1, 3], [2]]


def test_the_more_important_jobs_go_first_while_there_is_room() -> None:
    """Only so many wait in Slurm that priorities and edits still mean something."""
    waiting = [job(1), job(2), job(3, priority=5)]
    assert handed_over(waiting, SlurmRoom(2, 10, lambda _: 0), 10) == [[3, 1]]
    assert handed_over(waiting, SlurmRoom(0, 10, lambda _: 0), 10) == []


def test_a_limited_array_has_one_bundle_at_a_time() -> None:
    """Slurm keeps the limit within a bundle; beside one that is active only so many follow as may run."""
    tasks = [job(number, 1, at_once=3) for number in range(1, 9)]
    assert handed_over(tasks, SlurmRoom(100, 5, lambda _: 0), 5) == [[1, 2, 3, 4, 5]]
    assert "--array=0-4%3" in sbatch_words(sbatch_shape(tasks[0]), 5, ClusterSettings())
    assert handed_over(tasks[5:], SlurmRoom(100, 5, lambda _: 5), 5) == []
    assert handed_over(tasks[5:], SlurmRoom(100, 5, lambda _: 2), 5) == [[6]]
    others = [job(20), job(21)]
    assert handed_over([*tasks, *others], SlurmRoom(2, 5, lambda _: 5), 5) == [[20, 21]]  # they take no room


def test_limits_count_what_is_active_and_what_is_handed_over() -> None:
    """-j and groups in both modes; that of an array only where Slurm does not keep it."""
    active = [job(1, group="a"), job(2, 2, at_once=3)]
    caps = Caps({"group a": 2, "CPU jobs": 0}, 5, lambda: active)
    limited = job(4, 2, at_once=3)
    assert (caps.left(job(3)), caps.left(job(3, group="a")), caps.left(limited)) == (3, 1, 2)
    for _ in range(2):
        assert caps.full(limited) is None
        caps.take(limited)
    assert caps.full(limited) == CapFull("array 2", 3)
    assert caps.full(limited, arrays=False) is None
    caps.take(job(3, group="a"))
    assert (caps.full(job(5, group="a")), caps.full(job(5))) == (AtLimit(5), AtLimit(5))


def test_without_limits_the_active_jobs_are_not_counted() -> None:
    """There may be ten thousand of them."""
    caps = Caps({}, None, lambda: pytest.fail("counted"))
    caps.take(job(1))
    assert caps.left(job(2)) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=30), st.sets(st.integers(0, 3)))
def test_jobs_are_offered_by_importance_and_none_after_a_refusal(
    specs: list[tuple[int, int]], refused: set[int]
) -> None:
    """The same as sorting all of them, and leaving out what is like a refused one."""
    waiting = [
        job(number, priority=priority, resources=Resources(gpus=gpus))
        for number, (priority, gpus) in enumerate(specs, 1)
    ]
    groups, offered = WaitingJobs(), list[Job]()
    for one in waiting:
        groups.add(one)

    def offer(one: Job) -> bool:
        offered.append(one)
        return one.spec.resources.gpus not in refused

    offer_in_order(groups.groups(), offer)
    expected, closed = [], set()
    for one in sorted(waiting, key=importance):
        kind = one.spec.priority, one.spec.resources.gpus
        if kind not in closed:
            expected.append(one)
        if one.spec.resources.gpus in refused:
            closed.add(kind)
    assert offered == expected


def test_the_words_for_sbatch() -> None:
    """GPUs are given per node; the limit of the job ends it before Slurm's."""
    spec = JobSpec(resources=Resources(gpus=4, model="a100"), nodes=2, limit=90.0, grace=30.0)
    made = sbatch_words(
        sbatch_shape(replace(job(1), spec=spec)),
        1,
        ClusterSettings(partition="gpu", account="ml", options=("--constraint=big",)),
    )
    assert made == [
        *("--partition=gpu", "--account=ml", "--gres=gpu:a100:2"),
        *("--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--time=3", "--constraint=big"),
    ]
    assert minutes_of(JobSpec()) is None


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("None", "about to start"),
        ("Priority", "jobs with a higher priority in Slurm go first"),
        ("(Resources)", "the next to start when GPUs become free"),
        ("QOSMaxJobsPerUserLimit", "a limit of the QOS is reached (QOSMaxJobsPerUserLimit)"),
        ("AssocGrpGRES", "a limit of your account is reached (AssocGrpGRES)"),
        ("ReqNodeNotAvail, UnavailableNodes:n3", "nodes that it needs are down, drained or reserved"),
        ("InvalidAccount", "the account is not valid; see account in the configuration of the cluster"),
        ("SomethingNew", "SomethingNew"),
    ],
)
def test_slurms_reason_in_words(reason: str, words: str) -> None:
    """One that is not known stays as Slurm has it."""
    assert reason_text(reason) == words


@pytest.mark.parametrize("limit", [1, 2, 7, 20, 29])
def test_a_submit_limit_is_found_and_used(limit: int) -> None:
    """Bundles are halved until one is taken; then all that Slurm takes is used, with a refusal now and then."""
    found, in_slurm, refusals = SubmitLimit(), 0, 0
    for second in range(600):
        most = found.most(float(second))
        tasks = (30 if most is None else min(most, 30)) - in_slurm
        if tasks <= 0:
            continue
        if in_slurm + tasks > limit:
            found.refused(tasks, in_slurm, "", float(second))
            refusals += 1
        else:
            in_slurm += tasks
            found.accepted(in_slurm, float(second))
    assert in_slurm == limit
    assert refusals < 25, "about one a minute, after the first few"


def test_a_submit_limit_that_was_raised() -> None:
    """After the pause the next trial finds it; its name is in the words."""
    found = SubmitLimit()
    found.refused(1, 4, "AssocMaxSubmitJobLimit", 100.0)
    assert "(AssocMaxSubmitJobLimit)" in found.words
    assert [found.most(100.0), found.most(104.0), found.most(105.0)] == [4, 4, 5]
    found.accepted(5, 105.0)
    found.accepted(7, 105.0)
    assert found.most(105.0) == 11
