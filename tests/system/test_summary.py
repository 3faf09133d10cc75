"""What a run tells in the end, as text and as data, which is promised in docs/schema."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.cli import Stoker

SCHEMA = Path(__file__).parents[2] / "docs/schema/stoker.run-1.json"


def test_every_promised_field_is_there(stoker: Stoker) -> None:
    """A run's value has exactly the fields of the schema, for a job that ended and for one that never started."""
    definitions = json.loads(SCHEMA.read_text())["$defs"]
    result = stoker("run", "--devices", "0", "--json", "-", stdin="exit 1\n")
    run = json.loads(result.out)
    assert set(run) == set(definitions["RunResult"]["properties"])
    assert set(run["jobs"][0]) == set(definitions["JobResult"]["properties"])
    assert run["jobs"][0]["started"].endswith("+00:00")


SIMJOB = f"exec {sys.executable} -m stoker.devices.demo_job"


def test_memory_in_a_run(stoker: Stoker) -> None:
    """What is set aside, what company costs, what packing saves, and what helps where a GPU is too small."""
    lines = [
        f"{SIMJOB} --memory 10G --seconds 5",
        f"{SIMJOB} --memory 10G --seconds 5 --ramp 0.5",
        f"{SIMJOB} --memory 8G --seconds 1 --ramp 0.8",
    ]
    done = stoker("run", "--sim", "1x24G", "--vram", "4G", "-", stdin="\n".join(lines))
    assert "start #1 gpu=0 mem=4.0G" in done.err
    assert "out of GPU memory while sharing; retrying with" in done.err
    assert done.code == 0, done.err
    assert "sharing GPUs saved up to 00:" in done.err
    done = stoker("run", "--sim", "1x24G", "-", stdin=f"{SIMJOB} --memory 30G\n")
    assert done.code == 1
    assert "oom  needs more than a whole GPU (24.0G)" in done.err
    assert "; needs a larger GPU, a smaller batch, or more GPUs (-G)  [stoker logs --sim 4]" in done.err
    assert "packing" not in done.err


def test_the_summary_says_where_the_logs_are(stoker: Stoker) -> None:
    """Their names tell the jobs apart; a run that skips all jobs leaves no directory."""
    stoker.write("jobs.toml", "[[job]]", 'command = "echo a"', 'name = "vit b"', "[[job]]", 'command = "echo  --lr 3"')
    done = stoker("run", "--devices", "0", "jobs.toml")
    (folder,) = (stoker.cwd / "stoker-runs").iterdir()
    assert f"  logs: stoker-runs/{folder.name}/\n" in done.err
    assert sorted(path.name for path in folder.iterdir()) == ["1-vit_b.log", "2-echo_--lr_3.log"]
    done = stoker("run", "--devices", "0", "--resume", "jobs.toml")
    assert "logs:" not in done.err
    assert list((stoker.cwd / "stoker-runs").iterdir()) == [folder]


def test_a_time_limit_exits_as_timeout_does(stoker: Stoker) -> None:
    """124 for one command."""
    assert stoker("run", "--devices", "0", "-t", "0.2s", "--", "sleep", "60").code == 124
