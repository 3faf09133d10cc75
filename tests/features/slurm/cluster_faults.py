"""The engine of a cluster is killed at each step of its work, and Slurm's controller too, under a real Slurm."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from features.slurm.cluster import NAME, ClusterQueue
from stoker.core.job import Ended
from stoker.features.slurm.guard import EVENTS
from stoker.features.slurm.pilot.files import PLAN
from stoker.features.slurm.shared import CLAIMS, JOURNALS, ORDERS, SUBMITTED
from support.cli import until
from support.faults.table import fault
from support.shared_directory import killed_at
from support.slurm import Slurm, running_slurm
from support.storm.background import QueueStorm
from support.storm.jobs import Work
from support.wait import wait_until

STEPS_A_ROUND = 6
TASKS = 4
NO_ENGINE = 3
"""Exit code of a submit whose engine could not be started; its jobs are in the queue."""
END_SECONDS = 240.0
WITNESS = (
    "exec 9>>lock.$STOKER_JOB_ID; flock -n 9 || echo $STOKER_JOB_ID >> doubles; echo $STOKER_JOB_ID >> began; "
    "{work}; echo $STOKER_JOB_ID >> ended; exit {code}"
)
"""A job that notes its start and its end, and holds a lock meanwhile: the kernel sees a second run."""
BEFORE = '[ -e $once ] || { touch $once; kill -9 $PPID; exit 1; }; exec $real "$@"'
DURING = '[ -e $once ] || { touch $once; kill -9 $PPID; sleep 0.5; }; exec $real "$@"'
AFTER = '$real "$@"; code=$?; [ -e $once ] || { touch $once; kill -9 $PPID; }; exit $code'


class Step(NamedTuple):
    """Where the engine dies: at a call on a path of the shared directory, or at a program of Slurm's."""

    call: str = ""
    part: str = ""
    program: str = ""
    text: str = ""


SUBMIT_STEPS = {
    "before sbatch": Step(program="sbatch", text=BEFORE),
    "while sbatch runs": Step(program="sbatch", text=DURING),
    "after sbatch": Step(program="sbatch", text=AFTER),
    "before the submit is noted": Step("open", f"/{SUBMITTED}"),
    "after the submit is noted": Step("fsync+", f"/{SUBMITTED}"),
    "before squeue": Step(program="squeue", text=BEFORE),
    "after squeue": Step(program="squeue", text=AFTER),
}
DIRECT_STEPS = SUBMIT_STEPS | {
    "recorded, before the first file": Step("mkdir", f"/{JOURNALS}"),
    "before the orders have their name": Step("rename", f"/{ORDERS}"),
    "after the orders have their name": Step("rename+", f"/{ORDERS}"),
    "a journal is read": Step("read", f"/{JOURNALS}/"),
    "ended, before the files are removed": Step("unlink", f"/{ORDERS}"),
    "taken back, before that is recorded": Step("mkdir+", f"/{CLAIMS}/"),
}
PILOT_STEPS = SUBMIT_STEPS | {
    "before the first file of a pilot": Step("mkdir", f"/{CLAIMS}"),
    "after the plan has its name": Step("rename+", f"/{PLAN}"),
    "recorded, before jobs are ordered": Step("open", f"/{ORDERS}"),
    "after jobs are ordered": Step("fsync+", f"/{ORDERS}"),
    "events are read": Step("read", f"/{EVENTS}"),
}
"""The steps of handing jobs over (ARCHITECTURE.md, Clusters), by what the engine does there."""


NEW_PILOT_STEPS = {
    *("before sbatch", "while sbatch runs", "after sbatch", "before the submit is noted", "after the submit is noted"),
    *("before the first file of a pilot", "after the plan has its name"),
}
"""Steps that only a new pilot takes."""


def replace_program(lab: ClusterQueue, name: str, text: str, once: Path) -> dict[str, str]:
    """Variables with a script before one of Slurm's programs, which it finds as $real."""
    real = shutil.which(name, path=lab.environment["PATH"])
    program = once.with_name(f"{once.name}.bin") / name
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nreal={real}\nonce={once}\n{text}\n")
    program.chmod(0o700)
    return {"PATH": f"{program.parent}:{lab.environment['PATH']}"}


class Heads:
    """A queue on a cluster whose engines die one after the other."""

    def __init__(self, lab: ClusterQueue) -> None:
        self.lab = lab
        self.jobs: dict[int, int] = {}
        """Exit codes that jobs must have."""
        self.cancelled: list[int] = []
        self.kills: Counter[str] = Counter()

    def kill_at(self, name: str, step: Step) -> None:
        """Let the next engine die at a step of its work."""
        once = self.lab.home / f"dead-{sum(self.kills.values())}-{len(self.jobs)}"
        if name in NEW_PILOT_STEPS and self.lab.slurm.run("squeue", "-h", "-n", "stoker-pilot"):
            self.wait_jobs()
            self.lab.slurm.run("scancel", "-n", "stoker-pilot")  # else the jobs go into the one that runs
            wait_until(lambda: not self.lab.slurm.run("squeue", "-h", "-n", "stoker-pilot"))
        with self._engine_that_dies(step, once):
            if step.part == f"/{CLAIMS}/":
                self._cancel_one_that_waits()
            else:
                self.submit("sleep 0.3")
            wait_until(once.exists)
        self.kills[f"cluster engine: {name}"] += 1
        self.lab("status")  # brings an engine back

    def submit(self, work: str, *options: str, code: int = 3, tasks: int = TASKS) -> None:
        """Submit an array; the engine that starts for it may die before it works, which the submit tells."""
        line = WITNESS.format(work=work, code=code)
        words = ["submit", "-M", NAME, "--parsable", "-a", f"0-{tasks - 1}", *options, "--", "sh", "-c", line]
        done = self.lab(*words)
        assert done.code in (0, NO_ENGINE), done
        self.jobs |= dict.fromkeys(range(int(done.out), int(done.out) + tasks), code)

    @contextlib.contextmanager
    def _engine_that_dies(self, step: Step, once: Path) -> Iterator[None]:
        if self.lab.engine is not None:
            self.lab.kill_engine()
        before = self.lab.environment
        self.lab.environment = {**before, **self._harm(step, once)}
        try:
            yield
        finally:
            self.lab.environment = before

    def _harm(self, step: Step, once: Path) -> Mapping[str, str]:
        if step.program:
            return replace_program(self.lab, step.program, step.text, once)
        return killed_at(self.lab.shared, step.call, step.part, once)

    def _cancel_one_that_waits(self) -> None:
        """All GPUs are taken while a job is cancelled."""
        gate = f"gate{len(self.jobs)}"
        blocker = self.lab.submit("-G", "4", WITNESS.format(work=until(gate), code=0))
        self.lab.wait_word("running", blocker)
        waiting = self.lab.submit("-G", "4", WITNESS.format(work="true", code=0))
        self.lab.wait_word("starting", waiting)
        self.lab("cancel", str(waiting))
        (self.lab.cwd / gate).touch()
        self.jobs[blocker] = 0
        self.cancelled.append(waiting)

    def findings(self, *, losses: bool = False) -> list[str]:
        """What was promised and did not happen, once all jobs are over; `losses`: recorded ones may run again."""
        lab = self.lab
        found = [f"double run: the kernel saw job {job} beside another run" for job in lab.lines("doubles")]
        began, ended = (Counter(map(int, lab.lines(name))) for name in ("began", "ended"))
        for job, code in self.jobs.items():
            state = lab.job(job).state
            if not isinstance(state, Ended):
                shown = lab.slurm.attempt("squeue", "-h", "-t", "all", "-o", "%i %T %r %N %k").stdout.splitlines()
                found.append(f"stuck: job {job} is {lab.word(job)}; squeue: {shown[-20:]}")
            elif state.code != code:
                found.append(f"job {job} has {state.result} {state.code} instead of {code}")
            allowed = 1 + (lab.job(job).losses if losses else 0)
            if began[job] > allowed or ended[job] > 1:
                found.append(f"job {job} began {began[job]} times and ended {ended[job]} times")
            if not ended[job]:
                found.append(f"lost: job {job} never came to its end")
        found += [f"job {job} ran {began[job]} times, cancelled before" for job in self.cancelled if began[job]]
        return found

    def wait_jobs(self, meanwhile: Callable[[], object] = bool) -> None:
        """Wait until all jobs are over, and do something again and again; `findings` tells which are not."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: (meanwhile(), self.lab("status"), self._all_over())[-1], END_SECONDS)

    def report(self, trial: QueueStorm, *, losses: bool = False) -> None:
        """Tell the trial what was broken and what was killed."""
        trial.broken += self.findings(losses=losses)
        trial.disruptions.update(self.kills)
        trial.disruptions["cluster job"] += len(self.jobs)

    def _all_over(self) -> bool:
        return all(isinstance(self.lab.job(job).state, Ended) for job in [*self.jobs, *self.cancelled])


@contextlib.contextmanager
def heads(home: Path, slurm: Slurm, *, pilots: bool) -> Iterator[Heads]:
    """A queue whose jobs go directly to Slurm, or into pilots on simulated GPUs."""
    home.mkdir(exist_ok=True)
    ways: Mapping[str, object] = {"sim": "4x24G", "pilots": "always", "pilots_max": 1} if pilots else {}
    with contextlib.closing(ClusterQueue(home, slurm, **ways)) as lab:  # type: ignore[arg-type]
        yield Heads(lab)


@fault(
    "kill-cluster-engine", "each job on a cluster runs once, at whatever step its engine dies", needs=("slurm", "cc")
)
def kill_cluster_engine(trial: QueueStorm) -> None:
    """Steps by chance, with and without pilots."""
    trial.submit([Work(trial.next_number)])
    pilots = trial.dice.random() < 0.5
    steps = PILOT_STEPS if pilots else DIRECT_STEPS
    with running_slurm(nodes=1) as slurm, heads(trial.home / "cluster", slurm, pilots=pilots) as queue:
        for name in trial.dice.sample(sorted(steps), STEPS_A_ROUND):
            queue.kill_at(name, steps[name])
        queue.wait_jobs()
        queue.report(trial)


@fault(
    "kill-controller",
    "Slurm's controller forgets jobs and starts ended ones again; no job runs twice, and none is forgotten",
    needs=("slurm",),
)
def kill_controller(trial: QueueStorm) -> None:
    """While tasks run, at a moment by chance; in a campaign twice, and with tasks that Slurm kills for it."""
    trial.submit([Work(trial.next_number)])
    with (
        running_slurm(nodes=2, kill_wait=1) as slurm,
        heads(trial.home / "cluster", slurm, pilots=False) as queue,
    ):
        for longest in (0.5, 0.5, 8.0, 0.5, 8.0, 0.5) if trial.thorough else (0.5, 0.5, 0.5):
            # Before another code than 0 is written, the node waits a moment for a TERM of Slurm's.
            queue.submit(f"sleep {trial.dice.uniform(0.2, longest):.2f}", "-G", "1", code=0)
        for count in (4, 12) if trial.thorough else (4,):
            number = count + trial.dice.randrange(4)
            wait_until(lambda least=number: _have_begun(queue, least), pause=0.3)  # type: ignore[misc]
            slurm.stop_controller(signal.SIGKILL)
            slurm.start_controller()
            trial.disruptions["controller"] += 1
        queue.wait_jobs(lambda: resume_nodes(slurm))
        queue.report(trial, losses=True)


def _have_begun(queue: Heads, least: int) -> bool:
    resume_nodes(queue.lab.slurm)
    return len(queue.lab.lines("began")) >= least


def resume_nodes(slurm: Slurm) -> None:
    """Do as an administrator does: Slurm drains nodes, for example for "Duplicate jobid"."""
    slurm.attempt("scontrol", "update", "nodename=ALL", "state=resume")
