"""Jobs that hold GPUs and do not use them, as people see them."""

from __future__ import annotations

import json
import sys

from stoker.core.job import Running
from stoker.core.spec import IdleRule
from support.background import Background
from support.cli import until
from support.wait import wait_until

WORKS = f"exec {sys.executable} -m stoker.devices.demo_job --seconds 1000 --load 60"
DOES_NOTHING = f"exec {sys.executable} -m stoker.devices.demo_job --seconds 1000 --load 0"


def is_reported(background: Background, job: int) -> bool:
    state = background.job(job).state
    return isinstance(state, Running) and state.idle_since is not None


def test_what_is_said_and_done(background: Background) -> None:
    """One that only holds memory is reported on all screens, and stopped if that is wanted; one that works is not."""
    works, idle = background.submit(WORKS, DOES_NOTHING, idle=IdleRule(1.0))
    wait_until(lambda: is_reported(background, idle))
    (line,) = json.loads(background("status", "--json", str(idle)).out)["jobs"]
    assert line["state"] == "running"
    assert line["why"].startswith("has held GPU 1 for ") or line["why"].startswith("has held GPU 0 for ")
    assert line["why"].endswith(" at 0 %")
    assert [event["event"] for event in line["events"]][-1] == "idled"
    assert "at 0 %" in background("status").out
    assert background("edit", str(idle), "--idle", "1s:stop").out == f"{idle}: idle 1s → 1s:stop\n"
    background.wait_over(idle)
    ended = background.ended(idle)
    assert (ended.result, ended.note.endswith(" at 0 %")) == ("idle", True)
    assert background.word(works) == "running"
    wait_until(lambda: not is_reported(background, works))  # it was idle until its program had begun
    background("cancel", str(works))
    background.wait_over(works)


def test_it_gives_way(background: Background) -> None:
    """A preemptible job that does nothing leaves when another waits."""
    saves = f"trap 'exit 75' USR1; touch ready$STOKER_JOB_ID; {until('gate')}"
    rule = IdleRule(1.0, "preempt")
    first, second = background.submit(saves, saves, idle=rule, preemptible="save")
    wait_until(lambda: all((background.cwd / f"ready{job}").exists() for job in (first, second)))
    wait_until(lambda: is_reported(background, first) and is_reported(background, second))
    (other,) = background.submit("true", start=False)
    background.wait_over(other)
    background.open_gate("gate")
    background.wait_over(first, second)
    assert background.job(first).preemptions + background.job(second).preemptions >= 1
