"""A program with Hydra in a folder with an unusual name, whose multiruns go through the queue."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from stoker.core.job import Job
from stoker.store import queries
from support.python_program import TIMEOUT_SECONDS, Programs
from support.wait import PATIENCE_SECONDS

PROGRAM = """
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig

log = logging.getLogger(__name__)


@dataclass
class Config:
    rate: float = 0.1
    text: str = ""
    act: str = "return"
    gpus: int = 1
    together: int = 1


class Trouble(Exception):
    pass


ConfigStore.instance().store(name="config", node=Config)


@hydra.main(version_base=None, config_name="config")
def train(config):
    job = HydraConfig.get().job
    log.info("rate %s", config.rate)
    here = HydraConfig.get().runtime.cwd
    open(os.path.join(here, f"began-{job.num}"), "w").close()
    if config.act == "wait":
        signal.pause()
    if config.act == "raise":
        raise Trouble(config.text)
    if config.act == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if config.act == "leave":
        sys.exit(3)
    while sum(name.startswith("began") for name in os.listdir(here)) < config.together:
        time.sleep(0.01)
    if config.act == "keep":
        return threading.Lock()
    return {
        "value": 2 * config.rate,
        "text": config.text,
        "num": job.num,
        "id": job.id,
        "gpus": os.environ["CUDA_VISIBLE_DEVICES"].split(","),
        "cwd": os.getcwd(),
        "argv": sys.argv,
        "colour": os.environ.get("COLOUR"),
    }


if __name__ == "__main__":
    train()
"""

SWEEPER = '''
"""Calls a launcher as sweepers that learn do: once for each batch, and looks at what is returned."""

import json
import pathlib

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.plugins.sweeper import Sweeper


class Batches(Sweeper):
    def setup(self, *, hydra_context, task_function, config):
        given = {"hydra_context": hydra_context, "task_function": task_function, "config": config}
        self.launcher = Plugins.instance().instantiate_launcher(**given)

    def sweep(self, arguments):
        first, told = 0, []
        for batch in json.loads(pathlib.Path("batches.json").read_text()):
            told += [tell(job) for job in self.launcher.launch([[*arguments, *one] for one in batch], first)]
            first += len(batch)
        pathlib.Path("returned.json").write_text(json.dumps(told))


def tell(job):
    is_good = job.status is JobStatus.COMPLETED
    error = None if is_good else job._return_value
    return {
        "value": job.return_value if is_good else None,
        "kind": type(error).__name__,
        "error": f"{error} {getattr(error, '__notes__', '')}",
        "rate": job.cfg.rate,
        "overrides": list(job.overrides),
        "num": job.hydra_cfg.hydra.job.num,
        "id": job.hydra_cfg.hydra.job.id,
        "folder": job.hydra_cfg.hydra.runtime.output_dir,
        "working_dir": job.working_dir,
        "name": job.task_name,
    }


ConfigStore.instance().store("batches", {"_target_": "hydra_plugins.batches.Batches"}, group="hydra/sweeper")
'''


class Ended(NamedTuple):
    """A program that is over."""

    code: int
    out: str
    err: str


class Studio:
    """The folder, and a sweeper beside the program."""

    def __init__(self, queue: Programs, name: str) -> None:
        self.queue = queue
        self.folder = queue.cwd / f'it\'s "{name}" & b=c,d'
        (self.folder / "hydra_plugins").mkdir(parents=True)
        (self.folder / "train.py").write_text(PROGRAM)
        (self.folder / "hydra_plugins" / "batches.py").write_text(SWEEPER)
        with queue.open_store() as store:
            self._last = store.last_job() or 0
        self._process: subprocess.Popen[str] | None = None

    def start(self, *overrides: str) -> subprocess.Popen[str]:
        """Start a multirun, and leave it running."""
        self._process = subprocess.Popen(
            [sys.executable, "train.py", "-m", "hydra/launcher=stoker", *overrides],
            cwd=self.folder,
            env=self.queue.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self._process

    def close(self) -> None:
        """End what still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=PATIENCE_SECONDS)

    def run(self, *overrides: str) -> Ended:
        """A multirun from its beginning to its end."""
        process = self.start(*overrides)
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
        return Ended(process.returncode, out, err)

    def returned(self, batches: Sequence[Sequence[Sequence[str]]], *overrides: str) -> list[dict[str, Any]]:
        """What the launcher returns for batches of jobs."""
        (self.folder / "batches.json").write_text(json.dumps(batches))
        ended = self.run("hydra/sweeper=batches", *overrides)
        assert ended.code == 0, ended.err
        told = json.loads((self.folder / "returned.json").read_text())
        assert isinstance(told, list)
        return told

    def jobs(self) -> list[Job]:
        """All jobs that were submitted here."""
        with self.queue.open_store() as store:
            return list(queries.jobs_of(store, range(self._last + 1, (store.last_job() or 0) + 1)))

    def began(self) -> int:
        """How many jobs have begun."""
        return len(list(self.folder.glob("began-*")))
