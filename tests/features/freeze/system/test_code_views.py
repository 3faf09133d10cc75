"""`stoker diff`, `checkout`, `status` and `retry` of jobs with frozen code, as typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from features.freeze.repository import git
from features.freeze.system.test_frozen_code import submitted
from support.background import Background
from support.optional import require
from support.wait import PATIENCE_SECONDS, ending, line_from, wait_until

TRAIN = "import helper\nprint(helper.VALUE)\n"


@pytest.fixture
def project(background: Background) -> Path:
    """A repository in the working directory of the queue."""
    require("git")
    folder = background.cwd
    (folder / "train.py").write_text(TRAIN)
    (folder / "helper.py").write_text("VALUE = 'old'\n")
    (folder / "data.bin").write_bytes(b"\0\1\2")
    (folder / ".gitignore").write_text("*.log*\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def train(queue: Background) -> int:
    return submitted(queue, "--", sys.executable, "train.py")


def details(queue: Background, job: int) -> dict[str, Any]:
    (shown,) = json.loads(queue("status", str(job), "--json").out)["jobs"]
    assert isinstance(shown, dict)
    return shown


def test_diff_with_the_present_code(background: Background, project: Path) -> None:
    """It is a patch that leads from the frozen code to the present one; on a screen nothing controls the terminal."""
    job = train(background)
    assert background("diff", str(job)).out == ""
    assert "has the same code as is now in" in background("diff", str(job), "--table").out
    (project / "helper.py").write_text("VALUE = 'new'\n\t# \x1b[31mred\n")
    (project / "data.bin").write_bytes(b"\0\1\2\3")
    (project / "train.py").rename(project / "moved.py")
    hostile = os.fsencode(project) + b"/\xff\x1b[2J.py"
    Path(os.fsdecode(hostile)).write_text("x\n")
    outcome = background("diff", str(job))
    assert outcome.code == 0, outcome.err
    assert "-VALUE = 'old'\n+VALUE = 'new'\n+\t# \x1b[31mred\n" in outcome.out
    assert "rename from train.py\nrename to moved.py\n" in outcome.out
    assert "Binary files a/data.bin and b/data.bin differ (3 and 4 bytes)" in outcome.out
    screen = background("diff", str(job), "--color", "always")
    plain = background("diff", str(job), "--table")
    assert "\x1b[32m+VALUE = 'new'\x1b[0m" in screen.out
    for text in (screen.out, plain.out):
        assert "\\x1b[31mred" in text
        assert "\x1b[2J" not in text
    assert "\x1b" not in plain.out
    names = background("diff", str(job), "--stat", "--table").out
    assert "train.py → moved.py" in names
    shown = json.loads(background("diff", str(job), "--json").out)
    kinds = {file["path"]: file["kind"] for file in shown["files"]}
    assert (kinds["moved.py"], kinds["helper.py"], shown["other"]) == ("renamed", "changed", None)


def test_diff_of_two_jobs(background: Background, project: Path) -> None:
    """From the first to the second, whatever is there now."""
    first = train(background)
    (project / "helper.py").write_text("VALUE = 'second'\n")
    second = train(background)
    (project / "helper.py").unlink()
    outcome = background("diff", str(first), str(second))
    assert "-VALUE = 'old'\n+VALUE = 'second'\n" in outcome.out
    assert "train.py" not in outcome.out
    unfrozen = submitted(background, "--no-freeze", "--", sys.executable, "train.py")
    refused = background("diff", str(first), str(unfrozen))
    assert (refused.code, f"the code of job {unfrozen} is not frozen" in refused.err) == (2, True)


def test_checkout(background: Background, project: Path, tmp_path: Path) -> None:
    """The files of the submit, as the user's own; nothing is overwritten."""
    job = train(background)
    (project / "helper.py").unlink()
    outcome = background("checkout", str(job), str(tmp_path / "new/place"))
    assert outcome.code == 0, outcome.err
    place = tmp_path / "new/place"
    assert (place / "helper.py").read_text() == "VALUE = 'old'\n"
    (place / "helper.py").write_text("mine")
    refused = background("checkout", str(job), str(place))
    assert (refused.code, "is not an empty directory" in refused.err) == (2, True)
    assert (place / "helper.py").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    assert background("checkout", str(job), "empty", cwd=tmp_path).code == 0
    assert (tmp_path / "empty/train.py").read_text() == TRAIN
    words = [sys.executable, "-c", "import helper"]
    subprocess.run(words, cwd=tmp_path / "empty", check=True, timeout=PATIENCE_SECONDS)


def test_status_names_what_has_changed(background: Background, project: Path) -> None:
    """With the commit, and whether files differed from it."""
    job = train(background)
    assert "frozen at submit, and unchanged since then" in background("status", str(job), "--table").out
    (project / "helper.py").write_text("VALUE = 'new'\n")
    dirty = train(background)
    (project / "train.py").unlink()
    assert "2 files changed since then: helper.py, train.py" in background("status", str(job), "--table").out
    screen = background("status", str(dirty), "--table").out
    assert "1 file changed since then: train.py" in screen
    assert "with changes that were not committed" in screen
    assert details(background, job)["code"] == {"frozen": True, "reason": "", "changed": ["helper.py", "train.py"]}


def test_retry(background: Background, project: Path) -> None:
    """It runs the same code again, unless the present one is wanted."""
    job = train(background)
    (project / "helper.py").write_text("VALUE = 'new'\n")
    background("resume", str(job))
    background.wait_over(job)
    assert background("retry", str(job)).code == 0
    wait_until((background.cwd / f"{job}.log.1").exists)
    background.wait_over(job)
    fresh = background("retry", str(job), "--fresh")
    assert "with the present code" in fresh.out + fresh.err
    wait_until((background.cwd / f"{job}.log.2").exists)
    background.wait_over(job)
    assert [background.log(job, run).strip() for run in range(3)] == ["old", "old", "new"]
    assert details(background, job)["code"]["changed"] == []


def test_the_module_of_a_python_call(background: Background, project: Path) -> None:
    """A function that was submitted returns what it would have returned then, whatever is edited meanwhile."""
    (gate,) = background.submit("true", held="user")
    (project / "helper.py").write_text("def value():\n    import part\n    return part.VALUE\n")
    (project / "part.py").write_text("VALUE = 'old'\n")
    (project / "client.py").write_text(
        "import helper, stoker, sys\n"
        "job = stoker.Executor(gpus=0, after=sys.argv[1]).submit(helper.value)\n"
        "print(job.id, flush=True)\nprint(job.result())\n"
    )
    words = [sys.executable, "client.py", str(gate)]
    with ending(
        subprocess.Popen(words, cwd=project, env=background.environment, stdout=subprocess.PIPE, text=True)
    ) as client:
        job = int(line_from(client.stdout))
        (project / "part.py").write_text("VALUE = 'new'\n")
        background("resume", str(gate))
        assert line_from(client.stdout) == "old\n"
    assert details(background, job)["code"] == {"frozen": True, "reason": "", "changed": ["part.py"]}
