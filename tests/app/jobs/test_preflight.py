"""Checks before submit: --cap, the git commit, and the limits of the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from stoker.app.jobs.preflight import ONE_STRING, Checkouts, KernelLimits, Preflight, start_notes
from stoker.core.errors import UsageError
from stoker.core.spec import Command, Dependency, JobSpec, Resources
from support.optional import require
from support.torch import with_torch
from support.wait import PATIENCE_SECONDS, wait_until

SHARED = JobSpec(resources=Resources(memory=2**30), cap=True)
TRAIN = Command((sys.executable, "train.py"))


def settled(environment: dict[str, str], command: Command, spec: JobSpec) -> tuple[bool, list[str]]:
    """Whether the cap stays, and what is said."""
    said: list[str] = []
    return Preflight(environment, said.append).without_unsupported_cap(command, spec).cap, said


def test_new_enough(tmp_path: Path) -> None:
    """The terms stay as they are, and nothing is said."""
    assert settled(with_torch(tmp_path, "2.10.0"), TRAIN, SHARED) == (True, [])


def test_too_old(tmp_path: Path) -> None:
    """The sentence tells which PyTorch of which Python it is."""
    sentence = f"--cap is ignored: PyTorch 2.9.1 of {sys.executable} does not support it (needs 2.10)"
    assert settled(with_torch(tmp_path, "2.9.1"), TRAIN, SHARED) == (False, [sentence])


def test_no_torch() -> None:
    """Who has none needs no cap."""
    sentence = f"--cap is ignored: {sys.executable} has no PyTorch"
    assert settled(dict(os.environ), TRAIN, SHARED) == (False, [sentence])


def test_the_jobs_own_variables_count(tmp_path: Path) -> None:
    """What --env says about where packages are is heard."""
    path = with_torch(tmp_path, "2.10.0")["PYTHONPATH"]
    assert settled(dict(os.environ), TRAIN, replace(SHARED, extra_env=(("PYTHONPATH", path),))) == (True, [])


def test_cannot_tell() -> None:
    """A command that could run anything gets none."""
    kept, (sentence,) = settled(dict(os.environ), Command(("source x && python y",), "/bin/sh"), SHARED)
    assert not kept
    assert "cannot find out which Python the command runs" in sentence


def test_a_whole_card() -> None:
    """There is nothing to cap."""
    kept, (sentence,) = settled(dict(os.environ), TRAIN, JobSpec(cap=True))
    assert not kept
    assert "without --vram" in sentence


def test_not_asked_for() -> None:
    """Who does not want one is not bothered."""
    spec = JobSpec(resources=Resources(memory=2**30))
    preflight = Preflight({}, pytest.fail)
    assert preflight.without_unsupported_cap(Command(("missing",)), spec) is spec


def test_each_is_asked_once(tmp_path: Path) -> None:
    """However many jobs have the same Python, and each reason is said once."""
    asked = tmp_path / "asked"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho x >> {asked}\necho stoker-torch 2.4\n")
    python.chmod(0o755)
    said: list[str] = []
    preflight = Preflight(dict(os.environ), said.append)
    jobs = [replace(SHARED, extra_env=(("SEED", str(seed)),)) for seed in range(5)]
    assert not any(preflight.without_unsupported_cap(Command((str(python), str(spec))), spec).cap for spec in jobs)
    assert asked.read_text() == "x\n"
    assert len(said) == 1
    first, second = (preflight.without_unsupported_cap(Command((str(python),)), jobs[0]) for _ in range(2))
    assert first is second


WHO = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(path: Path, *words: str) -> str:
    found = subprocess.run(
        [require("git"), *words],
        cwd=path,
        env={**os.environ, **WHO},
        check=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
    )
    return found.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit of one file."""
    path = tmp_path / "a'; echo b"
    (path / "deep/inside").mkdir(parents=True)
    (path / "file").write_text("text")
    git(path, "init", "-q")
    git(path, "add", "file")
    git(path, "commit", "-q", "-m", "first")
    return path


def stand_in(home: Path, line: str) -> str:
    """A search path that begins with a Git which does something else."""
    program = home / "bin/git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def commit(path: Path) -> str:
    return Checkouts(os.environ).commit(str(path))


def test_a_clean_tree(repository: Path) -> None:
    """The first seven digits, from anywhere below; files that Git was not told of do not count."""
    (repository / "untracked").touch()
    expected = git(repository, "rev-parse", "HEAD")[:7]
    assert commit(repository) == expected
    assert commit(repository / "deep/inside") == expected


@pytest.mark.parametrize("staged", [False, True])
def test_a_tree_that_differs(repository: Path, staged: bool) -> None:
    """A star, whether the change is staged or not."""
    (repository / "file").write_text("other")
    if staged:
        git(repository, "add", "file")
    assert commit(repository).endswith("*")


def test_no_repository(tmp_path: Path) -> None:
    """Nothing is known, and no process is started."""
    path = stand_in(tmp_path, f"touch {tmp_path}/asked")
    assert Checkouts({"PATH": path}).commit(str(tmp_path)) == ""
    assert Checkouts({"PATH": path}).commit(str(tmp_path / "not/there")) == ""
    assert not (tmp_path / "asked").exists()


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    """There is nothing to name yet."""
    git(tmp_path, "init", "-q")
    assert commit(tmp_path) == ""


def test_a_broken_repository(tmp_path: Path) -> None:
    """It is the user's matter, and no reason to refuse a job."""
    (tmp_path / ".git").write_text("nonsense")
    assert commit(tmp_path) == ""


def test_no_git(repository: Path) -> None:
    """A machine without Git."""
    assert Checkouts({"PATH": "/nonexistent"}).commit(str(repository)) == ""


def test_variables_of_another_repository_do_not_matter(repository: Path, tmp_path: Path) -> None:
    """GIT_DIR, as a hook of Git has it, is about another directory."""
    assert Checkouts({**os.environ, "GIT_DIR": str(tmp_path)}).commit(str(repository))


def test_it_does_not_take_long(repository: Path, tmp_path: Path) -> None:
    """A Git that hangs is left alone after a moment."""
    path = stand_in(tmp_path, "exec sleep 600")
    began = time.monotonic()
    assert Checkouts({"PATH": path}).commit(str(repository)) == ""
    assert time.monotonic() - began < PATIENCE_SECONDS


def test_each_repository_is_asked_once(repository: Path) -> None:
    """What was found out holds for all jobs of a list."""
    checkouts = Checkouts(os.environ)
    clean = checkouts.commit(str(repository))
    (repository / "file").write_text("other")
    assert checkouts.commit(str(repository / "deep")) == clean


TRUE = "/bin/true"


def starts(words: list[str], environment: dict[str, str]) -> bool:
    """Whether the kernel starts the program."""
    try:
        process = os.posix_spawn(words[0], words, environment)
    except OSError:
        return False
    wait_until(lambda: os.waitpid(process, os.WNOHANG)[0])
    return True


def has_room(*words: str) -> bool:
    """Whether we let a command pass."""
    try:
        KernelLimits({}).check(words, {})
    except UsageError:
        return False
    return True


@pytest.mark.parametrize("letter", ["x", "ü", "\udcff"])
def test_a_word_of_just_the_largest_size(letter: str) -> None:
    """Bytes count, not characters; the largest word that the kernel takes is not refused, the next one is."""
    size = len(letter.encode(errors="surrogateescape"))
    fits = letter * ((ONE_STRING - 1) // size)
    assert starts([TRUE, fits], {})
    KernelLimits({}).check((TRUE, fits), {})
    assert not starts([TRUE, fits + letter], {})
    with pytest.raises(UsageError):
        KernelLimits({}).check((TRUE, fits + letter), {})


def test_a_variable_of_just_the_largest_size() -> None:
    """With its name, the equals sign and the zero at the end."""
    fits = "x" * (ONE_STRING - 3)
    assert starts([TRUE], {"A": fits})
    KernelLimits({"A": fits})
    assert not starts([TRUE], {"A": fits + "x"})
    with pytest.raises(UsageError, match="variable A"):
        KernelLimits({"A": fits + "x"})
    with pytest.raises(UsageError, match="variable A"):
        KernelLimits({}).check((TRUE,), {"A": fits + "x"})


def test_all_together() -> None:
    """Many strings that are each small enough; what we let pass, the kernel takes."""
    word = "x" * 100_000
    count = next(count for count in range(100) if not has_room(TRUE, *[word] * (count + 1)))
    assert starts([TRUE, *[word] * count], {})
    assert not starts([TRUE, *[word] * (count + 2)], {})


def test_an_environment_that_leaves_no_room() -> None:
    """It is refused before any job is looked at."""
    with pytest.raises(UsageError, match="together"):
        KernelLimits({f"V{number}": "x" * 100_000 for number in range(100)})


# -- the program and the output --------------------------------------------------------------------


def noted(tmp_path: Path, *words: str, shell: str = "", **spec: object) -> list[str]:
    """Warnings about one job, with one program on its PATH."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin/python").write_text("")
    (tmp_path / "bin/python").chmod(0o755)
    used = replace(JobSpec(cwd=str(tmp_path)), **spec)
    return start_notes([(Command(words, shell), used)] * 2, {"PATH": str(tmp_path / "bin")})


@pytest.mark.parametrize(
    ("words", "shell"),
    [
        (("python", "train.py"), ""),
        (("bin/python",), ""),
        (("{name}",), ""),
        (("cd x && ./train.sh",), "/bin/sh"),
        (("A=1 nothing",), "/bin/sh"),
        (("module load cuda; train",), "/bin/sh"),
        (("for i in 1 2; do nothing; done",), "/bin/sh"),
    ],
)
def test_a_program_that_may_be_there(tmp_path: Path, words: tuple[str, ...], shell: str) -> None:
    """Nothing is said of programs that exist, and where it is unclear what starts."""
    assert noted(tmp_path, *words, shell=shell) == []


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    """Once, with the nearest name; in a line too; a path is relative to the directory of the job."""
    (note,) = noted(tmp_path, "pyhton", "train.py")
    assert "pyhton is not on the PATH;" in note
    assert "did you mean python?" in note
    assert noted(tmp_path, "pyhton train.py", shell="/bin/sh") == [note]
    assert "./run.sh does not exist" in noted(tmp_path, "./run.sh")[0]
    (tmp_path / "run.sh").touch()
    assert f"type: chmod +x {tmp_path}/./run.sh" in noted(tmp_path, "./run.sh")[0]


def test_the_path_of_the_job_counts(tmp_path: Path) -> None:
    """--env PATH=... replaces that of the submitter."""
    assert noted(tmp_path, "python", extra_env=(("PATH", "/nowhere"),)) != []


def test_a_missing_directory_for_the_output(tmp_path: Path) -> None:
    """The note names the command that makes it; a job that waits for another may find it made."""
    out = f"{tmp_path}/my logs/%j.log"
    assert noted(tmp_path, "python", out=out, err=f"{tmp_path}/my logs/%j.err") == [
        f"warning: the output directory does not exist; type: mkdir -p '{tmp_path}/my logs'"
    ]
    assert noted(tmp_path, "python", out=out, after=(Dependency(1),)) == []
    assert noted(tmp_path, "python", out=f"{tmp_path}/%x/%j.log", err=f"{tmp_path}/e") == []


def test_one_missing_directory_is_named_once(tmp_path: Path) -> None:
    """Also if both outputs are in it."""
    assert len(noted(tmp_path, "python", out=f"{tmp_path}/logs/o", err=f"{tmp_path}/logs/e")) == 1


def test_an_output_that_cannot_be_a_file(tmp_path: Path) -> None:
    """A directory, or a place of the kernel."""
    (note,) = noted(tmp_path, "python", out=str(tmp_path))
    assert note.endswith(f"is a directory, so the job would fail; name a file: -o {tmp_path}/%j.log")
    assert "no file can be created in /proc" in noted(tmp_path, "python", out="/proc/x")[0]


@pytest.mark.parametrize(
    "line", ["""python 'a" b'""", "true # don't", "cat <<END\ndon't\nEND", """echo "it's" """, r"echo \'", "echo 'a'"]
)
def test_quotes_that_are_closed(tmp_path: Path, line: str) -> None:
    """Comments and here documents may have a single one."""
    assert [note for note in noted(tmp_path, line, shell="/bin/sh") if "quote" in note] == []


@pytest.mark.parametrize("line", ["python 'a b", 'python "a', "python train.py; echo 'done"])
def test_a_quote_that_is_not_closed(tmp_path: Path, line: str) -> None:
    """The job would fail at once; the warning shows the line, since a list has many."""
    assert noted(tmp_path, line, shell="/bin/sh") == [f"warning: a quote is not closed, so the job would fail: {line}"]
