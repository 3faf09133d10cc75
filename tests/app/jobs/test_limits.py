"""The limits that the administrator sets: users cannot loosen them, and errors name the rule."""

from __future__ import annotations

import grp
import os
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from stoker.app.jobs.config import Config, load_config
from stoker.app.jobs.context import current_user
from stoker.app.jobs.limits import check_waiting, within_longest
from stoker.core.errors import UsageError
from stoker.core.planner.fairshare import FairShare
from stoker.core.planner.plan import plan
from stoker.core.planner.reasons import MaxUse, NeverFits, WeekUsed
from stoker.core.settings import EngineSettings, LockedLimits, policy_of
from stoker.core.spec import JobSpec
from stoker.sites.machine.week import WeekUsage, week_around
from support.background import Background, background
from support.build import a_job, a_lease, a_need, a_queue, a_snapshot, declared, slot, where

__all__ = ["background"]

TABLE = '[locked]\ngpus = 2\ngpu_hours = 100\nlongest = "1h"\nwaiting = 3\nbooked = 10\ncoordinators = "wheel"\n'


def loaded(folder: Path, text: str, user: str = "", variables: dict[str, str] | None = None) -> Config:
    """The configuration with this file of the system."""
    system, own = folder / "etc.toml", folder / ".config/stoker/config.toml"
    system.write_text(text)
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(user)
    return load_config({"HOME": str(folder), **(variables or {})}, None, system=system)


def test_the_table_of_the_system(tmp_path: Path) -> None:
    """Its limits are in force, and shown with their origin."""
    config = loaded(tmp_path, TABLE)
    assert config.engine.locked == LockedLimits(2, 100, 3600.0, 3, 10)
    assert ("locked.gpus", "2") in [(row.key, row.value) for row in config.origins()]


def test_a_user_cannot_loosen_them(tmp_path: Path) -> None:
    """Not by a file, and no variable has such a name; the user's own max_use stays beside them."""
    with pytest.raises(UsageError, match=r"\[locked\] counts only in"):
        loaded(tmp_path, TABLE, user="[locked]\ngpus = 8\n")
    config = loaded(tmp_path, TABLE, user="max_use = 8\n", variables={"STOKER_LOCKED": "8", "STOKER_MAX_USE": "8"})
    policy = policy_of(config.engine, 4)
    assert (policy.locked.gpus, policy.max_use) == (2, 8)


def test_limits_of_some_users_and_groups(tmp_path: Path) -> None:
    """A user's own go before those of a group, and these before those of all."""
    group, user = grp.getgrgid(os.getgid()).gr_name, current_user()
    of_group = f'{TABLE}[locked.group."{group}"]\ngpus = 3\nwaiting = "none"\n[locked.group.other]\ngpus = 9\n'
    assert loaded(tmp_path, of_group).engine.locked == LockedLimits(3, 100, 3600.0, None, 10)
    assert loaded(tmp_path, f'{of_group}[locked.user."{user}"]\ngpus = 4\n').engine.locked.gpus == 4


@pytest.mark.parametrize(
    "text",
    [
        "locked = 3",
        "[locked]\ngpu = 3",
        "[locked]\ngpus = -1",
        "[locked]\nlongest = 5",
        "[locked.user]\nalice = 3",
        "[locked.user.alice]\ncpus = 3",
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="locked"):
        loaded(tmp_path, text)


def test_the_longest_job() -> None:
    """A job without a limit gets the longest; jobs of clusters have the limits of the cluster."""
    limits = LockedLimits(longest=3600.0)
    assert within_longest(JobSpec(), limits).limit == 3600.0
    assert within_longest(JobSpec(limit=60.0), limits).limit == 60.0
    assert within_longest(JobSpec(cluster="lab"), limits).limit is None
    with pytest.raises(UsageError, match=r"the rule longest of .* allows 1:00:00"):
        within_longest(JobSpec(limit=7200.0), limits)


def test_gpus_at_once() -> None:
    """Those that the user holds in other engines count, too; the stricter of rule and own limit holds."""
    policy = policy_of(loaded_settings(gpus=2), 4)
    four, jobs = a_snapshot(declared("0", "1", "2", "3")), [a_job(1), a_job(2), a_job(3)]
    decided = plan(a_queue(*jobs), [], four, [], policy, 0.0)
    assert len(where(decided)) == 2
    assert decided.reason(jobs[2]) == MaxUse(2, LockedLimits.named("gpus"))
    elsewhere = FairShare(elsewhere=frozenset("0"), shared=True)
    assert (
        len(where(plan(a_queue(*jobs), [slot(9, "1")], four, [a_lease("0")], policy, 0.0, fair_share=elsewhere))) == 0
    )
    big = a_job(5, a_need(3))
    reason = plan(a_queue(big), [], four, [], policy, 0.0).reason(big)
    assert isinstance(reason, NeverFits)
    assert "the rule gpus" in reason.sentence


def loaded_settings(**limits: int) -> EngineSettings:
    return EngineSettings(locked=LockedLimits(**limits))


def test_when_the_hours_are_used() -> None:
    """Jobs with GPUs wait for the next week, others start."""
    used = WeekUsed(100, 100.5, 9.0, LockedLimits.named("gpu_hours"))
    policy = replace(policy_of(loaded_settings(gpu_hours=100), 4), week_used=used)
    gpu, cpu = a_job(1), a_job(2, a_need(0))
    decided = plan(a_queue(gpu, cpu), [], a_snapshot(declared("0")), [], policy, 0.0)
    assert [start.job.id for start in decided.starts] == [2]
    assert decided.reason(gpu) == used


def test_a_week_begins_on_monday(monkeypatch: pytest.MonkeyPatch) -> None:
    """In local time, also in the week when summer time ends, which has an hour more."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        begin, end = week_around(time.mktime((2026, 10, 23, 12, 0, 0, 0, 0, -1)))
        assert time.localtime(begin)[:6] == (2026, 10, 19, 0, 0, 0)
        assert time.localtime(end)[:6] == (2026, 10, 26, 0, 0, 0)
        assert end - begin == (7 * 24 + 1) * 3600
    finally:
        monkeypatch.undo()
        time.tzset()


def test_waiting_jobs_are_counted(background: Background) -> None:
    """A submit beyond the limit is refused as a whole, and told what is left."""
    background.submit("true", "true", start=False)
    with background.open_store() as store:
        check_waiting(store, 1, LockedLimits(waiting=3))
        with pytest.raises(UsageError, match=r"the rule waiting .* you have 2, and 2 more are too many \(1 left\)"):
            check_waiting(store, 2, LockedLimits(waiting=3))


def test_hours_of_this_week_count(background: Background) -> None:
    """Those of attempts that are over, since Monday, as far as they are of this week."""
    now = time.time()
    end = week_around(now)[1]
    with background.open_store() as store:
        usage = WeekUsage(store)
        assert usage.used(LockedLimits(), [], now) is None
        assert usage.used(LockedLimits(gpu_hours=1), [], now) is None
    (job,) = background.submit("sleep 1")
    background.wait_over(job)
    with background.open_store() as store:
        assert WeekUsage(store).used(LockedLimits(gpu_hours=1), [], now) is None
        used = WeekUsage(store).used(LockedLimits(gpu_hours=0), [], now)
        assert used is not None
        assert (used.limit, used.until) == (0, end)
        assert WeekUsage(store).used(LockedLimits(gpu_hours=0), [], end + 1.0) is not None
