"""The effect of commands on jobs, in words: cancel, retry, edit, pause, resume."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from stoker.core.job import Job, Waiting, id_text, is_delegated, single, state_word
from stoker.core.outcomes import ACTIVE, RESULTS, WAITING

SCHEMA = "stoker.change/1"


class ChangeResult(Struct, frozen=True):
    """The effect of a command on one job."""

    id: int
    shown: str
    """The id as users type it: `12`, `12.3`."""
    name: str
    before: str
    """Its state when the command was typed."""
    after: str
    """Its state when the engine had answered."""
    refused: bool
    """Whether the command could not do what was asked."""
    said: str


class ChangeReport(Struct, frozen=True):
    """All that a verb did: `stoker cancel --json` and others."""

    schema: str
    verb: str
    dry_run: bool
    jobs: list[ChangeResult]
    notes: list[str]
    """Sentences about the queue or GPUs that the command changed."""


class Sentence(NamedTuple):
    """The sentence for a job that was and is in these states; empty is any."""

    text: str
    before: Collection[str] = ()
    after: Collection[str] = ()
    when: str = ""
    """A condition that the states do not tell, by name."""
    refused: bool = False

    def fits(self, was: str, now: str, when: str) -> bool:
        states = (not self.before or was in self.before) and (not self.after or now in self.after)
        return states and self.when in ("", when)


class Effect(NamedTuple):
    """The effect of a command on a job, or on several that it stands for."""

    job: Job
    before: str
    after: str
    sentence: Sentence
    details: Mapping[str, str]

    @property
    def refused(self) -> bool:
        return self.sentence.refused

    @property
    def said(self) -> str:
        shown = id_text(self.job)
        return self.said_of(shown, shown)

    def said_of(self, jobs: str, named: str) -> str:
        """The sentence about some jobs, and how commands in it name them."""
        text = self.sentence.text.replace("{id}", "{jobs}", 1)
        return text.format(jobs=jobs, id=named, was=self.before, now=self.after, **self.details)


def change_results(effects: Iterable[Effect]) -> list[ChangeResult]:
    """The effect on each job by itself."""
    return [_change_result(effect._replace(job=job)) for effect in effects for job in single([effect.job])]


def _change_result(effect: Effect) -> ChangeResult:
    job = effect.job
    return ChangeResult(job.id, id_text(job), job.name, effect.before, effect.after, effect.refused, effect.said)


_OVER = Sentence("already finished: {id} ({was})", before=RESULTS)
_OVER_IN_BATCH = Sentence(_OVER.text, before=RESULTS, when="batch")
_RETRY = Sentence("already finished: {id} ({was}); to run again: stoker retry {id}", before=RESULTS, refused=True)
_NO_SUSPEND = (
    "a running job cannot be paused (it would block its GPU); instead: stoker cancel {id}, later: stoker retry {id}"
)

SENTENCES: dict[str, tuple[Sentence, ...]] = {
    "cancel": (
        _OVER,
        Sentence("cancelled {id} ({was})", after=["cancelled"]),
        Sentence("finished before the cancel: {id} ({now})", after=RESULTS),
        Sentence("already stopping: {id} ({how})", before=["stopping"]),
        Sentence("stopping {id} ({how})"),
    ),
    "cancel --dry-run": (
        _OVER,
        Sentence("would stop {id} ({was}; {how})", before=ACTIVE),
        Sentence("would cancel {id} ({was})"),
    ),
    "preempt": (
        _OVER,
        Sentence("asked to {how}: {id}", when="asked"),
        Sentence("already giving way: {id}", when="already"),
        Sentence("not running: {id} ({was})", before=(*WAITING, "held", "starting")),
        Sentence("not preemptible: {id}; first: stoker edit {id} --preemptible", when="never", refused=True),
        Sentence("not asked: {id} (Slurm runs it; only jobs in pilots can give way)", when="direct", refused=True),
        Sentence("finished before it was asked: {id} ({now})", after=RESULTS),
        Sentence("not asked: {id} ({now})", refused=True),
    ),
    "preempt --dry-run": (
        _OVER,
        Sentence("not running: {id} ({was})", before=(*WAITING, "held", "starting")),
        Sentence("not preemptible: {id}", when="never", refused=True),
        Sentence("would ask to {how}: {id}"),
    ),
    "retry": (
        Sentence("ended again: {id} ({outcome}){note}", when="ended again", refused=True),
        Sentence("requeued {id} (last result: {how}{memory})"),
    ),
    "retry --dry-run": (Sentence("would requeue {id} (last result: {how}{memory}): {command}"),),
    "edit": (
        _RETRY,
        Sentence("not changed: {id} (stopping)", before=["stopping"], refused=True),
        Sentence("{id}: {difference}", when="changed"),
        Sentence(
            "time limit not changed: {id} (it cannot change where the job runs); the rest was changed",
            when="limit kept",
            refused=True,
        ),
        Sentence("not changed: {id} (now {now})", refused=True),
    ),
    "pause": (
        Sentence("already held: {id}", before=["held"]),
        _OVER_IN_BATCH,
        Sentence(
            "still at work: {id}, the {role}; it adds no {member} while one is held", after=ACTIVE, when="coordinator"
        ),
        Sentence("may finish: {id} ({now})", after=ACTIVE, when="batch"),
        Sentence("just ended: {id} ({now})", after=RESULTS, when="batch"),
        Sentence(_OVER.text, before=RESULTS, refused=True),
        Sentence("held {id}", after=["held"]),
        Sentence("just ended: {id} ({now})", after=RESULTS, refused=True),
        Sentence(f"just started: {{id}}; {_NO_SUSPEND}", before=["queued"], refused=True),
        Sentence(f"not paused: {{id}} ({{was}}); {_NO_SUSPEND}", refused=True),
    ),
    "resume": (
        _OVER_IN_BATCH,
        _RETRY,
        Sentence("moved {id} into the queue (its 'stoker run' was interrupted)", when="interrupted"),
        Sentence("released {id}", before=["held"]),
        Sentence("not held: {id} ({now})"),
    ),
}
"""By command; the first that fits is said. The same sentence is said of several jobs, so no verb follows the id."""


def state_name(job: Job) -> str:
    return "queued" if isinstance(job.state, Waiting) or is_delegated(job) else state_word(job)


def effect(verb: str, before: Job, after: Job, when: str = "", **details: str) -> Effect:
    """The effect of a command on a job that was in one state and is in another; `details` fill the sentence."""
    was, now = state_name(before), state_name(after)
    sentence = next(candidate for candidate in SENTENCES[verb] if candidate.fits(was, now, when))
    return Effect(before, was, now, sentence, details)
