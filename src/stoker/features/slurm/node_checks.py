"""Checks of nodes: an attempt is queued again only when its node has shown that no process of it is left.

The process that guards an attempt or a pilot says so itself (guard.py). If that was killed, a pilot on the same node
looks for what is left and kills it, or else a job of Slurm's that does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from stoker.core.settings import ClusterSettings
from stoker.features.slurm.attempts import Bundle, BundledAttempt
from stoker.features.slurm.cluster import SlurmFact, settings_words
from stoker.features.slurm.guard import EVENTS, OVER, gone_line
from stoker.features.slurm.orders import CHECK_MARK, ClusterContext
from stoker.features.slurm.pilot.files import CheckOrder
from stoker.features.slurm.shared import JOURNALS, BundleFolder

AGAIN_SECONDS = 60.0
"""Seconds before a node is checked again: a check takes at most so long, and Slurm may have refused it."""
MEMORY_MIB = 100
"""For a job that checks a node."""


class NodeCheck(Bundle):
    """A job of Slurm's that checks a node."""

    def __init__(self, name: str, tag: str, folder: Path, check: CheckOrder) -> None:
        super().__init__(name, tag, folder)
        self.check = check
        self.made = True

    @property
    def tasks(self) -> Collection[int]:
        return (0,)


class NodeChecks:
    """All checks of an engine."""

    def __init__(self, context: ClusterContext, by_pilot: Callable[[str, CheckOrder], bool]) -> None:
        """`by_pilot` lets a pilot on a node check it; whether there is one."""
        self.all: dict[str, NodeCheck] = {}
        self._context = context
        self._by_pilot = by_pilot
        self._due: dict[str, float] = {}
        """When an allocation may be checked again."""
        self._nodes: dict[str, str] = {}
        """Nodes that at Slurm's last answer had not shown yet that an allocation is over, by allocation."""
        self._asked: dict[str, str] = {}
        """Nodes of which that was asked since, by allocation."""
        self._refusal = ""
        """Slurm's words, if it refused the last check."""
        self.trusts_slurm = False
        """Whether Slurm keeps processes by their cgroup, so that none is left of a task that is over."""

    def is_clear(self, check: CheckOrder, node: str, folder: BundleFolder) -> bool:
        """Whether nothing can be left of an allocation that Slurm says is over; else its node is checked."""
        if self.trusts_slurm or not node:
            return True
        self._asked[check.allocation] = node
        now = self._context.jobs.clock()
        if now >= self._due.get(check.allocation, 0.0):
            self._due[check.allocation] = now + AGAIN_SECONDS
            self._start(check, node, folder)
        return False

    def _start(self, check: CheckOrder, node: str, folder: BundleFolder) -> None:
        waits = any(job.check == check for job in self.all.values())
        if self._by_pilot(node, check) or waits:
            return
        self._refusal = ""
        name = self._context.new_name(CHECK_MARK)
        job = self.all[name] = NodeCheck(name, self._context.tag + name, Path(folder.path), check)
        job.options = ["--job-name=stoker-check", *check_words(self._context.settings, node)]

    def refuse(self, name: str, why: str) -> bool:
        """Forget a check that Slurm refused; it is tried again later. False if there is none of this name."""
        if self.all.pop(name, None) is None:
            return False
        self._refusal = why
        return True

    def judge(self, facts: Mapping[tuple[str, int], SlurmFact], asked_at: float) -> None:
        """Forget jobs that Slurm does no more for, by an answer to a question that was asked then.

        All attempts were judged by the answer before, so what they did not ask for is not needed any more.
        """
        self._nodes, self._asked = self._asked, {}
        self._due = {allocation: at for allocation, at in self._due.items() if allocation in self._nodes}
        for name, job in list(self.all.items()):
            fact = facts.get((job.tag, 0))
            was_asked = job.submitted_at is not None and asked_at > job.submitted_at
            if was_asked and (fact is None or fact.is_over):
                del self.all[name]

    @property
    def trouble(self) -> str:
        """Which nodes have not shown yet that attempts are over."""
        names = ", ".join(sorted(set(self._nodes.values())))
        refusal = f"; Slurm refused it: {self._refusal}" if self._refusal else ""
        return f"jobs lost on {names} wait for a check there that nothing of them is left{refusal}" if names else ""


def task_check(bundle: Bundle, attempt: BundledAttempt) -> CheckOrder:
    """The check for an attempt that is a task of Slurm's itself."""
    folder = bundle.folder
    return CheckOrder(folder.at(attempt.index), folder.at(JOURNALS, attempt.index), gone_line(attempt.key))


def pilot_check(folder: BundleFolder) -> CheckOrder:
    """The check for a pilot."""
    return CheckOrder(folder.path, folder.at(EVENTS), OVER)


def check_words(settings: ClusterSettings, node: str) -> list[str]:
    """Options for sbatch: as little of the node as possible."""
    little = ["--nodes=1", "--ntasks=1", "--cpus-per-task=1", f"--mem={MEMORY_MIB}", "--time=5", f"--nodelist={node}"]
    return [*settings_words(settings), *settings.options, *little]
