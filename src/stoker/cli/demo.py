"""The demonstration: a shipped job list for four simulated GPUs that shows every state once."""

from __future__ import annotations

import sys

from stoker.core.job import Command
from stoker.joblist import Listed, Unusable
from stoker.options import JobOptions


def demo_jobs() -> list[Listed | Unusable]:
    """About 20 seconds of work."""
    return []


SIMJOB = (sys.executable, "-m", "stoker.simjob")
_ = (Command, JobOptions)
