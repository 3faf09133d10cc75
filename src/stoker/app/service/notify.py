"""The process that tells a user that a batch has ended.

The engine runs it as a job when the last job of a batch has ended. It reads the targets from the queue: they may
contain passwords, and arguments of processes are public. Only this module imports apprise.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from stoker.app.jobs.context import current_user
from stoker.app.jobs.installation import how_to_add_extra
from stoker.app.jobs.option_values import MAIL, mail_program, shown_target
from stoker.core.job import Ended, Job, id_text, single
from stoker.core.outcomes import FAILURES, RESULTS
from stoker.core.text import outcome, printable, title
from stoker.core.units import count_text, duration_text
from stoker.store import queries
from stoker.store.logs import last_line
from stoker.store.paths import Paths
from stoker.store.writer import Store, open_store

SHOWN_FAILURES = 10
MAIL_SECONDS = 30.0
SENT = "sent"


class Message(NamedTuple):
    """Title and text."""

    title: str
    text: str


class NotSent(Exception):
    """A target was not reached, and why."""


def main(arguments: Sequence[str]) -> int:
    """Send the message about a batch, or a sentence about a job, to all targets; 1 where one was not reached."""
    state, number, *sentences = arguments
    with contextlib.closing(open_store(Paths(Path(state)))) as store:
        job = store.job(int(number)) if sentences else None
        jobs = [job] if job else list(single(queries.jobs_of_batch(store, int(number))))
        targets = dict.fromkeys(target for job in jobs for target in job.spec.notify)
        failures = [
            _send(target, message_about(job, sentences[0]) if job else _message_for(target, store, jobs))
            for target in targets
        ]
    for failure in filter(None, failures):
        print(failure, file=sys.stderr)
    return 1 if any(failures) else 0


def _message_for(target: str, store: Store, jobs: Sequence[Job]) -> Message:
    return message_of(store, [job for job in jobs if target in job.spec.notify])


def _send(target: str, message: Message) -> str:
    """Send to one target, and return why that failed."""
    try:
        (send_mail if target == MAIL else send_through_apprise)(target, message)
    except NotSent as error:
        return f"{shown_target(target)}: {error}"
    return ""


def message_of(store: Store, jobs: Sequence[Job]) -> Message:
    host, said = socket.gethostname(), f"{summary(jobs)}"
    lines = [line for job in failed(jobs)[:SHOWN_FAILURES] for line in _failure_lines(store, job)]
    more = len(failed(jobs)) - SHOWN_FAILURES
    lines += [f"... and {more} more"] if more > 0 else []
    if len(jobs) > 1:
        lines.insert(0, f"{title(jobs[0], 200)}, and {count_text(len(jobs) - 1, 'other job')}")
    return Message(f"stoker on {host}: {said}", "\n".join(lines) or title(jobs[0], 200))


def message_about(job: Job, sentence: str) -> Message:
    return Message(f"stoker on {socket.gethostname()}: job {id_text(job)} {sentence}", title(job, 200))


def summary(jobs: Sequence[Job]) -> str:
    """`12 of 12 finished, 1 failed`; for one job its name and how it ended."""
    ended = [job.state for job in jobs if isinstance(job.state, Ended)]
    if len(jobs) == 1 and ended:
        took = duration_text(ended[0].at - jobs[0].submitted)
        return f"job {id_text(jobs[0])} ({title(jobs[0])}): {outcome(ended[0])}, {took} after submit"
    counts = Counter(state.result for state in ended)
    others = [f"{counts[word]} {word}" for word in RESULTS if counts[word] and word != "done" and word not in FAILURES]
    parts = [f"{len(ended)} of {len(jobs)} finished", f"{len(failed(jobs))} failed", *others]
    return ", ".join(parts)


def failed(jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if isinstance(job.state, Ended) and job.state.result in FAILURES]


def _failure_lines(store: Store, job: Job) -> list[str]:
    assert isinstance(job.state, Ended)
    attempts = store.attempts(job.id)
    last = last_line(attempts[-1].errors or attempts[-1].log) if attempts else ""
    lines = [f"{id_text(job)} {title(job, 100)}: {outcome(job.state)}", job.state.note, last]
    return [printable(line) for line in lines if line]


def send_mail(_: str, message: Message) -> None:
    """Mail the user through the sendmail or mail command of this machine."""
    program = mail_program()
    if program is None:
        raise NotSent("neither sendmail nor mail is installed")
    user = current_user()
    words, text = [program, "-s", message.title, user], message.text
    if program.endswith("sendmail"):
        words, text = [program, "-i", user], f"To: {user}\nSubject: {message.title}\n\n{message.text}\n"
    try:
        done = subprocess.run(words, input=text, text=True, capture_output=True, timeout=MAIL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotSent(str(error)) from error
    if done.returncode:
        raise NotSent(f"{program} ended with {done.returncode}: {done.stderr.strip()[:200]}")


def send_through_apprise(target: str, message: Message) -> None:
    try:
        import apprise
    except ImportError:
        raise NotSent(f"apprise is not installed; {how_to_add_extra('notify')}") from None
    with apprise.LogCapture(level=logging.WARNING, fmt="%(message)s") as log:
        sender = apprise.Apprise()
        if not sender.add(target):
            raise NotSent("apprise does not support this URL")
        if not sender.notify(title=message.title, body=message.text):
            reason = log.getvalue().strip().splitlines()
            raise NotSent(reason[-1][:300] if reason else "apprise could not send it")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
