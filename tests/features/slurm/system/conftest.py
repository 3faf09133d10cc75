"""Fixtures of system tests, and a cluster with a queue on it."""

from features.slurm.cluster import lab
from support.background import background
from support.cli import stoker
from support.slurm import slurm

__all__ = ["background", "lab", "slurm", "stoker"]
