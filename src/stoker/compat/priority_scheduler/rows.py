"""The rows of the CSV: which come next, under which numbers, and what the file looks like once they are over."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from stoker.compat.priority_scheduler.file import TaskFile
from stoker.compat.priority_scheduler.numbers import Ticket, Tickets, reserve
from stoker.core.errors import StokerError
from stoker.sheet import BadRow
from stoker.tasklist import Task

CLOSING_PATIENCE = 5.0
"""Seconds for which a file that somebody holds is waited for at the end."""


class Row(Struct, frozen=True):
    """A task with the number that it is trained under."""

    task: Task
    ticket: Ticket
    new: bool
    """Whether no earlier scheduler has begun with it."""

    @property
    def title(self) -> str:
        """The task as the lines of the older tool name it."""
        return f"{self.task.filename} (priority {self.task.priority}) {self.ticket.number}"


class Failure(Struct, frozen=True):
    """A row that did not succeed."""

    what: str
    why: str


class Rows:
    """Takes rows out of the file in batches, and removes each that succeeds; no crash loses one."""

    def __init__(self, file: TaskFile, tickets: Tickets, counter: Path, *, size: int, keep: bool) -> None:
        """`size` is how many make a batch; with `keep` the file stays as it is."""
        self._file = file
        self._tickets = tickets
        self._counter = counter
        self._size = size
        self._keep = keep
        self._handled: Counter[str] = Counter()
        """Those that stay in the file and are not taken again."""
        self._stuck: list[Row] = []
        """Those that succeeded but could not be removed yet."""
        self._elsewhere: list[Ticket] = []
        """Tickets of rows that another engine has in hand."""
        self.done = 0
        self.failures: list[Failure] = []
        self.troubles: list[str] = []

    def next_batch(self, fault: Callable[[Task], str], say: Callable[[str], None]) -> list[Row]:
        """The next rows of the file, the most urgent first; none where there are no more, or trouble."""
        self._remove_stuck()
        try:
            tasks = self._next_tasks(fault, say)
            return self._ticketed(sorted(tasks, key=lambda task: task.priority))
        except (StokerError, OSError) as error:
            self.troubles.append(f"nothing more is taken from {self._file.name}: {_reason(error)}")
            return []

    def succeeded(self, row: Row) -> None:
        """Remove a row."""
        self.done += 1
        if self._keep:
            self._handled[row.task.text] += 1  # its ticket stays, lest it be run again after a crash
        else:
            self._stuck.append(row)
            self._remove_stuck()

    def failed(self, row: Row, why: str) -> None:
        """A row stays in the file, and the next run begins with it anew."""
        self._handled[row.task.text] += 1
        self.failures.append(Failure(row.title, why))
        self._try(lambda: self._tickets.drop([row.ticket]))

    def left_to_others(self, row: Row) -> None:
        """Another engine has it; the next run will see what became of it."""
        self._handled[row.task.text] += 1
        self._elsewhere.append(row.ticket)

    def close(self, *, interrupted: bool) -> None:
        """Leave file and tickets in order: what was interrupted goes on under its number the next time."""
        self._remove_stuck(CLOSING_PATIENCE)
        if not interrupted:
            stay = [*self._elsewhere, *(row.ticket for row in self._stuck)]
            self._try(lambda: self._tickets.drop_all_but(stay))
        self._try(self._file.close)

    @property
    def all_well(self) -> bool:
        """Whether all that was taken has succeeded, and the file tells so."""
        return not (self.failures or self.troubles or self._stuck or self._elsewhere)

    @property
    def unremoved(self) -> Sequence[Row]:
        """Rows that succeeded and are still in the file."""
        return self._stuck

    # -- taking ----------------------------------------------------------------------------------

    def _next_tasks(self, fault: Callable[[Task], str], say: Callable[[str], None]) -> list[Task]:
        found: list[Task] = []
        skipped = self._handled + Counter(row.task.text for row in self._stuck)
        for each in self._file.read():
            if skipped[each.text]:
                skipped[each.text] -= 1
            elif len(found) == self._size:
                break
            elif sentence := each.sentence if isinstance(each, BadRow) else fault(each):
                self._refuse(each, sentence, say)
            elif isinstance(each, Task):
                found.append(each)
        return found

    def _refuse(self, row: Task | BadRow, sentence: str, say: Callable[[str], None]) -> None:
        self._handled[row.text] += 1
        where = f"{self._file.name} line {row.line}"
        self.failures.append(Failure(where, sentence))
        say(f"{where} is left out: {sentence}")

    def _ticketed(self, tasks: Sequence[Task]) -> list[Row]:
        """Each with the ticket that an interrupted run left for it, else with a new one."""
        left = [self._tickets.claim(task.text) for task in tasks]
        texts = [task.text for task, ticket in zip(tasks, left, strict=True) if ticket is None]
        issued = iter(self._tickets.issue(texts, reserve(self._counter, len(texts))) if texts else ())
        return [Row(task, old or next(issued), old is None) for task, old in zip(tasks, left, strict=True)]

    # -- removing --------------------------------------------------------------------------------

    def _remove_stuck(self, patience: float = 0.0) -> None:
        deadline = time.monotonic() + patience
        while self._stuck:
            try:
                self._remove(self._stuck[0])
                self._stuck.pop(0)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return
                time.sleep(0.05)
            except (StokerError, OSError) as error:
                self._complain(_reason(error))
                return

    def _remove(self, row: Row) -> None:
        """Whenever we die, the next run can tell whether the row was removed, even if others have the same text."""
        try:
            self._file.remove(row.task.text, partial(self._tickets.leave, row.ticket))
        except (StokerError, OSError):
            self._try(lambda: self._tickets.restore(row.ticket))
            raise
        self._tickets.drop([row.ticket])

    def _try(self, deed: Callable[[], None]) -> None:
        """The run goes on though something of lesser weight fails."""
        try:
            deed()
        except (StokerError, OSError) as error:
            self._complain(_reason(error))

    def _complain(self, reason: str) -> None:
        sentence = f"{self._file.name} cannot be kept up to date: {reason}"
        if sentence not in self.troubles:
            self.troubles.append(sentence)


def _reason(error: StokerError | OSError) -> str:
    return error.message if isinstance(error, StokerError) else error.strerror or str(error)
