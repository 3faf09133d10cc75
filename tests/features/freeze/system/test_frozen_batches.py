"""Snapshots of batches: arrays, lists, sweeps, scripts and Python calls share one, and say what they cannot do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from features.freeze.repository import git, write
from features.freeze.system.test_frozen_code import submitted
from stoker.features.freeze.code import code_of
from support.background import Background
from support.wait import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

CALL = """
import stoker, work

executor = stoker.Executor(gpus=0, begin="now+1day")
print(*(executor.submit(work.call, number).job_id for number in range(2)))
"""


@pytest.fixture
def project(background: Background) -> Path:
    folder = background.cwd
    write(folder, {"t.py": "import work\nprint(work.call(1))\n", "work.py": "def call(n):\n    return f'old {n}'\n"})
    write(
        folder,
        {".gitignore": "*.log\n", "job.sh": f"#!/bin/sh\n#SBATCH -J named\necho old $0\n{sys.executable} t.py\n"},
    )
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    return folder


def snapshots(queue: Background) -> list[str]:
    with queue.open_store() as store:
        return [code_of(str(code)).snapshot for (code,) in store.rows("SELECT json_extract(body, '$.code') FROM specs")]


def trees(queue: Background) -> list[Path]:
    return list((queue.paths.code / "trees").iterdir())


def test_an_array_has_one_snapshot(background: Background, project: Path) -> None:
    """So have further submits without an edit."""
    submitted(background, "-a", "0-99999", "--", sys.executable, "t.py", "{i}")
    submitted(background, "--", sys.executable, "-m", "t")
    write(project, {"list.txt": f"{sys.executable} t.py 1\n{sys.executable} t.py 2\n"})
    outcome = background("submit", "--hold", "-G", "0", "-f", "list.txt")
    assert outcome.code == 0, outcome.err
    assert len(trees(background)) == 2  # the list is a file of the tree, too
    assert len(set(snapshots(background))) == 2


def test_a_sweep(background: Background, project: Path) -> None:
    """All trials run the code of the submit."""
    outcome = background("sweep", "--begin", "now+1day", "-G", "0", "lr=1,2,3", "--", sys.executable, "t.py", "{lr}")
    assert outcome.code == 0, outcome.err
    assert len(trees(background)) == 1
    assert set(snapshots(background)) - {""} == {trees(background)[0].name}


def test_a_submitted_script(background: Background, project: Path) -> None:
    """It is no copy any more, has its own path, and its options count."""
    job = submitted(background, "job.sh")
    (project / "job.sh").write_text("#!/bin/sh\necho new\n")
    (project / "work.py").write_text("raise SystemExit('new')\n")
    background("resume", str(job))
    background.wait_over(job)
    assert background.log(job).splitlines() == [f"old {project}/job.sh", "old 1"]
    assert background.job(job).name == "named"
    assert not background.paths.scripts.exists()


def test_an_ignored_script_is_copied(background: Background, project: Path) -> None:
    """What is not in the snapshot is copied as before."""
    (project / "own.log").write_text("#!/bin/sh\necho own\n")
    (project / "own.log").chmod(0o755)
    job = submitted(background, "./own.log")
    (project / "own.log").write_text("#!/bin/sh\necho new\n")
    background("resume", str(job))
    background.wait_over(job)
    assert background.log(job).strip() == "own"


def test_python_calls(background: Background, project: Path) -> None:
    """The module of a function comes from the snapshot."""
    write(project, {"submits.py": CALL})
    environment = {**os.environ, **background.environment}
    done = subprocess.run(
        [sys.executable, "submits.py"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    jobs = done.stdout.split()
    (project / "work.py").write_text("raise SystemExit('new')\n")
    assert background("edit", *jobs, "--begin", "now").code == 0
    background.wait_over(*map(int, jobs))
    assert [background.word(int(job)) for job in jobs] == ["done", "done"]


def test_what_cannot_be_frozen(background: Background, project: Path) -> None:
    """One line says why, and the job keeps the reason; a user who asks for it gets an error."""
    write(project, {f"many/{number}.py": "" for number in range(5001)})
    outcome = background("submit", "--hold", "--parsable", "-G", "0", "--", sys.executable, "t.py")
    assert outcome.code == 0
    assert "the code is not frozen" in outcome.err
    assert "files or more; the limit is 5000" in outcome.err
    assert "the limit is 5000" in code_of(background.job(int(outcome.out)).spec.code).reason
    assert background("submit", "--hold", "--no-freeze", "-G", "0", "--", sys.executable, "t.py").err == ""
    assert submitted(background, "--freeze", "--", sys.executable, "t.py")
    with open(project / "huge.py", "wb") as file:
        file.truncate(2 * 2**30)
    git(project, "add", "--intent-to-add", "huge.py")
    outcome = background("submit", "-G", "0", "--freeze", "--", sys.executable, "t.py")
    assert outcome.code != 0
    assert "more than 1.0G" in outcome.err


def test_a_repository_of_the_home_directory(background: Background, project: Path, tmp_path: Path) -> None:
    """It is no project, also behind a link; nothing is said at each submit below it."""
    (tmp_path / "link").symlink_to(project)
    background.environment["HOME"] = str(tmp_path / "link")
    outcome = background("submit", "--hold", "--parsable", "-G", "0", "--", sys.executable, "t.py")
    assert outcome.err == ""
    assert code_of(background.job(int(outcome.out)).spec.code).snapshot == ""
    assert "is no project" in background("submit", "-G", "0", "--freeze", "--", sys.executable, "t.py").err


def test_outside_of_git(background: Background) -> None:
    """Nothing is frozen and nothing is said, unless it is asked for."""
    write(background.cwd, {"t.py": "import work\n", "work.py": "print('old')\n", "data/x": ""})
    outcome = background("submit", "--hold", "--parsable", "-G", "0", "-o", "%j.log", "--", sys.executable, "t.py")
    assert outcome.err == ""
    assert code_of(background.job(int(outcome.out)).spec.code).reason == "its code is in no git work tree"
    job = submitted(background, "--freeze", "--", sys.executable, "t.py")
    (background.cwd / "work.py").write_text("print('new')\n")
    background("resume", str(job), outcome.out.strip())
    background.wait_over(job, int(outcome.out))
    assert background.log(job).strip() == "old"
    assert background.log(int(outcome.out)).strip() == "new"


def test_a_run(background: Background, project: Path) -> None:
    """It freezes only if it is asked to."""
    run = ("run", "-G", "0", "--", sys.executable, "-c", "import os; print(os.environ.get('STOKER_CODE', 'none'))")
    assert background(*run).out.strip() == "none"
    assert "/code/trees/" in background("run", "--freeze", *run[1:]).out


def test_unknown_values(background: Background) -> None:
    outcome = background("submit", "--freeze=never", "--", "true")
    assert outcome.code == 2
    assert "--freeze=never is not code, tree or no" in outcome.err
