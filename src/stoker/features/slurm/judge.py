"""Judge attempts on a cluster by their journals and Slurm's answers, and say in words why they wait.

Journals, which nodes write, are the truth. Slurm is asked only why something waits and what died.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

ANSWERS_NEEDED = 2
"""Answers of Slurm in a row that must agree before an end is believed that is in no journal."""
SETTLE_SECONDS = 5.0
"""Seconds that these answers must span: a shared directory may show a node's lines with a delay."""
START_SECONDS = 60.0
"""Seconds after which a task is taken back that Slurm calls running, and whose journal has no start."""
GHOST_ANSWERS = 3
"""Answers in a row that show a task as alive whose attempt is over; then it is cancelled in Slurm."""

ENDED_STATES = frozenset(
    (
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
        *("REVOKED", "SPECIAL_EXIT", "TIMEOUT"),
    )
)
"""States in which Slurm does no more for a job. One that is not known here counts as alive."""
UNSEEN_STATES = frozenset(("BOOT_FAIL", "NODE_FAIL"))
"""States in which Slurm has lost sight of a node, whose processes may go on."""
SUSPENDED_STATES = frozenset(("STOPPED", "SUSPENDED"))
"""States in which Slurm has stopped the processes of a job."""
BUSY_REASONS = frozenset(("Priority", "Resources"))
"""Reasons of Slurm for a job that waits until others release what it needs."""
WAITING_STATES = frozenset(("CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"))


class SlurmFact(NamedTuple):
    """One task in an answer of Slurm."""

    state: str
    reason: str = ""
    job: str = ""
    """Its id, as scancel takes it. Only a hint: Slurm may give an id out twice."""
    start: float | None = None
    """When it started, or is expected to start."""
    node: str = ""
    """Its node; empty if it was never given one."""

    @property
    def is_over(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for GPUs that other jobs have."""
        return self.state in WAITING_STATES and self.reason in BUSY_REASONS


class Answers(NamedTuple):
    """Slurm's latest answers about a task."""

    fact: SlurmFact | None = None
    """None if Slurm does not know the task."""
    times: int = 0
    """Answers in a row that agree whether it is alive, over or unknown; 0 if Slurm has not answered."""
    seconds: float = 0.0
    """Time between the first and the last of these."""


class JournalFact(NamedTuple):
    """The journal of an attempt, as far as it was read."""

    started: bool = False
    ended: bool = False
    gone: bool = False
    """Whether no process of the attempt is left, though it did not come to its end."""


Verdict = Literal["waits", "runs", "ended", "cut off", "take back", "called off"]
"""`cut off`: it began, and only Slurm knows what ended it. `take back`: make its claim; if that works, it never began.
`called off`: the same, and it was cancelled in Slurm."""


def judge(journal: JournalFact, answers: Answers) -> Verdict:
    """Judge an attempt. The journal must have been read after the last of the answers was given."""
    if journal.ended:
        return "ended"
    state = answers.fact.state if answers.fact is not None else ""
    if journal.gone and is_ghost(answers):
        return "cut off"
    if journal.started:
        return "cut off" if is_settled(answers) else "runs"
    if state in ENDED_STATES or is_settled(answers) or is_stalled(answers):
        return "called off" if state == "CANCELLED" and not _had_node(answers) else "take back"
    return "waits"


def _had_node(answers: Answers) -> bool:
    """Whether a task may have been cancelled by its node: that is how one ends that the node refuses to launch."""
    return answers.fact is not None and bool(answers.fact.node)


def first_node(nodes: str) -> str:
    """The first of `n1`, `n[1-3,7]` or `a1,b2`, where the batch script of a job runs."""
    match = re.match(r"([^,\[]*)(?:\[(\d+))?", nodes)
    return "".join(part or "" for part in match.groups()) if match else ""


def is_settled(answers: Answers) -> bool:
    """Whether Slurm says for long enough that it does no more for the task."""
    over = answers.fact is None or answers.fact.is_over
    return over and answers.times >= ANSWERS_NEEDED and answers.seconds >= SETTLE_SECONDS


def is_stalled(answers: Answers) -> bool:
    """Whether Slurm calls a task running for so long that its program should have begun.

    After a crash of the controller a node may refuse to launch a task whose id it knows.
    """
    return _class_of(answers.fact) == "runs" and answers.times >= GHOST_ANSWERS and answers.seconds >= START_SECONDS


def count_answer(before: Answers, fact: SlurmFact | None, seconds: float) -> Answers:
    """Add an answer to those before; it came `seconds` after the last one.

    Slurm forgets a task that is over after MinJobAge, often 300 s; what it said of it before still counts.
    """
    if fact is None and before.fact is not None and before.fact.is_over:
        fact = before.fact
    same = before.times > 0 and _class_of(before.fact) == _class_of(fact)
    return Answers(fact, before.times + 1, before.seconds + seconds) if same else Answers(fact, 1)


def _class_of(fact: SlurmFact | None) -> str:
    return (
        "unknown" if fact is None else "over" if fact.is_over else "waits" if fact.state in WAITING_STATES else "runs"
    )


def is_suspended(answers: Answers) -> bool:
    """Whether Slurm has stopped the processes of a task for a while."""
    return answers.fact is not None and answers.fact.state in SUSPENDED_STATES


def is_ghost(answers: Answers) -> bool:
    """Whether Slurm goes on with a task whose attempt is over, so that its GPUs stay taken."""
    fact = answers.fact
    if fact is None or fact.is_over or fact.state == "COMPLETING":
        return False
    return answers.times >= GHOST_ANSWERS and answers.seconds >= SETTLE_SECONDS


def loss_text(answers: Answers) -> str:
    """Why an attempt was lost, for the user."""
    if answers.fact is None:
        return "it vanished from Slurm without a word, as after a crash of the controller or a node"
    if answers.fact.state in UNSEEN_STATES:
        return f"its node went down (Slurm: {answers.fact.state})"
    if answers.fact.state == "PREEMPTED":
        return "Slurm gave its GPUs to other jobs (PREEMPTED)"
    return f"it was killed from outside, perhaps for its host memory (Slurm: {slurm_text(answers.fact)})"


def slurm_text(fact: SlurmFact) -> str:
    """State and reason in Slurm's own words."""
    return fact.state if fact.reason in ("", "None") else f"{fact.state}, {fact.reason}"


# -- reasons -------------------------------------------------------------------------------------

_WORDS = {
    "None": "about to start",
    "Resources": "the next to start when GPUs become free",
    "Priority": "jobs with a higher priority in Slurm go first",
    "Dependency": "waits for another job in Slurm",
    "BeginTime": "its time in Slurm has not come",
    "JobHeldUser": "held in Slurm; scontrol release lets it go",
    "JobHeldAdmin": "held in Slurm by an administrator",
    "JobArrayTaskLimit": "as many tasks of its array run as may at once",
    "InvalidAccount": "the account is not valid; see account in the configuration of the cluster",
    "InvalidQOS": "the QOS is not valid; see qos in the configuration of the cluster",
    "PartitionTimeLimit": "its time limit is longer than the partition allows; ask for less with -t",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows",
    "PartitionConfig": "the partition cannot give what it asks for",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "Reservation": "waits for a reservation",
    "Licenses": "waits for a licence",
    "BadConstraints": "no node can ever give what it asks for",
    "NodeDown": "a node that it needs is down",
    "Cleaning": "Slurm cleans up after its last run",
    "launch failed requeued held": "its start failed, and Slurm holds it",
}
_LIMIT = re.compile(r"(QOS|Assoc)(Max|Grp)([A-Za-z]*)")


def reason_text(reason: str) -> str:
    """Slurm's reason in words; one that is not known stays as it is."""
    plain = reason.partition(",")[0].strip("() ")
    if plain in _WORDS:
        return _WORDS[plain]
    if limit := _LIMIT.match(plain):
        whose = "of the QOS" if limit[1] == "QOS" else "of your account"
        return f"a limit {whose} is reached ({plain})"
    return reason or "about to start"
