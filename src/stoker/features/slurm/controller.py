"""When to run which of Slurm's commands: submits, one question for all jobs per interval, and back-off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from itertools import islice

from stoker.core.settings import ClusterSettings
from stoker.core.units import duration_text
from stoker.features.slurm.attempts import Bundle
from stoker.features.slurm.bundles import SubmitLimit
from stoker.features.slurm.commands import (
    IDS_AT_ONCE,
    Done,
    NodeSize,
    SlurmCommands,
    has_alive,
    parse_config,
    read_facts,
    read_nodes,
    read_submitted,
)
from stoker.features.slurm.judge import Answers, SlurmFact, count_answer, is_ghost

BUSY_INTERVAL = 0.03
"""Seconds between two checks whether a command has ended."""
SUBMIT_INTERVAL = 1.0
"""Seconds between two submits, in the long run."""
SUBMITS_AT_ONCE = 5
"""Submits that may follow each other at once after a pause."""
FRESH_SECONDS = 60.0
"""Seconds after a submit in which Slurm is asked more often."""
FRESH_INTERVAL = 5.0
"""Seconds between two questions in that time, if `poll` is longer."""
SLOW_ANSWER_SECONDS = 1.0
"""An answer that takes longer makes the questions less frequent."""
SLOW_FACTOR = 20
"""Times the duration of a slow answer, until the next question."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
"""Seconds before an unanswered command is tried again: the first time, and at most."""
MAX_ARRAY_SIZE = 1001
"""Slurm's default."""
LOOK = "USR2"
"""The signal that tells a node's program to look for an order to stop."""

Key = tuple[str, int]
"""Tag and index: the identity of a task. Slurm's id is only looked up in the newest answer."""


class Controller:
    """Speaks with Slurm: one command at a time, none more often than is polite."""

    def __init__(
        self,
        commands: SlurmCommands,
        tag: str,
        settings: ClusterSettings,
        script: Callable[[Bundle], str],
        clock: Callable[[], float],
    ) -> None:
        """`tag` begins all tags of this queue; `script` makes the batch script of a bundle."""
        self._clock = clock
        self.facts: dict[Key, SlurmFact] = {}
        """The newest answer."""
        self.asked_at = 0.0
        """When its question was asked."""
        self.answer_interval = 0.0
        """Seconds between it and the answer before."""
        self.max_array: int | None = None
        self.confines = False
        """Whether no process of a task can be left when Slurm says that it is over."""
        self.watches_nodes = False
        """Whether it asks before each question for all jobs which nodes are drained."""
        self.drained: frozenset[str] = frozenset()
        """The nodes that the last answer to that named."""
        self.nodes: NodeSize | None = None
        """The size of a node; asked once."""
        self.trouble = ""
        self._commands = commands
        self._tag = tag
        self._asked_drained = False
        self._poll = settings.poll
        self._partition = settings.partition
        self._script = script
        self._answered_at: float | None = None
        self._poll_at = 0.0
        self._submitted_at = -FRESH_SECONDS
        self._submits_left = float(SUBMITS_AT_ONCE)
        self._refilled_at = self._clock()
        self._pause = FIRST_PAUSE
        self._retry_at = 0.0
        self.limit = SubmitLimit()
        self._has_alive = True
        """Whether the newest answer shows a job of the user that may end; true before the first."""
        self._refused: list[tuple[str, str]] = []
        self._signals: set[Key] = set()
        self._unwanted: set[Key] = set()
        self._ghosts: dict[Key, Answers] = {}

    def due_in(self, bundles: Mapping[str, Bundle]) -> float | None:
        """Seconds until `step` is due; None is never."""
        now = self._clock()
        if self._commands.busy:
            return BUSY_INTERVAL
        moments = []
        if not self.knows_limits or self._ids(self._signals) or self._ids(self._unwanted):
            moments.append(self._retry_at)
        if self._asks(bundles):
            moments.append(max(self._retry_at, self._poll_at))
        if any(_is_ready(bundle) for bundle in bundles.values()):
            moments.append(max(self._retry_at, self._next_submit(now), self._limit_ends(bundles, now)))
        return max(0.0, min(moments) - now) if moments else None

    def step(self, bundles: Mapping[str, Bundle]) -> bool:
        """Take the result of a command and start the next one; whether Slurm answered the question for all jobs."""
        done = self._commands.finished()
        answered = done is not None and self._take(done, bundles)
        now = self._clock()
        if not self._commands.busy and now >= self._retry_at:
            self._start_next(bundles, now)
        return answered

    @property
    def knows_limits(self) -> bool:
        return self.max_array is not None and self.nodes is not None

    def take_refused(self) -> list[tuple[str, str]]:
        """Bundles that Slurm will never take, each with its words."""
        refused, self._refused = self._refused, []
        return refused

    def too_large(self, bundles: Mapping[str, Bundle]) -> list[str]:
        """Bundles that a submit limit leaves no room for, though fewer tasks may fit."""
        most = self.limit.most(self._clock())
        left = 0 if most is None else most - _in_slurm(bundles)
        waiting = () if most is None else filter(_is_ready, bundles.values())
        return [bundle.name for bundle in waiting if len(bundle.tasks) > max(1, left)]

    def limit_room(self, bundles: Mapping[str, Bundle]) -> int | None:
        """How many more tasks a submit limit leaves room for, beside those of all bundles; None is any number."""
        most = self.limit.most(self._clock())
        return None if most is None else max(0, most - sum(len(bundle.tasks) for bundle in bundles.values()))

    def signal(self, tag: str, index: int) -> None:
        """Tell the node's program of a task to look for an order to stop."""
        self._signals.add((tag, index))

    def forget(self, tag: str, index: int) -> None:
        """Cancel a task whose attempt was taken back."""
        self._unwanted.add((tag, index))
        if (tag, index) not in self.facts:
            self._poll_at = min(self._poll_at, self._clock() + min(self._poll, FRESH_INTERVAL))

    def cancel_ghosts(self, is_over: Callable[[str, int], bool]) -> None:
        """Cancel tasks that Slurm goes on with though their attempts are over."""
        seen = {key: fact for key, fact in self.facts.items() if not fact.is_over and key[0].startswith(self._tag)}
        over = {key for key in seen if is_over(key[0].removeprefix(self._tag), key[1])}
        self._ghosts = {
            key: count_answer(self._ghosts.get(key, Answers()), seen[key], self.answer_interval) for key in over
        }
        self._unwanted |= {key for key, answers in self._ghosts.items() if is_ghost(answers)}

    def answered_text(self) -> str:
        """When Slurm answered last, to follow a sentence."""
        if self._answered_at is None:
            return ""
        return f", which answered {duration_text(self._clock() - self._answered_at)} ago"

    def close(self) -> None:
        self._commands.close()

    # -- results ----------------------------------------------------------------------------------

    def _take(self, done: Done, bundles: Mapping[str, Bundle]) -> bool:
        if done.kind == "submit":
            self._take_submit(done, bundles.get(done.subject.removeprefix(self._tag)), bundles)
        if done.answer == "away" or (not done.ok and done.kind in ("configuration", "nodes", "query")):
            self._wait(done)
            return False
        self._pause, self._retry_at = FIRST_PAUSE, 0.0
        if done.kind == "configuration":
            limits = parse_config(done.out)
            self.max_array, self.confines = max(2, limits.max_array or MAX_ARRAY_SIZE), limits.confines
        if done.kind == "drained":
            self.drained, self._asked_drained = frozenset(done.out.split()), True
        if done.kind == "nodes":
            self.nodes = read_nodes(done.out)
        if done.kind != "query":
            return False
        self._take_answer(done, bundles.values())
        return True

    def _wait(self, done: Done) -> None:
        """After no answer of Slurm: change nothing, say so, and try again later."""
        self.trouble = f"Slurm does not answer: {done.error or 'no reason given'}; jobs on the cluster go on"
        self._retry_at = self._clock() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _take_submit(self, done: Done, bundle: Bundle | None, bundles: Mapping[str, Bundle]) -> None:
        now = self._clock()
        self._submitted_at, self._poll_at = now, min(self._poll_at, now + min(self._poll, FRESH_INTERVAL))
        if bundle is None:
            return
        match done.answer:
            case "ok":
                self._submitted(bundle, read_submitted(done.out), now)
                self.limit.accepted(_in_slurm(bundles), now)
            case "refused":
                self._refused.append((bundle.name, done.error))
            case "limit":
                self._take_limit(done, bundle, _in_slurm(bundles), now)
            case "away":  # it may have arrived all the same
                bundle.doubtful, self._poll_at = True, now

    def _take_limit(self, done: Done, bundle: Bundle, others: int, now: float) -> None:
        """Hand over fewer tasks at once; one that is refused alone, while nothing can end that counts, is refused."""
        self.limit.refused(len(bundle.tasks), others, done.limit, now)
        alone = len(bundle.tasks) == 1 and not others and not self._has_alive
        if alone and "Grp" not in done.limit:  # which other users share
            self._refused.append((bundle.name, done.error))

    def _submitted(self, bundle: Bundle, slurm_id: str, now: float) -> None:
        bundle.submitted_at, bundle.doubtful = now, False
        bundle.slurm_id = slurm_id
        try:
            bundle.folder.note_submitted(slurm_id)
        except OSError:  # the next engine asks Slurm for the tag
            return

    def _take_answer(self, done: Done, bundles: Collection[Bundle]) -> None:
        now = self._clock()
        self.facts, self.asked_at = read_facts(done.out), done.began
        self.answer_interval = 0.0 if self._answered_at is None else now - self._answered_at
        self._answered_at, self.trouble, self._has_alive = now, "", has_alive(done.out)
        self._signals &= self.facts.keys()
        self._unwanted &= {key for key, fact in self.facts.items() if not fact.is_over}
        tags = {tag for tag, _ in self.facts}
        for bundle in bundles:
            if bundle.doubtful:
                bundle.doubtful = False
                if bundle.tag in tags:
                    self._submitted(bundle, "", done.began - 1.0)
        unsettled = any(self._is_unsettled(bundle) for bundle in bundles)
        self._poll_at = now + self._interval(done.seconds, hurry=unsettled or now - self._submitted_at < FRESH_SECONDS)

    def _is_unsettled(self, bundle: Bundle) -> bool:
        """Whether Slurm does no more for an attempt whose journal has no end yet."""
        facts = (self.facts.get((bundle.tag, index)) for index in bundle.tasks)
        return bundle.submitted_at is not None and any(fact is None or fact.is_over for fact in facts)

    def _interval(self, seconds: float, *, hurry: bool) -> float:
        """Seconds until the next question: fewer after a submit or while an end is in doubt, more for a slow Slurm."""
        usual = min(self._poll, FRESH_INTERVAL) if hurry else self._poll
        return max(usual, SLOW_FACTOR * seconds) if seconds > SLOW_ANSWER_SECONDS else usual

    # -- commands ---------------------------------------------------------------------------------

    def _start_next(self, bundles: Mapping[str, Bundle], now: float) -> None:
        if self.max_array is None:
            self._commands.configuration()
        elif self.nodes is None:
            self._commands.nodes(self._partition)
        elif ids := self._whole_arrays(self._ids(self._unwanted)):
            self._commands.cancel(list(ids))
            self._unwanted.difference_update(*ids.values())
        elif signals := dict(islice(self._ids(self._signals).items(), IDS_AT_ONCE)):
            self._commands.signal(list(signals), LOOK)
            self._signals -= set(signals.values())
        elif (ready := self._next_ready(bundles, now)) and now >= self._next_submit(now):
            self._submits_left -= 1
            self._commands.submit(ready.tag, ready.options, self._script(ready))
        elif self._asks(bundles) and now >= self._poll_at:
            self._query()

    def _query(self) -> None:
        """Ask for all jobs, or before that for drained nodes."""
        if self.watches_nodes and not self._asked_drained:
            self._commands.drained()
        else:
            if not self._asked_drained:
                self.drained = frozenset()  # the last answer may be old, and the nodes in use again
            self._asked_drained = False
            self._commands.query()

    def _asks(self, bundles: Mapping[str, Bundle]) -> bool:
        """Whether there is something to ask Slurm for: also tasks of bundles that are over, as long as they live."""
        unheard = self._submitted_at >= self.asked_at
        return bool(bundles or self._unwanted or self._ghosts) or unheard

    def _ids(self, keys: set[Key]) -> dict[str, Key]:
        """Slurm's ids of tasks that it goes on with, by the newest answer."""
        return {self.facts[key].job: key for key in keys if key in self.facts and not self.facts[key].is_over}

    def _whole_arrays(self, ids: Mapping[str, Key]) -> dict[str, list[Key]]:
        """The ids for one scancel, each with its tasks: one for an array of which nothing else is wanted."""
        if not ids:
            return {}
        alive = Counter(_base(fact.job) for fact in self.facts.values() if not fact.is_over)
        unwanted = Counter(map(_base, ids))
        arrays: dict[str, list[Key]] = {}
        for number, key in ids.items():
            base = _base(number)
            arrays.setdefault(base if unwanted[base] == alive[base] else number, []).append(key)
        return dict(islice(arrays.items(), IDS_AT_ONCE))

    def _limit_ends(self, bundles: Mapping[str, Bundle], now: float) -> float:
        """When a submit limit may leave room for the next bundle: after its pause, else when more is known."""
        if self._next_ready(bundles, now) is not None:
            return now
        return self.limit.retry_at if self.limit.retry_at > now else self._poll_at

    def _next_ready(self, bundles: Mapping[str, Bundle], now: float) -> Bundle | None:
        """The bundle to submit next, if a submit limit leaves room for it."""
        ready = next(filter(_is_ready, bundles.values()), None)
        most = self.limit.most(now)
        return ready if ready is None or most is None or _in_slurm(bundles) + len(ready.tasks) <= most else None

    def _next_submit(self, now: float) -> float:
        """When the next submit may be made."""
        passed = (now - self._refilled_at) / SUBMIT_INTERVAL
        self._submits_left, self._refilled_at = min(self._submits_left + passed, SUBMITS_AT_ONCE), now
        return now if self._submits_left >= 1 else now + (1 - self._submits_left) * SUBMIT_INTERVAL


def _base(number: str) -> str:
    """The id of the whole array of a task."""
    return number.partition("_")[0]


def _in_slurm(bundles: Mapping[str, Bundle]) -> int:
    """How many tasks Slurm has of these bundles."""
    return sum(len(bundle.tasks) for bundle in bundles.values() if bundle.submitted_at is not None)


def _is_ready(bundle: Bundle) -> bool:
    """Whether a bundle has to be submitted: it is written, and no sbatch may have taken it."""
    return bundle.made and bundle.submitted_at is None and not bundle.doubtful and bool(bundle.tasks)
