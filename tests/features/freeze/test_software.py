"""What jobs run with: seen without starting them, written once, removed with their environment."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from stoker.core.device import Device
from stoker.core.job import Job, Waiting
from stoker.core.spec import Command, JobSpec
from stoker.features.freeze import software as recorded
from stoker.features.freeze.software import (
    YOUNG_SECONDS,
    Place,
    Software,
    SoftwareLook,
    SoftwareObserver,
    folder_of,
    forget,
    software_at,
    write,
)
from stoker.store.paths import Paths
from stoker.store.writer import Store
from support.wait import wait_until

INNER = "lib/python{}.{}/site-packages".format(*sys.version_info[:2])
FOUND = Software("3.11.2", "cpython", "/usr/bin/python3", "PATH", "/usr", {"torch": "2.4.1"}, {}, "", {}, "n1")
NEWER = replace(FOUND, packages={"torch": "2.5.0"})


def made_environment(folder: Path, **packages: str) -> Path:
    """A virtual environment with packages."""
    inside = folder / INNER
    inside.mkdir(parents=True)
    for name, version in packages.items():
        (inside / f"{name}-{version}.dist-info").mkdir()
    (folder / "bin").mkdir()
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    return folder


def script(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return path


def job_of(*words: str, shell: str = "", environment: str = "e" * 32, number: int = 1, **spec: object) -> Job:
    made = JobSpec(environment=environment, **spec)  # type: ignore[arg-type]
    return Job(number, 1, Command(words, shell), made, Waiting(0.0), 0.0)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "state")


# -- looking ---------------------------------------------------------------------------------------


def test_packages_of_a_virtual_environment(tmp_path: Path) -> None:
    """Those of the environment alone, with the version of its Python; no Python is started for that."""
    made = made_environment(tmp_path / "venv", torch="2.4.1", Demo_Package="1.0")
    (made / "conda-meta").mkdir()
    (made / "conda-meta/cuda-nvcc-12.4.131-h5_0.json").touch()
    look = SoftwareLook()
    seen = look.at(Place("python", "/", {"PATH": str(made / "bin")}), ())
    assert seen.packages == {"torch": "2.4.1", "demo-package": "1.0"}
    assert seen.conda == {"cuda-nvcc": "12.4.131"}
    assert (seen.python, seen.source, seen.environment) == (sys.version.split()[0], "command", str(made))
    (made / INNER / "torch-2.4.1.dist-info").rename(made / INNER / "torch-2.5.0.dist-info")
    os.utime(made / INNER, (1, 1))  # a file system may count in whole seconds
    assert look.at(Place("python", "/", {"PATH": str(made / "bin")}), ()).packages["torch"] == "2.5.0"


def test_the_python_of_a_program(tmp_path: Path) -> None:
    """That of its first line; of a program that is not Python's, the first on the PATH; of neither, none."""
    first, other = made_environment(tmp_path / "a"), made_environment(tmp_path / "b")
    for name, line in {
        "torchrun": f"#!{other}/bin/python",
        "start": "#!/usr/bin/env python3",
        "tool": "\x7fELF",
    }.items():
        script(first / "bin" / name, line)
    variables = {"PATH": str(first / "bin")}
    assert recorded.find_python(Place("torchrun", "/", variables)) == ("program", f"{other}/bin/python")
    for program in ("start", "tool", ""):
        assert recorded.find_python(Place(program, "/", variables)) == ("PATH", f"{first}/bin/python3")
    assert recorded.find_python(Place("./bin/python", str(other), variables))[1].startswith(str(other))
    nothing = SoftwareLook().at(Place("tool", "/", {"PATH": str(tmp_path)}), ())
    assert (nothing.executable, nothing.packages, nothing.source) == ("", {}, "")


def test_another_python_is_asked_once(tmp_path: Path) -> None:
    """It says where its packages are; one that fails leaves no version, and is no error."""
    (tmp_path / "lib/numpy-2.1.0.dist-info").mkdir(parents=True)
    answer = {"version": "3.8.20", "implementation": "cpython", "prefix": str(tmp_path), "user": "/nowhere"}
    text = json.dumps({**answer, "inner": INNER, "folders": [str(tmp_path / "lib")]})
    old = script(tmp_path / "old/python3", "#!/bin/sh", f"echo asked >> {tmp_path}/asked", f"echo '{text}'")
    look = SoftwareLook()
    for _ in range(2):
        seen = look.at(Place(str(old), "/", {"PATH": os.environ["PATH"]}), ())
        assert (seen.python, seen.packages) == ("3.8.20", {"numpy": "2.1.0"})
    assert (tmp_path / "asked").read_text() == "asked\n"
    broken = script(tmp_path / "broken/python3", "#!/bin/sh", "exit 1")
    seen = look.at(Place(str(broken), "/", {"PATH": ""}), ())
    assert (seen.python, seen.executable, seen.packages) == ("", str(broken), {})


def test_packages_of_a_module_system(tmp_path: Path) -> None:
    """PYTHONPATH comes first, as for Python."""
    made = made_environment(tmp_path / "venv", torch="2.4.1", numpy="2.1.0")
    (tmp_path / "module/torch-2.0.0.dist-info").mkdir(parents=True)
    variables = {"PATH": str(made / "bin"), "PYTHONPATH": f"{tmp_path}/module:relative"}
    assert SoftwareLook().at(Place("", "/", variables), ()).packages == {"torch": "2.0.0", "numpy": "2.1.0"}


# -- records ---------------------------------------------------------------------------------------


def test_a_record_for_each_change(paths: Paths) -> None:
    """A job has the record that was true when it started; the same again writes nothing."""
    job = job_of("python", "train.py")
    folder = folder_of(paths, job)
    for at, seen in ((100.0, FOUND), (150.0, FOUND), (200.0, NEWER), (250.0, NEWER)):
        write(folder, seen, at)
    assert len(os.listdir(folder)) == 2
    found = [software_at(paths, job, at) for at in (99.5, 160.0, 205.0)]
    assert [each and each.software for each in found] == [FOUND, FOUND, NEWER]
    assert software_at(paths, job, 90.0) is None
    assert software_at(paths, job_of("torchrun", "train.py"), 205.0) is None


def test_records_of_nodes(paths: Paths) -> None:
    """A job has that of its node; where the node is not known, the newest."""
    job = job_of("python", "train.py")
    write(folder_of(paths, job), FOUND, 100.0)
    write(folder_of(paths, job), replace(NEWER, host="n2"), 150.0)
    found = [software_at(paths, job, 200.0, node) for node in ("n1", "n2", "n3")]
    assert [each and each.software.host for each in found] == ["n1", "n2", "n2"]


def test_jobs_of_one_environment_share_a_folder(paths: Paths) -> None:
    """Whatever scripts they run; another environment or another PATH has its own."""
    same = [job_of("./a.sh"), job_of("/x/b.sh"), job_of("./c.sh && true", shell="/bin/sh", number=9)]
    assert len({folder_of(paths, job) for job in same}) == 1
    other = [job_of("./a.sh", environment="f" * 32), job_of("./a.sh", extra_env=(("PATH", "/x"),)), job_of("python")]
    assert len({folder_of(paths, job) for job in (*same, *other)}) == 4
    assert folder_of(paths, job_of("./a.sh", extra_env=(("SEED", "1"),))) == folder_of(paths, same[0])


def test_an_observer_records_no_values(paths: Paths, tmp_path: Path) -> None:
    """Of the variables it needs the PATH only, and nothing of a value is in any file."""
    made = made_environment(tmp_path / "venv", torch="2.4.1")
    observer, job = SoftwareObserver(paths), job_of("python", "train.py", extra_env=(("MY_TOKEN", "hush-hush"),))
    environment = {"PATH": str(made / "bin"), "PASSWORD": "hush-hush"}
    with contextlib.closing(observer):
        observer.starting(
            job, environment, (Device("0", "0", "0", ("0",), "nvidia", model="A100", memory=80 * 2**30),), 100.0
        )
        wait_until(lambda: software_at(paths, job, 100.0) is not None)
        observer.starting(job, environment, (), 100.5)
    found = software_at(paths, job, 200.0)
    assert found is not None
    assert (found.software.packages, found.software.gpus) == (
        {"torch": "2.4.1"},
        {"0": "A100 80.0G"},
    )
    assert b"hush-hush" not in b"".join(path.read_bytes() for path in paths.software.rglob("*") if path.is_file())


def test_a_directory_that_cannot_be_written(paths: Paths, tmp_path: Path) -> None:
    """The observer goes on: a record is no reason to stop jobs."""
    paths.state.mkdir()
    paths.software.write_text("in the way")
    observer, job = SoftwareObserver(paths), job_of("python")
    observer.starting(job, {"PATH": ""}, (), 100.0)
    observer.close()
    paths.software.unlink()
    observer = SoftwareObserver(paths)
    observer.starting(job, {"PATH": ""}, (), 100.0)
    observer.close()
    assert software_at(paths, job, 100.0) is not None


def test_records_are_removed_with_their_environment(paths: Paths) -> None:
    """Also those that nothing refers to, unless they are so new that a reference may follow."""
    paths.state.mkdir()
    with contextlib.closing(Store(paths.database)) as store:
        kept = job_of("python", environment=store.add_environment({"A": "1"}))
        write(folder_of(paths, kept), FOUND, 100.0)
        write(folder_of(paths, job_of("python")), NEWER, 100.0)
        now = max(path.stat().st_mtime for path in paths.software.glob("*.json"))
        assert list(forget(paths, store, now))
        assert software_at(paths, kept, 100.0) is not None
        assert len(list(paths.software.iterdir())) == 3
        assert list(forget(paths, store, now + YOUNG_SECONDS + 1))
    assert software_at(paths, kept, 100.0) is not None
    assert len(list(paths.software.iterdir())) == 2
