"""The measured programs: names, how each runs a list on four slots, and where to get it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SLOTS = 4
SHELL = "/bin/sh"
LIST = "list"
"""Name of the list of commands in the directory of a run; it is also the standard input."""

XARGS = "xargs"
PARALLEL = "GNU parallel"
SIMPLE_GPU_SCHEDULER = "simple-gpu-scheduler"
HYPERQUEUE = "HyperQueue"
TASK_SPOOLER = "task-spooler"
GFLOW = "gflow"
STOKER = "stoker run"
STOKER_QUEUE = "stoker submit"
STOKER_DOOR = "stoker's simple_gpu_scheduler"

HERE = Path(__file__).resolve().parent
OURS = Path(sys.prefix) / "bin"
COMPETITORS = Path(sys.prefix) / "bench"
"""A virtual environment for competitors, so that Stoker never imports their packages."""
_DEVICES = [str(slot) for slot in range(SLOTS)]
_TASK_SPOOLER_SCRIPT = f"""
tsp -S {SLOTS}
while read -r line; do tsp -n {SHELL} -c "$line"; done
while tsp | grep -q -e running -e queued; do sleep 0.01; done
tsp -K
"""


@dataclass(frozen=True)
class Program:
    """A program that runs a list of commands on four slots."""

    name: str
    words: tuple[str, ...]
    slot: str = ""
    """The expression by which a command learns its slot; empty where it cannot."""
    most: int = 0
    """The most commands in a run, for programs that would take hours; these have one round."""
    tells_seconds: bool = False
    """Whether it prints its own seconds, without the start of a server."""
    needs: str = ""
    """The program file that it needs, where that is not the first word."""
    package: str = ""
    """The package for pip."""
    hint: str = ""
    """How to install it by hand."""

    @property
    def installed(self) -> bool:
        """Whether it is there to be run."""
        return shutil.which(self.needs or self.words[0]) is not None


PROGRAMS = (
    Program(
        XARGS,
        ("xargs", "-d", "\n", f"-P{SLOTS}", "--process-slot-var=SLOT", "-I{}", SHELL, "-c", "{}"),
        slot="$SLOT",
        hint="install findutils",
    ),
    Program(PARALLEL, ("parallel", f"-j{SLOTS}"), slot="$PARALLEL_JOBSLOT", hint="apt install parallel"),
    Program(TASK_SPOOLER, (SHELL, "-c", _TASK_SPOOLER_SCRIPT), needs="tsp", hint="apt install task-spooler"),
    Program(
        SIMPLE_GPU_SCHEDULER,
        (str(COMPETITORS / "bin" / "simple_gpu_scheduler"), "--gpus", *_DEVICES),
        slot="$CUDA_VISIBLE_DEVICES",
        package="simple-gpu-scheduler==0.1.4",
        hint="pip could not install it, see above",
    ),
    Program(
        HYPERQUEUE,
        (str(COMPETITORS / "bin" / "python"), str(HERE / "run_hyperqueue.py"), str(SLOTS), LIST),
        slot="$HQ_CPUS",
        tells_seconds=True,
        package="hyperqueue==0.27.0",
        hint="pip could not install it, see above",
    ),
    Program(
        GFLOW,
        (sys.executable, str(HERE / "run_gflow.py"), LIST),
        slot="$CUDA_VISIBLE_DEVICES",
        most=2 * SLOTS,
        tells_seconds=True,
        needs=str(COMPETITORS / "bin" / "gflowd"),
        package="runqd==0.4.18",
        hint="pip could not install it, see above",
    ),
    Program(
        STOKER_DOOR,
        (str(OURS / "simple_gpu_scheduler"), "--gpus", *_DEVICES),
        slot="$CUDA_VISIBLE_DEVICES",
        hint="make test",
    ),
    Program(
        STOKER,
        (str(OURS / "stoker"), "run", "--devices", ",".join(_DEVICES), "--no-bar", LIST),
        slot="$CUDA_VISIBLE_DEVICES",
        hint="make test",
    ),
    Program(
        STOKER_QUEUE,
        (sys.executable, str(HERE / "run_queue.py"), LIST),
        slot="$CUDA_VISIBLE_DEVICES",
        tells_seconds=True,
        hint="make test",
    ),
)
"""Every program that a round can hold, ours last."""


def program_named(name: str) -> Program:
    """The program of that name."""
    return next(program for program in PROGRAMS if program.name == name)


def install(program: Program) -> None:
    """Install a competitor from PyPI, once, into the competitors' environment."""
    python = COMPETITORS / "bin" / "python"
    mark = COMPETITORS / program.package
    if not program.package or mark.exists():
        return
    print(f"installing {program.package} into {COMPETITORS}", file=sys.stderr)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", COMPETITORS], check=True)
    if subprocess.run([python, "-m", "pip", "install", "--quiet", program.package], check=False).returncode == 0:
        mark.touch()


def environment(directory: Path) -> dict[str, str]:
    """The same small environment for every program: one shell, and nothing of an earlier run."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "HOME": str(directory),
        "SHELL": SHELL,
        "PARALLEL_SHELL": SHELL,
        "STOKER_STATE": str(directory / "state"),
        "STOKER_LEDGER": str(directory / "ledger"),
        "TS_SOCKET": str(directory / "tsp"),
        "TS_MAXFINISHED": "10",
        "TMPDIR": str(directory),
    }
