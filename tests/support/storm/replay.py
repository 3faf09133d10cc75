"""Replays a job from its events alone: the state that it must have reached, and events that cannot be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.storm.checker import LOSSES_ALLOWED, Evidence
from support.storm.jobs import FIRST_EDITION, Work

SHORTAGES_ALLOWED = 2
"""How often a job is queued again in company, and once more if somebody comes who must not."""


@dataclass
class JobReplay:
    """A job on its way through its events."""

    work: Work
    held: bool = False
    result: str = ""
    """Empty until it is over."""
    edition: str = FIRST_EDITION
    faults: list[str] = field(default_factory=list)
    assigned: int = 0
    begun: bool = False
    at_worker: bool = False
    cancelled: bool = False
    displaced: bool = False
    """Whether it was asked to give way."""
    failures: int = 0
    losses: int = 0
    shared_failures: int = 0
    """Attempts that company on its devices cost it."""
    editions: list[str] = field(default_factory=list)
    """The words that the runs were given to write."""
    shortage: bool = False
    """Whether it could not be started, and waits until the machine is tried again."""
    tried_again: list[float] = field(default_factory=list)
    """When that was."""
    starts_unseen: bool = False
    """Whether a journal was damaged, perhaps in the line of a start that no engine had read."""

    def apply(self, event: dict[str, Any]) -> None:
        """Go on with the next event."""
        getattr(self, f"_{event['type']}")(event)

    def _expect(self, holds: bool, event: dict[str, Any]) -> None:
        if not holds:
            self.faults.append(f"{event} cannot be after attempt {self.assigned} {self.result or 'not over'}")

    def _at_worker(self, event: dict[str, Any], *, begun: bool) -> None:
        """An event of the newest attempt, which is then over."""
        right = self.at_worker and event["attempt"] == self.assigned and self.begun == begun
        self._expect(right, event)
        self.at_worker = self.displaced = False

    def _assigned(self, event: dict[str, Any]) -> None:
        self._expect(not self.result and not self.held and not self.at_worker and not self.cancelled, event)
        self.assigned += 1
        self.at_worker, self.begun = True, False

    def _started(self, event: dict[str, Any]) -> None:
        self._expect(self.at_worker and not self.begun and event["attempt"] == self.assigned, event)
        self.begun = True
        self.editions.append(self.edition)

    def _returned(self, event: dict[str, Any]) -> None:
        """A start is recorded before there is a process, so a machine that is short of something takes it back."""
        self.shortage = bool(event.get("shortage"))
        self._at_worker(event, begun=self.begun and self.shortage)
        if self.begun:
            self.editions.pop()
        if self.cancelled:
            self.result = "cancelled"

    def _exited(self, event: dict[str, Any]) -> None:
        self._at_worker(event, begun=True)
        if event.get("why") == "preempted" and event["code"] and not self.cancelled:
            self._expect(bool(self.work.preemptible), event)
            return
        kinds = {"timeout": "timeout", "stopped": "cancelled", "exited": "failed" if event["code"] else "done"}
        kinds["preempted"] = kinds["exited"]
        result = kinds.get(event.get("why", "exited"), "failed")
        if self.cancelled and result != "done":
            result = "cancelled"
        if result == "failed" and event.get("cause") == "oom":
            if event.get("shared") and self.shared_failures <= SHORTAGES_ALLOWED:
                self.shared_failures += 1
                return
            result = "oom"
        bad = result in ("failed", "timeout", "oom")
        self.failures += bad
        again = bad and self.failures <= self.work.retries and self._is_worth_a_retry(result, event["code"])
        self.result = "" if again else result

    def _is_worth_a_retry(self, result: str, code: int) -> bool:
        wanted = self.work.retry_on or ("failed", "timeout")
        return result in wanted or (result != "oom" and str(code) in wanted)

    def _lost(self, event: dict[str, Any]) -> None:
        if self.starts_unseen and not self.begun:
            self._started(event)
        self._at_worker(event, begun=True)
        self.losses += 1
        if self.cancelled:
            self.result = "cancelled"
        elif not self.work.requeue or self.losses > LOSSES_ALLOWED:
            self.result = "lost"

    def _cancelled(self, event: dict[str, Any]) -> None:
        self._expect(not self.result and not self.cancelled, event)
        self.cancelled = True
        if not self.at_worker:
            self.result = "cancelled"

    def _paused(self, event: dict[str, Any]) -> None:
        self._expect(not self.result and not self.at_worker and not self.held, event)
        self.held = True

    def _resumed(self, event: dict[str, Any]) -> None:
        self._expect(not self.result and (self.held or self.shortage), event)
        if not self.held:
            self.tried_again.append(event["at"])
        self.held = self.shortage = False

    def _edited(self, event: dict[str, Any]) -> None:
        self._expect(not self.result and not self.at_worker, event)
        self.edition = dict(event["spec"]["extra_env"])["STORM_WORD"]

    def _displaced(self, event: dict[str, Any]) -> None:
        """Once in each attempt, and only while it runs."""
        can_leave = bool(self.work.preemptible) and self.begun and not self.cancelled
        self._expect(self.at_worker and can_leave and not self.displaced, event)
        self.displaced = True

    def _stayed(self, event: dict[str, Any]) -> None:
        self._expect(self.at_worker and self.displaced and self.work.preemptible == "save", event)
        self.displaced = False

    def _skipped(self, event: dict[str, Any]) -> None:
        self._expect(not self.result and not self.at_worker, event)
        self.result = "skipped"

    def _retried(self, event: dict[str, Any]) -> None:
        self._expect(bool(self.result), event)
        self.result, self.held, self.cancelled = "", False, False
        self.failures = self.losses = self.shared_failures = 0


def faults_of_replay(evidence: Evidence, job: int, replay: JobReplay) -> list[str]:
    """The contradictions between a job and its own events, found by a replay of these."""
    replay.starts_unseen = evidence.kills is None
    for event in evidence.record.events.get(job, []):
        replay.apply(event)
    faults = [f"job {job}: {fault}" for fault in replay.faults]
    state = evidence.record.jobs[job].state
    if state != replay.result:
        faults.append(f"job {job} is {state}, though by its events it is {replay.result or 'not over'}")
    return faults
