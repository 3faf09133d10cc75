"""What keepers say in their journals, and what it means for jobs, posts and what is known of them."""

from __future__ import annotations

from typing import Any

from stoker.core.job import Exited, Job, Lost, Returned, Started, started_at, state_word
from stoker.engine.job_table import Book
from stoker.runner import journal
from stoker.sites.machine.allocations import Post, Posts
from stoker.sites.machine.diagnosis import NOTHING, Findings, Seen, examine
from stoker.sites.machine.fairshare import Usage
from stoker.sites.machine.observation import Sight
from stoker.sites.machine.telemetry import Measuring
from stoker.store.history import Experience

REFUSED = 126
"""The code of what was found and cannot be run."""


class Hearing:
    """Takes in each record of a journal; one that was heard before says nothing new."""

    def __init__(
        self, book: Book, posts: Posts, sight: Sight, *, usage: Usage, experience: Experience, measuring: Measuring
    ) -> None:
        self._book = book
        self._posts = posts
        self._sight = sight
        self._usage = usage
        self._experience = experience
        self._measuring = measuring

    def began(self, keeper: str, record: journal.Began) -> Job | None:
        """An attempt has a process; the job, if that is news."""
        job = self._book.roster.attempt(record.attempt)
        if job is None or started_at(job) is not None:  # a journal is told from its start to a new engine
            return None
        self._posts[keeper].head_since = self._book.clock()
        return self._book.happen(job, Started(job.attempts, record.at))

    def over(self, keeper: str, record: journal.Over) -> None:
        """Nothing of an attempt is left."""
        job = self._book.roster.attempt(record.attempt)
        if job is None:
            return
        began, post = started_at(job), self._posts[keeper]
        findings = self._examined(job, record, post)
        after = self._book.happen(job, _exited(job, record, findings, company=post.company or findings.company))
        if began is not None:
            seconds = record.at - began
            self._posts.learn(post.need, seconds)
            self._usage.spent(post.device_ids, began, record.at)
            if state_word(after) == "done":
                self._book.changes.learn(self._experience.learn(job, seconds))
            if findings.needs is not None:
                models = [device.model for device in post.devices]
                self._book.changes.learn(self._experience.learn_use(job, models, peak=findings.needs))
            self._measuring.end(job, after, company=post.company, now=self._book.clock())
        self.leave_post(keeper, job)

    def _examined(self, job: Job, record: journal.Over, post: Post) -> Findings:
        """What the log of an attempt says that failed by itself."""
        if record.code == 0 or record.why != "exited":
            return NOTHING
        if post.shares and not post.company:
            self._posts.meet()
        seen = Seen(self._measuring.peak(job), self._measuring.processes(job), post.company)
        return examine(job, post.devices, seen)

    def back(self, keeper: str, record: journal.Back) -> None:
        """The keeper gave an attempt back that it had not started."""
        job = self._book.roster.attempt(record.attempt)
        if job is not None:
            self._book.happen(job, Returned(job.attempts, record.at))
            self.leave_post(keeper, job)

    def refuse(self, keeper: str, job: Job, note: str) -> None:
        """An attempt ends before any keeper heard of it, because something is missing that it cannot do without."""
        now = self._book.clock()
        started = self._book.happen(job, Started(job.attempts, now))
        self._book.happen(started, Exited(job.attempts, REFUSED, 0, now, why="refused", note=note))
        self.leave_post(keeper, job)

    def gone(self, keeper: str) -> bool:
        """The keeper is dead and said all it had to say: what it had started is lost, the rest never started.

        True where it had work and could start none of it.
        """
        post = self._posts.lose(keeper)
        if post is None:
            return False
        now = self._book.clock()
        held = [job for job_id in post.jobs if (job := self._book.roster.active(job_id))]
        for job in held:
            started = started_at(job) is not None
            self._book.happen(job, Lost(job.attempts, now) if started else Returned(job.attempts, now))
        self._sight.leave(post.device_ids, now)
        self._book.plan_due = True
        return bool(held) and all(started_at(job) is None for job in held)

    def leave_post(self, keeper: str, job: Job) -> None:
        """An attempt is over or came back: its place is free."""
        now = self._book.clock()
        post = self._posts[keeper]
        post.finish(job.id, now)
        self._book.plan_due = True
        if not post.jobs:
            self._sight.leave(post.device_ids, now)


def _exited(job: Job, record: journal.Over, findings: Findings, *, company: bool) -> Exited:
    why: Any = record.why
    return Exited(
        job.attempts,
        record.code,
        record.signal,
        record.at,
        why=why,
        peak_memory=record.peak,
        note="; ".join(filter(None, (findings.note, record.note))),
        cause=findings.cause,
        company=company,
        floor=findings.floor,
    )
