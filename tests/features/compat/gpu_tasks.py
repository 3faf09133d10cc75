"""A directory with scripts that use the library GPUTaskScheduler."""

from __future__ import annotations

import subprocess
import sys

from stoker.features.compat.gpu_task.instance import MARKER
from support.shell import Shell


def script(config: str, start: str = "start()") -> str:
    """A script that starts a scheduler for the class Task of the module task."""
    return (
        "from task import Task\n"
        "from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler\n"
        f"config = {{{config}}}\n"
        f"GPUTaskScheduler(config=config, gpu_task_class=Task).{start}\n"
    )


class Lab(Shell):
    """A directory with scripts that use the library."""

    def write(self, **files: str) -> None:
        """Put modules there."""
        for name, text in files.items():
            (self.directory / f"{name}.py").write_text(text)

    def python(self, *words: str) -> tuple[int, str, str]:
        """Exit code, output and errors of a script."""
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    def run_tasks(self, body: str, config: str) -> str:
        """Run a task class with this body, in a module of its own, under a configuration; returns the errors."""
        lines = "".join(f"        {line}\n" for line in body.splitlines())
        imports = "import os, sys\nfrom gpu_task_scheduler.gpu_task import GPUTask\n"
        self.write(task=f"{imports}class Task(GPUTask):\n    def main(self):\n{lines}")
        self.write(script=script(config))
        code, _, errors = self.python("script.py")
        assert code == 0, errors
        return errors

    def folders(self) -> list[str]:
        """Names of the result folders."""
        return sorted(path.name for path in (self.directory / "results").iterdir())

    def unfinished(self) -> list[str]:
        """Names of the folders whose run has not succeeded."""
        return sorted(path.parent.name for path in (self.directory / "results").glob(f"**/{MARKER}"))
