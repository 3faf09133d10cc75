"""The demonstration: a job list for four simulated GPUs that shows every state once."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from stoker.app.jobs.job_files import ParsedJob, RejectedLine
from stoker.app.jobs.options import JobOptions
from stoker.core.job import Ended, JobEvent, Running
from stoker.core.outcomes import Result
from stoker.core.spec import Command
from stoker.engine.foreground import Foreground, View
from stoker.store.logs import last_line

SENTENCE = (
    "about 20 seconds on four simulated GPUs: small jobs are measured, and then share GPUs; one job fails, one is too "
    "big, one takes too long, one is cancelled, three are retried (one after running out of memory), the rest succeed"
)
CANCELLED = "unwanted"
CANCELLED_AFTER_SECONDS = 1.5


class Act(Struct, frozen=True):
    """One job of the demonstration, and its expected end."""

    name: str
    line: str
    """For the shell."""
    options: JobOptions = JobOptions()
    becomes: Result = "done"
    mishaps: int = 0
    """How many of its attempts fail or are lost."""
    spared: bool = False
    """Whether co-tenants cost it an attempt that is not counted."""
    says: str = ""
    """Text in the last line of its log or in the note on its end."""


def train(memory: str, seconds: float, *more: str) -> str:
    """A shell line that runs the demonstration job; `-P` keeps modules of the current directory out of it."""
    words = (sys.executable, "-P", "-m", "stoker.devices.demo_job", "--memory", memory, "--seconds", str(seconds))
    return shlex.join([*words, *more])


def shared(name: str, seconds: float = 3.5, priority: int = 0) -> Act:
    """A job that leaves room for two others on its GPU, once its memory is measured."""
    line = f"exec {train('6600M', seconds, '--load', '30')}"
    return Act(name, line, JobOptions(vram="auto", time="15s", priority=priority))


def fails_at_first(failure: str) -> str:
    """A line that does this in the first attempt and trains in the second."""
    return f'{train("3500M", 1.5)}; [ "$STOKER_ATTEMPT" != 1 ] || {failure}'


_TRACEBACK = "\n".join(
    [
        "Traceback (most recent call last):",
        '  File "train.py", line 88, in <module>',
        "    step(batch)",
        '  File "train.py", line 41, in step',
        '    raise RuntimeError("loss is nan")',
        "RuntimeError: loss is nan",
    ]
)

SCRIPT: Sequence[Act] = (
    Act("vit-l", f"exec {train('13600M', 3.0, '--load', '40')}", JobOptions(vram="20G", time="8s", on="3")),
    Act(
        "greedy",
        f"exec {train('12G', 2.5, '--ramp', '1.5', '--load', '20')}",
        JobOptions(vram="3G", time="8s", on="3"),
        spared=True,
    ),
    Act(
        "lr=10",
        f"{train('12G', 2.5)}; echo {shlex.quote(_TRACEBACK)} >&2; exit 1",
        JobOptions(time="8s"),
        becomes="failed",
        mishaps=1,
        says="RuntimeError: loss is nan",
    ),
    Act(
        "too-big",
        f"exec {train('30G', 4.0, '--ramp', '3')}",
        JobOptions(time="8s"),
        becomes="oom",
        mishaps=1,
        says="needs more than a whole GPU",
    ),
    *[shared(f"lr={rate}") for rate in ("1e-2", "3e-3", "1e-3", "3e-4")],
    Act(
        "endless",
        f"exec {train('16G', 600.0)}",
        JobOptions(time="3s", grace="1s"),
        becomes="timeout",
        mishaps=1,
    ),
    Act(
        "flaky",
        fails_at_first('{ echo "OSError: the file server is away" >&2; exit 1; }'),
        JobOptions(vram="4G", time="8s", retries=1),
        mishaps=1,
    ),
    Act("unlucky", fails_at_first("kill -9 $PPID"), JobOptions(vram="4G", time="8s"), mishaps=1),
    Act(CANCELLED, f"exec {train('20G', 600.0)}", JobOptions(grace="1s", time="5s"), becomes="cancelled"),
    Act("two-gpus", f"exec {train('18G', 2.0)}", JobOptions(gpus=2, time="8s")),
    Act("four-gpus", f"exec {train('22G', 2.5)}", JobOptions(gpus=4, time="8s")),
    Act("leaver", f"sleep 600 & exec {train('2G', 0.5)}", JobOptions(vram="4G", time="4s"), says="left 1 process"),
    *[shared(f"seed={seed}") for seed in range(1, 13)],
    Act("finetune", f"exec {train('21G', 3.5, '--ramp', '2')}"),
    shared("urgent", 2.5, priority=10),
)


def demo_jobs() -> list[ParsedJob | RejectedLine]:
    return [
        ParsedJob(Command((act.line,), "/bin/sh"), "the demonstration", replace(act.options, name=act.name))
        for act in SCRIPT
    ]


class Demonstration:
    """Passes the events of a run on to a view, cancels one job, and compares the ends with the script."""

    def __init__(self, view: View, script: Sequence[Act] = SCRIPT) -> None:
        self.interval = view.interval
        self._view = view
        self._script = script
        self._ends: dict[str, JobEvent] = {}
        view.say(SENTENCE)

    def happened(self, job_event: JobEvent) -> None:
        if isinstance(job_event.job.state, Ended):
            self._ends[job_event.job.name] = job_event
        self._view.happened(job_event)

    def refresh(self, run: Foreground) -> None:
        """Cancel the unwanted job once it runs."""
        for job in run.engine.active_jobs:
            runs = isinstance(job.state, Running) and time.time() - job.state.since >= CANCELLED_AFTER_SECONDS
            if job.name == CANCELLED and runs:
                run.engine.cancel(job.id, None, "cancelled by the demonstration")
        self._view.refresh(run)

    def say(self, text: str) -> None:
        self._view.say(text)

    def close(self) -> None:
        self._view.close()

    def judge(self) -> int:
        """Say which jobs did not end as the script says; returns the exit code."""
        differing = [(act, difference(act, self._ends.get(act.name))) for act in self._script]
        differences = [f"{act.name} {sentence}" for act, sentence in differing if sentence]
        for sentence in differences:
            self.say(f"unexpected: {sentence}")
        if not differences:
            self.say("everything went as planned, failures included")
        return 1 if differences else 0


def difference(act: Act, end: JobEvent | None) -> str:
    """How the end of a job differs from the script, empty where it does not."""
    if end is None:
        return "never ended"
    job, state = end.job, end.job.state
    assert isinstance(state, Ended)
    if state.result != act.becomes:
        return f"is {state.result}, not {act.becomes}"
    if (mishaps := job.failures + job.losses) != act.mishaps:
        return f"had {mishaps} mishaps, not {act.mishaps}"
    if act.spared and not job.shared_failures:
        return "never ran out of memory while sharing a GPU"
    said = state.note or last_line(end.log)
    return "" if act.says in said else f"said {said!r}, not {act.says!r}"
