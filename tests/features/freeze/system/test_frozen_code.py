"""Jobs with frozen code, as typed: what was edited, moved or removed after the submit does not reach them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from features.freeze.repository import git
from stoker.features.freeze.code import code_of
from support.background import Background
from support.cli import until
from support.users import require_root
from support.wait import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.fixture
def project(background: Background) -> Path:
    """A repository in the working directory of the queue."""
    folder = background.cwd
    (folder / "package").mkdir()
    (folder / "package/__init__.py").touch()
    (folder / "package/value.py").write_text("VALUE = 'old'\n")
    (folder / "package/__main__.py").write_text("from .value import VALUE\nprint('package', VALUE)\n")
    (folder / "train.py").write_text(
        "import os, sys\nfrom package.value import VALUE\nprint('train', VALUE, *sys.argv[1:])\n"
        "open('result.txt', 'a').write(VALUE)\nprint(os.getcwd())\n"
    )
    (folder / "run.sh").write_text(f'echo "run old $0"\n{sys.executable} train.py inner\n{until("open")}\n')
    (folder / ".gitignore").write_text("*.log\nopen\n")
    git(folder, "init", "-q")
    git(folder, "add", "package", "train.py", "run.sh", ".gitignore")
    git(folder, "commit", "-qm", "first")
    return folder


def edit(project: Path) -> None:
    """Change, move and remove what a job needs."""
    (project / "package/value.py").write_text("VALUE = 'new'\n")
    (project / "run.sh").write_text("echo run new\n")
    (project / "train.py").rename(project / "moved.py")
    shutil.rmtree(project / "package")


def submitted(queue: Background, *words: str) -> int:
    """Submit a job that does not start before it is released."""
    outcome = queue("submit", "--hold", "--parsable", "-G", "0", "-o", "%j.log", *words)
    assert outcome.code == 0, outcome.err
    return int(outcome.out)


def test_jobs_run_the_code_of_the_submit(background: Background, project: Path) -> None:
    """A script, a module, a shell script and a shell line; outputs land in the directory of the submit."""
    python = sys.executable
    jobs = [
        submitted(background, "--", python, "train.py", "1"),
        submitted(background, "--", python, "-m", "package"),
        submitted(background, "--", "bash", "run.sh"),
        submitted(background, f"{python} train.py 2 && {python} -m package"),
    ]
    left = submitted(background, "--no-freeze", "--", python, "train.py")
    edit(project)
    background.open_gate("open")
    background("resume", *map(str, [*jobs, left]))
    background.wait_over(*jobs, left)
    here = str(project)
    assert background.log(jobs[0]).splitlines() == ["train old 1", here]
    assert background.log(jobs[1]).splitlines() == ["package old"]
    assert background.log(jobs[2]).splitlines() == ["run old run.sh", "train old inner", here]
    assert background.log(jobs[3]).splitlines() == ["train old 2", here, "package old"]
    assert (project / "result.txt").read_text() == "old" * 3
    assert "can't open file" in background.log(left)
    snapshots = {code_of(background.job(job).spec.code).snapshot for job in jobs}
    assert len(snapshots) == 1
    assert "" not in snapshots


def test_a_job_inside_the_snapshot(background: Background, project: Path) -> None:
    """Everything that it reads is of the submit; ignored files are linked there."""
    (project / "x.log").write_text("ignored")
    job = submitted(background, "--freeze=tree", "--", "sh", "-c", "cat package/value.py x.log; pwd")
    edit(project)
    background("resume", str(job))
    background.wait_over(job)
    value, text = background.log(job).splitlines()
    assert value == "VALUE = 'old'"
    assert text.startswith("ignored/")
    assert text.endswith(f"/{project.name}")


def test_a_snapshot_that_was_removed(background: Background, project: Path) -> None:
    """The job is held with the reason, and not run with other code."""
    job = submitted(background, "--", sys.executable, "train.py")
    background("cancel", str(submitted(background, "--", "true")))
    subprocess.run(["chmod", "-R", "u+w", background.paths.code], check=True, timeout=PATIENCE_SECONDS)
    shutil.rmtree(background.paths.code)
    background("resume", str(job))
    background.wait_word("held", job)
    assert "its frozen code" in background("status", str(job)).out
    assert not (project / "result.txt").exists()


def test_a_repository_of_another_user(background: Background, project: Path) -> None:
    """Git does not read it: one line says so and what to do, and the job is submitted without; else it is refused."""
    require_root()
    subprocess.run(["chown", "-R", "12345:12345", project], check=True, timeout=PATIENCE_SECONDS)
    own = {**background.environment, "HOME": str(background.home)}
    words = ["git", "-C", str(project), "status"]
    if subprocess.run(words, check=False, env=own, capture_output=True, timeout=PATIENCE_SECONDS).returncode == 0:
        pytest.skip("git trusts all repositories here")
    words = ["submit", "--hold", "--parsable", "-G", "0", "--", sys.executable, "train.py"]
    reason = f"git does not read {project}, which belongs to another user"
    hint = f"type: git config --global --add safe.directory {project}"
    outcome = background(*words, HOME=str(background.home))
    assert outcome.err == f"stoker: the code is not frozen: {reason}; {hint}\n"
    assert code_of(background.job(int(outcome.out)).spec.code).reason == reason
    outcome = background(words[0], "--freeze", *words[1:], HOME=str(background.home))
    assert (outcome.code, outcome.out) == (125, "")
    assert outcome.err == f"stoker: {reason}\n        {hint}\n"
    subprocess.run(hint.removeprefix("type: "), shell=True, env=own, check=True, timeout=PATIENCE_SECONDS)
    outcome = background(*words, HOME=str(background.home))
    assert (outcome.code, outcome.err) == (0, "")
    assert code_of(background.job(int(outcome.out)).spec.code).snapshot


def test_nothing_changes_in_the_repository(background: Background, project: Path) -> None:
    """Neither the index nor the times of files, and git sees the same as before."""
    (project / "package/value.py").write_text("VALUE = 'dirty'\n")
    (project / "untracked.py").touch()
    paths = [path for path in project.rglob("*") if path.is_file() and path.suffix != ".log"]
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}
    job = submitted(background, "--", sys.executable, "train.py")
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths} == before
    background("resume", str(job))
    background.wait_over(job)
    assert background.log(job).startswith("train dirty")
