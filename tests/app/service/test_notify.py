"""The message about a batch, and the targets it goes to."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker.app.jobs.option_values import parse_targets, shown_target
from stoker.app.service.notify import message_about, summary
from stoker.core.errors import UsageError
from stoker.core.job import Ended, Job, Waiting
from stoker.core.outcomes import Result
from stoker.core.spec import Command, JobSpec


def job(number: int, result: Result | None, code: int | None = 0) -> Job:
    state = Waiting(100.0) if result is None else Ended(result, 165.0, code)
    return Job(number, 1, Command(("python", "train.py")), JobSpec(), state, submitted=100.0)


def test_one_job() -> None:
    """One job is named with its result and the time since it was submitted."""
    assert summary([job(7, "failed", 3)]) == "job 7 (python train.py): exit 3, 01:05 after submit"
    assert summary([replace(job(7, "done"), name="bert")]) == "job 7 (bert): done, 01:05 after submit"


def test_a_sentence_about_a_job() -> None:
    """A job that still runs is named with what is said of it."""
    message = message_about(job(7, None), "has held GPU 0 for 30m at 0 %")
    assert message.title.endswith(": job 7 has held GPU 0 for 30m at 0 %")
    assert message.text == "python train.py"


def test_several_jobs() -> None:
    """Several are counted: what ran out of memory, time or luck has failed, what a user cancelled has not."""
    jobs = [job(1, "done"), job(2, "oom"), job(3, "timeout"), job(4, "cancelled"), job(5, "skipped"), job(6, "done")]
    assert summary(jobs) == "6 of 6 finished, 2 failed, 1 cancelled, 1 skipped"
    assert summary([job(1, "done"), job(2, "done")]) == "2 of 2 finished, 0 failed"


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("mail", ("mail",)),
        ("ntfy://topic", ("ntfy://topic",)),
        ("mail, slack://a/b/c", ("mail", "slack://a/b/c")),
        ("json://host/?to=a,b,mail", ("json://host/?to=a,b", "mail")),
        ("tgram://1:x/a,tgram://1:x/a", ("tgram://1:x/a",)),
    ],
)
def test_targets(text: str, targets: tuple[str, ...]) -> None:
    """A comma separates targets where another one follows; otherwise it is part of the URL."""
    assert parse_targets(text) == targets


def test_a_secret_is_not_shown() -> None:
    """Neither on screens nor in the error about a URL with a blank."""
    assert shown_target("slack://token/x") == "slack://…"
    with pytest.raises(UsageError) as refused:
        parse_targets("slack://token x")
    assert "token" not in refused.value.message
