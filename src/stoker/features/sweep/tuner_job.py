"""The tuner of a sweep, a job that reads values, stops trials early, and chooses trials for adaptive methods."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

import msgspec
from msgspec.structs import replace

from stoker.app.jobs.installation import how_to_add, how_to_add_extra
from stoker.core.errors import StokerError, UsageError
from stoker.core.launch import log_pattern
from stoker.core.spec import Command, JobSpec, NewJob, Resources
from stoker.features.sweep.model.objective import Objective, parse_objectives
from stoker.features.sweep.model.points import ADAPTIVE
from stoker.features.sweep.model.pruning import Pruner, parse_pruner
from stoker.features.sweep.model.record import SweepSpec
from stoker.features.sweep.model.space import Params
from stoker.features.sweep.model.template import placeholders
from stoker.store.paths import Paths

RESTARTS = 1000
TRY_AGAIN = 75
"""Exit code of a tuner that has to be started again."""
RETRIED_CODES = (str(TRY_AGAIN), "1", "129", "137", "143")
"""Exit codes after which the next tuner continues: its own, that of a Python that could not start, and those of an
tuner that was killed by HUP, KILL or TERM, and not cancelled."""
OF_ONE_TRIAL = ("trial", "i", "results", "name", "id")
"""Placeholders that differ between all trials."""


class StudyLost(StokerError):
    """The study was deleted or cut while the tuner ran; it is made again from the queue."""


def needs_tuner(sweep: SweepSpec) -> bool:
    """Whether a sweep has values to read, or trials to choose or to stop."""
    return bool(sweep.objectives or sweep.pruners or sweep.method in ADAPTIVE)


def check_tuning(sweep: SweepSpec) -> tuple[tuple[Objective, ...], list[Pruner]]:
    """The objectives and rules of a sweep; refuses what cannot work, before anything is queued."""
    objectives = parse_objectives(sweep.objectives, sweep.goal or None)
    rules = [parse_pruner(text) for text in sweep.pruners]
    if not objectives and (rules or sweep.method in ADAPTIVE):
        what = f"--method {sweep.method}" if sweep.method in ADAPTIVE else f"--pruner {sweep.pruners[0]}"
        raise UsageError(f"{what} needs an objective", "name a value that trials report: --objective val_loss:min")
    for objective in objectives:
        _check_file(sweep, objective)
    if sweep.method in ADAPTIVE and sweep.results and not {"trial", "i"} & set(placeholders([sweep.results])):
        raise UsageError(
            f"with --method {sweep.method} two trials may have the same parameters and share a folder",
            f"put {{trial}} into it: --results {sweep.results}-{{trial}}",
        )
    if sweep.method in ADAPTIVE:
        _check_packages(sweep.method, len(objectives))
    if any(objective.source == "tensorboard" for objective in objectives) and find_spec("tensorboard") is None:
        raise UsageError("tensorboard is not installed", how_to_add_extra("tensorboard"))
    return objectives, rules


def _check_file(sweep: SweepSpec, objective: Objective) -> None:
    """Refuse a file that all trials would write to."""
    if objective.source in ("report", "regex"):
        return
    names = {parameter.name for parameter in sweep.space.parameters}
    used = set(placeholders([objective.where]))
    if used & set(OF_ONE_TRIAL) or (names <= used and sweep.repeat == 1):
        return
    raise UsageError(
        f"all trials would write {objective.name} to the same file {objective.where}",
        f"give each its own: {objective.name}={objective.source}:runs/{{trial}}/{objective.where}, also in the command",
    )


def wandb_starter(
    objectives: Sequence[Objective], nested: Sequence[str], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """The command that runs a script of Weights & Biases; refuses values that wandb would not write.

    `nested` are the parameters that are tables of others.
    """
    logged = [objective.name for objective in objectives if objective.source == "wandb"]
    if logged and environment.get("WANDB_MODE") == "disabled":
        raise UsageError(
            f"with WANDB_MODE=disabled wandb writes no {logged[0]}", "unset it, or let the script call stoker.report()"
        )
    return sys.executable, "-P", "-m", "stoker.features.sweep.wandb_trial", *(f"--nested={name}" for name in nested)


OLDEST_OPTUNA = 5
"""As the extra `sweep` asks for."""
PACKAGES = {"tpe": ("optuna",), "gp": ("optuna", "torch", "scipy"), "cmaes": ("optuna", "cmaes")}


def _check_packages(method: str, objectives: int) -> None:
    from importlib.metadata import version

    missing = [package for package in PACKAGES[method] if find_spec(package) is None]
    if "optuna" in missing:
        raise UsageError(f"--method {method} needs optuna, which is not installed", how_to_add_extra("sweep"))
    if int((installed := version("optuna")).partition(".")[0]) < OLDEST_OPTUNA:
        raise UsageError(
            f"--method {method} needs optuna {OLDEST_OPTUNA} or newer; this Python has {installed}",
            f"{how_to_add_extra('sweep')}; hydra-optuna-sweeper works with it if installed with --no-deps",
        )
    if missing:
        raise UsageError(
            f"--method {method} needs {' and '.join(missing)}, which this Python does not have",
            f"{how_to_add(*missing)}, or use --method tpe",
        )
    if method == "cmaes" and objectives > 1:
        raise UsageError("--method cmaes has one objective only", "use --method tpe")


def first_points(sweep: SweepSpec, count: int) -> list[Params]:
    """The points that an adaptive method chooses before it knows results."""
    import subprocess

    words = [sys.executable, "-P", "-m", "stoker.features.sweep.tuner.preview", str(count)]
    done = subprocess.run(words, input=msgspec.json.encode(sweep), capture_output=True, check=False)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise StokerError(f"--method {sweep.method} cannot choose points: {last}", "check what pip list says of optuna")
    return [msgspec.json.decode(line, type=Params) for line in done.stdout.splitlines()]


def tuner_job(paths: Paths, sweep: SweepSpec, trial_spec: JobSpec) -> NewJob:
    """The job; it finds its sweep by its own id."""
    spec = replace(
        trial_spec,
        resources=Resources(gpus=0),
        out=log_pattern(paths.logs),
        err="",
        limit=None,
        signal=None,
        retries=RESTARTS,
        retry_on=RETRIED_CODES,
        requeue=True,
        always_requeue=True,
        at_once=None,
        array_tasks=None,
        cluster="",
        nodes=1,
        code="",
        cap=False,
        mps_optional=False,
        preemptible="",
        urgent=False,
        fill=False,
        notify=(),
    )
    words = (sys.executable, "-P", "-m", "stoker.features.sweep.tuner", str(paths.state))
    return NewJob(Command(words), spec, f"{sweep.name or 'sweep'} tuner")
