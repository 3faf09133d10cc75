"""The example of docs/hydra.md is a program that does what is written there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from hydra_plugins.stoker_launcher import StokerConf
from support.python_program import TIMEOUT_SECONDS, Programs, programs_in

PAGE = (Path(__file__).parents[2] / "docs/hydra.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Programs]:
    """A queue, and in its directory the files of the page: the first line of each is its name."""
    with programs_in(tmp_path) as made:
        for kind, text in BLOCKS:
            if kind != "sh":
                path = made.cwd / text.partition("\n")[0].removeprefix("# ")
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
        yield made


def test_example(queue: Programs) -> None:
    """What is typed there works, and makes the folders that are told of."""
    (script,) = (text for kind, text in BLOCKS if kind == "sh")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = subprocess.run(
        ["/bin/sh", "-e", "-c", script],
        cwd=queue.cwd,
        env={**queue.environment, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert shell.returncode == 0, shell.stderr
    logs = sorted(str(log.relative_to(queue.cwd)) for log in queue.cwd.glob("multirun/*/*/?/train.log"))
    assert [log[-len("0/train.log") :] for log in logs] == ["0/train.log", "1/train.log"] * 2
    assert "rate 0.001 on GPU" in (queue.cwd / logs[0]).read_text()
    assert [job.name for job in map(queue.job, range(1, 5))] == ["train"] * 4


def test_options_are_listed() -> None:
    """The page names every option there is."""
    listed = PAGE.partition("## Options")[2].partition("##")[0]
    for field in fields(StokerConf):
        assert field.name == "_target_" or f"`{field.name}`" in listed, field.name
