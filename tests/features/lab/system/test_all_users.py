"""Three real users of one machine see who has which GPUs until when, and who waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from features.lab.people import Person, people
from support.wait import wait_until


@pytest.fixture
def three() -> Iterator[list[Person]]:
    with people(3) as users:
        yield users


def test_a_newcomer_sees_who_has_what(three: list[Person]) -> None:
    """Users, GPUs, memory, ends and waiting jobs, but no names and commands of others unless they share them."""
    alice, bob, newcomer = three
    bob.configure('share = "names"\n')
    alice.do("submit", "--gpus", "2", "-t", "2h", "--name", "secret", "--", "sleep", "1000")
    epochs = "for epoch in $(seq 1000); do echo epoch $epoch/1000; sleep 1; done"
    bob.do("submit", "-m", "8G", "--name", "vit", "--", "sh", "-c", epochs)
    bob.do("submit", "--gpus", "4", "--", "sleep", "1000")
    wait_until(lambda: [len(newcomer.lab().jobs), [line.gpus for line in newcomer.lab().waiting]] == [2, [4]])
    wait_until(lambda: any(job.title for job in newcomer.lab().jobs))
    lab = newcomer.lab()
    of = {job.user: job for job in lab.jobs}
    first, second = of[alice.user.name], of[bob.user.name]
    assert (len(first.gpus), first.memory_bytes, first.job, first.title, first.you) == (2, None, "1", "", False)
    assert first.latest_end is not None
    assert 7190 <= (first.latest_end - first.since).total_seconds() <= 7210
    assert (len(second.gpus), second.memory_bytes, second.title, second.latest_end) == (1, 8 * 2**30, "vit", None)
    (waiting,) = lab.waiting
    assert (waiting.user, waiting.jobs, waiting.gpus) == (bob.user.name, 1, 4)
    assert [(user.user, user.gpus, user.waiting) for user in lab.users] == [
        (alice.user.name, 2, 0),
        (bob.user.name, 1, 1),
        (newcomer.user.name, 0, 0),
    ]
    assert not lab.notes
    published = b"".join(path.read_bytes() for path in newcomer.home.parent.glob("ledger/*"))
    assert b"secret" not in published
    wait_until(lambda: any(job.expected_end is not None for job in newcomer.lab().jobs))
    assert [(job.user, job.expected_end is not None) for job in newcomer.lab().jobs] == [
        (alice.user.name, False),
        (bob.user.name, True),
    ]
    assert f"{bob.user.name} until ~" in newcomer.do("gpus", "--color", "never", "--table")
    screen = newcomer.do("status", "--all-users", "--table")
    assert all(word in screen for word in (alice.user.name, bob.user.name, "vit", "~", "latest", "4 GPUs"))


def test_a_user_who_shares_nothing(three: list[Person]) -> None:
    """Publishes leases alone, so that others see GPUs in use, but neither utilisation nor what waits."""
    alice, _, newcomer = three
    alice.configure('share = "nothing"\n')
    alice.do("submit", "--gpus", "4", "--", "sleep", "1000")
    wait_until(lambda: len(newcomer.lab().jobs) == 1)
    assert not list(newcomer.home.parent.glob("ledger/*.board"))
    (job,) = newcomer.lab().jobs
    assert (job.user, len(job.gpus), job.utilisation_percent) == (alice.user.name, 4, None)
