"""The older tool `schedule`: one task on a free GPU, shown in gpu_scheduler_info."""

from stoker.features.compat import run_program


def main() -> int:
    """The console script."""
    return run_program("stoker.features.compat.schedule.command")
