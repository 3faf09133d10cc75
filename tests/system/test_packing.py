"""Several jobs on one GPU, as people see it: learnt, measured, and saved from each other."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from stoker.core.job import Assigned, Exited, resources_of
from stoker.core.learning import Learnt, MeasuredUse
from support.background import Background
from support.build import GIB
from support.training_job import TRAIN
from support.wait import wait_until


def told(background: Background, job_id: int) -> dict[str, Any]:
    """What `status` says of one job."""
    (job,) = json.loads(background("status", str(job_id), "--json").out)["jobs"]
    return dict(job)


def submit(background: Background, vram: str, job: str, *options: str) -> int:
    """Hand in one simulated job, as it would be typed."""
    answer = background("submit", "--parsable", "--vram", vram, *options, f"{TRAIN} {job}")
    return int(answer.out)


def learnt(background: Background, job_id: int) -> Learnt:
    """What is known of the work of a job."""
    with background.open_store() as store:
        return store.learnt(background.job(job_id).kind)


def use(background: Background, job_id: int, attempt: int = 1) -> MeasuredUse:
    """What was seen of an attempt."""
    with background.open_store() as store:
        return store.uses(job_id)[attempt]


def attempts(background: Background, job_id: int) -> list[tuple[Assigned, Exited]]:
    """Every attempt: what was set aside for it, and how it ended."""
    with background.open_store() as store:
        events = store.events(job_id)
    assigned = [event for event in events if isinstance(event, Assigned)]
    return list(zip(assigned, [event for event in events if isinstance(event, Exited)], strict=True))


class TestLearning:
    """`--vram auto`: alone and measured at first, then together."""

    def test_the_second_time_they_share(self, background: Background) -> None:
        """What one run showed is set aside for the next ones, which then run together on one GPU."""
        first = submit(background, "auto", "--memory 6G --seconds 1 --load 30 --until seen")
        end_when_seen(background, 6 * GIB)
        background.wait_over(first)
        assert use(background, first).peak == 6 * GIB
        (runs,) = learnt(background, first).models.values()
        assert runs.peaks == (6 * GIB,)
        together = [
            submit(background, "auto", "--memory 6G --seconds 600 --load 30 --until seen", "--on", "0")
            for _ in range(3)
        ]
        background.wait_word("running", *together)
        needs = [resources_of(background.job(job)) for job in together]
        assert all(6 * GIB < resources.predicted[0][1] < 8 * GIB for resources in needs)

    def test_the_unknown_is_alone(self, background: Background) -> None:
        """A job of unknown memory does not share a GPU."""
        unknown = submit(background, "auto", "--memory 1G --seconds 600", "--on", "0")
        background.wait_word("running", unknown)
        small = submit(background, "1G", "--memory 512M --seconds 600", "--on", "0")
        wait_until(lambda: "GPU" in told(background, small)["why"])
        assert background.word(small) == "waiting"

    def test_a_batch_twice_as_large_is_other_work(self, background: Background) -> None:
        """It is measured anew."""
        first = submit(background, "auto", "--memory 2G --seconds 1.2", "--name", "a")
        background.wait_over(first)
        same, other = (
            background.job(submit(background, "auto", line))
            for line in ("--memory 2G --seconds 2", "--memory 2G --seconds 2 --batch-size 8")
        )
        assert same.kind == background.job(first).kind
        assert other.kind != same.kind

    def test_what_a_child_in_a_session_of_its_own_holds_counts(self, background: Background) -> None:
        """As torchrun's children do."""
        job = submit(background, "auto", "--memory 3G --seconds 0 --child --until seen")
        end_when_seen(background, 3 * GIB)
        background.wait_over(job)
        assert use(background, job).peak == 3 * GIB

    def test_measures_survive_an_engine(self, background: Background) -> None:
        """The peak of a job that outlived an engine is that of all its life, once it was written down."""
        job = submit(background, "auto", "--memory 3G --seconds 0 --until seen")
        background.wait_word("running", job)
        background.kill_engine()
        background.start_engine()
        end_when_seen(background, 3 * GIB)
        background.wait_over(job)
        assert use(background, job).peak == 3 * GIB


class TestShortage:
    """Out of memory is a signal, not a failure."""

    def test_own_fault(self, background: Background) -> None:
        """A job that takes more than it declared comes back with more set aside, and no retry is spent."""
        modest = submit(background, "12G", "--memory 12G --seconds 600", "--on", "0")
        background.wait_word("running", modest)
        greedy = submit(background, "4G", "--memory 14G --ramp 0.3 --seconds 1", "--on", "0")
        wait_until(lambda: background.job(greedy).shared_failures == 1)
        assert background.job(greedy).failures == 0
        assert background.job(greedy).floor >= 6 * GIB
        background("cancel", str(modest))
        background.wait_over(greedy)
        (_, short), (again, end) = attempts(background, greedy)
        assert (short.cause, short.shared) == ("oom", True)
        assert again.resources is not None
        assert again.resources.floor >= 6 * GIB
        assert (end.code, background.word(greedy)) == (0, "done")

    def test_a_neighbours_fault(self, background: Background) -> None:
        """Who kept to what he declared gets no more than that set aside the next time."""
        greedy = submit(background, "4G", "--memory 20G --seconds 0 --until gate", "--on", "0")
        background.wait_word("running", greedy)
        wait_until(lambda: any(live > 15 * GIB for live in held(background)))
        # The engine keeps others off now; a job assigned just before would meet a full GPU.
        honest = submit(background, "6G", "--memory 6G --seconds 1", "--on", "0")
        wait_until(lambda: "GPU" in told(background, honest)["why"])
        background.open_gate("gate")
        background.wait_over(greedy, honest)
        assert background.word(honest) == "done"
        assert background.job(honest).floor == 0

    def test_what_does_not_fit_alone_is_over(self, background: Background) -> None:
        """Shared, shared with more, alone, and then a sentence that says so."""
        neighbour = submit(background, "2G", "--memory 2G --seconds 3", "--on", "0")
        background.wait_begun(neighbour)
        job = submit(background, "4G", "--memory 40G --ramp 1 --seconds 2", "--on", "0")
        background.wait_over(job)
        assert background.word(job) == "oom"
        assert "needs more than a whole GPU (24.0G)" in told(background, job)["note"]
        assert background("wait", str(job)).code == 1

    def test_alone_from_the_start(self, background: Background) -> None:
        """A job that had the whole card is over at once, whatever its retries."""
        job = submit(background, "all", "--memory 40G --seconds 1", "--retries", "3")
        background.wait_over(job)
        assert background.word(job) == "oom"
        assert len(attempts(background, job)) == 1

    def test_alone_though_its_engine_died(self, background: Background) -> None:
        """A job with a whole GPU had no co-tenant while no engine was there: it ends as oom at once."""
        job = submit(background, "auto", "--curve 0:1G,2:1G,3:40G --seconds 4")
        background.wait_begun(job)
        background.kill_engine()
        background.start_engine()
        background.wait_over(job)
        assert background.word(job) == "oom"
        assert len(attempts(background, job)) == 1

    def test_split_over_writes(self, background: Background) -> None:
        """The message counts, however it was written."""
        job = submit(background, "all", "--memory 40G --seconds 1 --split-oom --oom-text jax")
        background.wait_over(job)
        assert background.word(job) == "oom"

    def test_an_ordinary_failure_stays_one(self, background: Background) -> None:
        """Without such a message nothing is presumed."""
        job = submit(background, "4G", "--memory 1G --seconds 0.2 --fail 3")
        background.wait_over(job)
        assert background.word(job) == "failed"

    def test_what_was_in_the_log_before_is_of_another(self, background: Background, tmp_path: Path) -> None:
        """Output is appended to the file that -o names: the last words of an earlier job say nothing of the next."""
        log = tmp_path / "train.log"
        short = submit(background, "all", "--memory 40G --seconds 1", "-o", str(log))
        background.wait_over(short)
        assert background.word(short) == "oom"
        other = submit(background, "all", "--memory 1G --seconds 0.2 --fail 3", "-o", str(log))
        background.wait_over(other)
        assert background.word(other) == "failed"


def end_when_seen(background: Background, size: int) -> None:
    """Let a job with `--until seen` end as soon as the engine says that it holds so much."""
    wait_until(lambda: held(background) == [size], pause=0.1)
    background.open_gate("seen")


def held(background: Background) -> list[int]:
    """What running jobs hold, as the engine says."""
    jobs = json.loads(background("status", "--json").out)["jobs"]
    return [job["used_bytes"] or 0 for job in jobs]


class TestBounds:
    """How many may share a GPU."""

    def test_busy(self, background: Background) -> None:
        """Work that keeps a GPU busy is not put together, though the memory would do."""

        first = submit(background, "auto", "--memory 1G --seconds 3 --load 100")
        background.wait_over(first)
        wait_until(lambda: [runs.loads for runs in learnt(background, first).models.values()] == [(100,)])
        one = submit(background, "auto", "--memory 1G --seconds 600 --load 100", "--on", "0")
        background.wait_word("running", one)
        other = submit(background, "auto", "--memory 1G --seconds 600 --load 100", "--on", "0")
        wait_until(lambda: "would load GPU" in told(background, other)["why"])

    def test_grab_all_frameworks_are_told_to_be_modest(self, background: Background) -> None:
        """Unless the user has set something else."""
        script = 'echo "$TF_FORCE_GPU_ALLOW_GROWTH $XLA_PYTHON_CLIENT_PREALLOCATE $STOKER_VRAM"'
        shared = background("submit", "--parsable", "--vram", "2G", "--env", "TF_FORCE_GPU_ALLOW_GROWTH=no", script)
        whole = background("submit", "--parsable", script)
        ids = [int(answer.out) for answer in (shared, whole)]
        background.wait_over(*ids)
        shown, hidden = (background("logs", str(job)).out.split() for job in ids)
        assert shown == ["no", "false", str(2 * GIB)]
        assert hidden == []

    def test_larger_than_any_gpu(self, background: Background) -> None:
        """Refused at once, with what there is."""
        answer = background("submit", "--vram", "80G", "true")
        assert answer.code == 5
        assert "the largest has 24.0G" in answer.err

    def test_what_a_job_has_is_no_wish_for_those_it_submits(self, background: Background) -> None:
        """STOKER_VRAM tells a job what is set aside for it, and says nothing to a `stoker submit` inside of it."""
        inner = f"{shlex.quote(sys.executable)} -m stoker submit --parsable true"
        outer = int(background("submit", "--parsable", "--vram", "2G", inner).out)
        background.wait_over(outer)
        assert background.word(outer) == "done"
        assert not background.job(int(background("logs", str(outer)).out)).spec.resources.shares
