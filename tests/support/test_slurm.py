"""The Slurm of the tests leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.reaper import descendants, is_alive
from support.slurm import require_slurm
from support.wait import ending, line_from, wait_until


def test_nothing_outlives_a_killed_test() -> None:
    """Daemons and jobs end when the process that started them is killed."""
    require_slurm()
    program = (
        "import os, time\nfrom support.slurm import running_slurm\n"
        "with running_slurm(nodes=1) as slurm:\n"
        "    slurm.run('sbatch', '-o', 'out', '--wrap', 'touch began; sleep 1000')\n"
        "    while not (slurm.directory / 'began').exists(): time.sleep(0.01)\n"
        "    print(slurm.directory, flush=True)\n    time.sleep(1000)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with ending(
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
    ) as process:
        directory = line_from(process.stdout).strip()
        started = descendants(process.pid)
        assert len(started) >= 5  # reaper, munged, slurmctld, slurmd, slurmstepd, the job
        process.kill()
    wait_until(lambda: not any(map(is_alive, started)))
    shutil.rmtree(directory)  # a killed process removes nothing
