"""The configuration of one job of a multirun: what only the queue can tell it, and who goes by it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, read_write


def set_id(config: DictConfig, shown_id: str) -> None:
    """Let Hydra know a job by the id that it has in the queue."""
    with read_write(config.hydra.job):
        config.hydra.job.id = shown_id


@contextlib.contextmanager
def current(config: DictConfig) -> Iterator[None]:
    """While ${hydra:...} means this configuration."""
    hydra = HydraConfig.instance()
    before = hydra.cfg
    hydra.set_config(config)
    try:
        yield
    finally:
        hydra.cfg = before
