"""Command, variables and output files of an attempt, and the on-finish job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.device import Device
from stoker.core.job import Ended, Job, id_text, resources_of
from stoker.core.ranges import run_text
from stoker.core.spec import LIMIT_FIELDS, Command, EarlySignal, JobSpec, NewJob, Resources, amount_on
from stoker.core.warm import WarmRun

INHERIT = "-"
_NO_PREALLOCATION = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Keeps TensorFlow and JAX from allocating most of the GPU at start."""
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Both names of PyTorch's variable. Which one has precedence depends on the version."""
_FRACTION = "per_process_memory_fraction"
_FRACTION_SETTING = rf"{_FRACTION}:[\d.]+,?"
_PARTS = 10_000
NOTIFICATION_SECONDS = 60.0
"""Seconds; a server that does not answer must not keep the engine alive."""
_LABEL = 40
_FILE_NAME = 120
"""Bytes of a name in a path; the file system takes 255 for all of it."""
_PLACEHOLDER = "%([jAalxu%])"
ON_FINISH_SECONDS = 600.0
"""Seconds; an on-finish job that hangs must not keep the engine alive for ever."""


MPS_GIVEN = "STOKER_MPS_GIVEN"
"""The names of the variables that Stoker set, so that a job which submits others does not pass them on."""


class LaunchOrder(Struct, frozen=True):
    """Everything a worker needs to run one attempt."""

    attempt: str
    words: tuple[str, ...]
    shell: str
    cwd: str
    umask: int
    environment: str
    extra: dict[str, str]
    out: str
    err: str
    limit: float | None
    grace: float
    mps_terminate: tuple[str, ...] = ()
    """A command to run before the attempt is killed; the ids of its processes are appended."""
    signal: EarlySignal | None = None
    """Sent before the limit."""
    first_output: float | None = None
    silent: float | None = None
    again: bool = False
    """Whether an earlier attempt may have read the standard input."""
    terminal: str = ""
    """Path of the terminal that becomes the controlling one; in place of `out` and `err`."""
    warm: WarmRun | None = None
    """How it is forked from a template, if its worker has one."""
    cold: str = ""
    """Why it is not forked from a template, although the user wants that."""
    own_log: bool = False
    """Whether `out` is in Stoker's own directory, so that it is never the job's fault if that cannot be written."""


def attempt_key(job_id: int, number: int) -> str:
    """The key of an attempt in orders and journals."""
    return f"{job_id}.{number}"


def parse_key(key: str) -> tuple[int, int]:
    job, _, number = key.partition(".")
    return int(job), int(number)


def variables(job: Job, devices: Sequence[Device], base: Mapping[str, str]) -> dict[str, str]:
    """Variables added to the submitter's environment `base`. Defaults never replace the user's values; devices do."""
    given = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **(_NO_PREALLOCATION if job.spec.resources.shares else {})}
    return {
        **{name: value for name, value in given.items() if name not in base},
        **dict(job.spec.extra_env),
        **(_capped(job, devices, {**base, **dict(job.spec.extra_env)}) if job.spec.cap else {}),
        **_device_variables(devices),
        "STOKER_JOB_ID": str(job.id),
        "STOKER_JOB_NAME": job.name,
        "STOKER_ATTEMPT": str(job.run),
        "STOKER_GPU_IDS": ",".join(device.label for device in devices),
        "STOKER_WORK_DIR": job.spec.cwd,
        **({"STOKER_GROUP": job.spec.group} if job.spec.group else {}),
        **_reserved(job, devices),
        **_preemption_variables(job),
        **array_variables(job),
        **_member_variables(job),
        **_slurm_variables(job, devices),
    }


PREEMPTION_VARIABLES = ("STOKER_SAVE_SIGNAL", "STOKER_RESTART", "STOKER_PREEMPTED")


def _preemption_variables(job: Job) -> dict[str, str]:
    """How the job will be asked to save its state, and how often it gave way before."""
    signal, restart, preempted = PREEMPTION_VARIABLES
    asked = {signal: job.spec.save_signal} if job.spec.preemptible == "save" else {}
    return asked | ({restart: str(job.preemptions), preempted: "1"} if job.preemptions else {})


def _reserved(job: Job, devices: Sequence[Device]) -> dict[str, str]:
    """The memory reserved for the job, if it shares its GPUs."""
    amounts = [amount for device in devices if (amount := amount_on(resources_of(job), device)) is not None]
    return {"STOKER_VRAM": str(min(amounts))} if amounts else {}


def _capped(job: Job, devices: Sequence[Device], own: Mapping[str, str]) -> dict[str, str]:
    """Limit PyTorch to the reserved memory, in addition to the user's allocator settings."""
    parts = [_part(resources_of(job), device) for device in devices]
    settings = {name: own[name] for name in _ALLOCATOR if name in own} or {_ALLOCATOR[0]: ""}
    if any(device.whole is not None for device in devices):  # a limit in them is that of the parent job
        settings = {name: re.sub(_FRACTION_SETTING, "", value) for name, value in settings.items()}
    if not parts or 0 in parts or any(_FRACTION in value for value in settings.values()):
        return {}
    cap = f"{_FRACTION}:{min(parts) / _PARTS:.4f}"
    return {name: f"{kept},{cap}" if (kept := value.strip(", ")) else cap for name, value in settings.items()}


def _part(resources: Resources, device: Device) -> int:
    """The reserved part of a device in ten-thousandths; 0 if all of it is reserved."""
    amount = amount_on(resources, device)
    whole = device.whole or device.memory
    return 0 if amount is None or not whole else max(1, amount * _PARTS // whole)


def array_variables(job: Job) -> dict[str, str]:
    return {} if job.task is None else {"STOKER_ARRAY_ID": str(job.array), "STOKER_ARRAY_INDEX": str(job.task)}


MEMBER_VARIABLES = ("STOKER_SWEEP", "STOKER_TRIAL", "STOKER_PARAMS")
"""Batch, number and parameters of a job with parameters, by the names that scripts know."""


def _member_variables(job: Job) -> dict[str, str]:
    if job.member is None:
        return {}
    values = str(job.member.batch), str(job.member.number), job.member.params
    return dict(zip(MEMBER_VARIABLES, values, strict=True))


SLURM_VARIABLES = (
    *("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
    *("SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX"),
    *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME", "SLURM_SUBMIT_DIR", "SLURM_CPUS_PER_TASK"),
    *("SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_RESTART_COUNT"),
)
"""Variables of Slurm that jobs may get; all are true on one machine.

SLURM_NTASKS, SLURM_PROCID and the lists of nodes are left out: frameworks that find them wait for processes that only
srun would start.
"""


def _slurm_variables(job: Job, devices: Sequence[Device]) -> dict[str, str]:
    """Tasks of all arrays get Slurm's index; a script with #SBATCH lines gets the rest too."""
    given: dict[str, object] = {}
    if job.task is not None:
        given |= {"ARRAY_JOB_ID": job.array, "ARRAY_TASK_ID": job.task}
    if job.task is not None and job.spec.array_tasks:
        given |= zip(("ARRAY_TASK_COUNT", "ARRAY_TASK_MIN", "ARRAY_TASK_MAX"), job.spec.array_tasks, strict=True)
    if job.spec.slurm_submit_dir:
        script = dict(job.spec.extra_env).get("STOKER_SCRIPT", "")
        given |= {"JOB_ID": job.id, "JOBID": job.id, "JOB_NAME": job.name or script.rpartition("/")[2]}
        given |= {"SUBMIT_DIR": job.spec.slurm_submit_dir}
        given |= {"JOB_GPUS": ",".join(gpu.label for gpu in devices), "GPUS_ON_NODE": len(devices)} if devices else {}
        given |= {"RESTART_COUNT": job.tries} if job.tries else {}
    return {f"SLURM_{name}": str(value) for name, value in given.items()}


def _device_variables(devices: Sequence[Device]) -> dict[str, str]:
    """The variables of the devices' own kind, else CUDA_VISIBLE_DEVICES."""
    if not devices or not devices[0].variables:
        return {"CUDA_VISIBLE_DEVICES": ",".join(device.visible for device in devices)}
    names = [name for name, _ in devices[0].variables]
    return {name: ",".join(dict(device.variables)[name] for device in devices) for name in names}


def without_given(environment: Mapping[str, str]) -> Mapping[str, str]:
    """The environment without the variables that make the present job a client: they say nothing of other jobs."""
    if MPS_GIVEN not in environment:
        return environment
    ours = {MPS_GIVEN, *environment[MPS_GIVEN].split(",")}
    return {name: value for name, value in environment.items() if name not in ours}


def order_of(
    job: Job, outputs: tuple[str, str], extra: Mapping[str, str], devices: Sequence[Device] = (), own_logs: str = ""
) -> LaunchOrder:
    """The order for the job's newest attempt; `own_logs` is Stoker's directory of logs, with a slash at its end."""
    return LaunchOrder(
        attempt=attempt_key(job.id, job.attempts),
        words=device_words(_words(job, extra) if job.spec.fill else job.command.words, devices),
        shell=job.command.shell,
        cwd=job.spec.cwd,
        umask=job.spec.umask,
        environment=job.spec.environment,
        extra=dict(extra),
        out=outputs[0],
        err=outputs[1],
        **{name: getattr(job.spec, name) for name in LIMIT_FIELDS},
        again=job.tries > 0,
        terminal=job.spec.terminal,
        own_log=bool(own_logs) and outputs[0].startswith(own_logs),
    )


def device_words(words: tuple[str, ...], devices: Sequence[Device]) -> tuple[str, ...]:
    """The words of a command, with those replaced that the devices define."""
    if not devices or not devices[0].words:
        return words
    values = dict(devices[0].words)
    return tuple([values.get(word, word) for word in words])


def _words(job: Job, extra: Mapping[str, str]) -> tuple[str, ...]:
    """The command with its placeholders replaced."""
    return fill(job.command.words, {**_values(job), "gpu": extra["STOKER_GPU_IDS"]})


def _values(job: Job) -> dict[str, str]:
    """The placeholders that are known before the job has devices."""
    index = {} if job.task is None else {"i": str(job.task)}
    return {"id": str(job.id), "name": job.name, **index}


def shown_command(job: Job) -> Command:
    """The command with the placeholders replaced that do not depend on devices."""
    return replace(job.command, words=fill(job.command.words, _values(job))) if job.spec.fill else job.command


def fill(words: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Replace every `{name}` of the values in the words. Placeholders inside a value are not replaced.

    A shell's `${name}` and all other braces stay, so JSON and scripts are not changed.
    """
    if not values:
        return tuple(words)
    placeholders = _known(tuple(values))
    return tuple(placeholders.sub(lambda match: values[match[1]], word) if "{" in word else word for word in words)


@lru_cache(maxsize=16)
def _known(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(r"(?<!\$)\{(" + "|".join(map(re.escape, names)) + r")\}")


def literal(path: str) -> str:
    """The path as a pattern that stands for nothing but itself."""
    return path.replace("%", "%%")


def log_pattern(directory: object, *, label: bool = False) -> str:
    """One log file per job in a directory, named after its id, with a label for users who look into it."""
    return literal(str(directory)) + ("/%j-%l.log" if label else "/%j.log")


def output_paths(job: Job, user: str) -> tuple[str, str]:
    """Files of standard output and error; retries get separate files."""
    out = _output_path(job.spec.out, job, user)
    return out, _output_path(job.spec.err, job, user) if job.spec.err else out


def _output_path(pattern: str, job: Job, user: str) -> str:
    if pattern == INHERIT or pattern.startswith("/dev/"):
        return pattern
    names = {"j": str(job.id), "A": str(job.array or job.id), "a": str(job.task or 0), "u": user, "%": "%"}
    spoken = {"x": job.name, "l": _label(job)}
    path = re.sub(
        _PLACEHOLDER, lambda match: names[match[1]] if match[1] in names else file_name(spoken[match[1]]), pattern
    )
    return f"{path}.{job.tries}" if job.tries else path


def _label(job: Job) -> str:
    """Name and index of a job; without a name, the beginning of its command."""
    task = () if job.task is None else (str(job.task),)
    words = " ".join(fill(job.command.words, {"i": task[0]} if task else {}))
    return "-".join((job.name, *task)) if job.name else re.sub(r"[^\w.=+-]+", "_", words).strip("_")[:_LABEL]


def file_name(name: str) -> str:
    """A text as part of a file name: without slashes, leading dots and other special characters."""
    plain = re.sub(r"[^\w.,=+-]", "_", name).lstrip(".")
    return plain.encode(errors="replace")[:_FILE_NAME].decode(errors="ignore") or "job"


def on_finish_job(job: Job, log: str, line: str, shell: str, out: str) -> NewJob | None:
    """The job that runs a shell line after the end of another; an on-finish job has none itself.

    Tasks and lines that end together before they start have one.
    Its variables are part of the command, so that the on-finish jobs of a batch share one spec.
    """
    if job.spec.role == "hook" or not isinstance(job.state, Ended):
        return None
    assignments = (
        f"STOKER_JOB_ID={job.id}",
        f"STOKER_JOB_IDS={run_text(range(job.id, job.last + 1))}",
        f"STOKER_JOB_NAME={job.name}",
        f"STOKER_RESULT={job.state.result}",
        f"STOKER_EXIT_CODE={'' if job.state.code is None else job.state.code}",
        f"STOKER_LOG={log}",
        *(f"{name}={value}" for name, value in array_variables(job).items()),
    )
    spec = JobSpec(
        resources=Resources(gpus=0),
        cwd=job.spec.cwd,
        environment=job.spec.environment,
        extra_env=job.spec.extra_env,
        umask=job.spec.umask,
        limit=ON_FINISH_SECONDS,
        out=out,
        role="hook",
    )
    return NewJob(Command(("/usr/bin/env", *assignments, shell, "-c", line)), spec, f"on_finish {id_text(job)}")


def notification_name(batch: int) -> str:
    return f"notify {batch}"


def notification_job(job: Job, program: Sequence[str], out: str, sentence: str = "") -> NewJob:
    """The job that tells the user that the batch of a job has ended, or a sentence about the job.

    The program gets the number of the batch, or that of the job and the sentence.
    """
    spec = JobSpec(
        resources=Resources(gpus=0),
        environment=job.spec.environment,
        umask=job.spec.umask,
        limit=NOTIFICATION_SECONDS,
        grace=2.0,
        out=out,
        role="hook",
    )
    if sentence:
        return NewJob(Command((*program, str(job.id), sentence)), spec, f"notify about {job.id}")
    return NewJob(Command((*program, str(job.batch))), spec, notification_name(job.batch))
