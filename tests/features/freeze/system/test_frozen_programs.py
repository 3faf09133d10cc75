"""Frozen code in programs of many kinds: each prints the value that its module had at submit."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from features.freeze.repository import git, write
from features.freeze.system.test_frozen_code import submitted
from support.background import Background

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

VALUE = "VALUE = 'old'\n"
SPAWN = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from library.value import VALUE

def call(number):
    from library.late import LATE
    return LATE + str(number)

if __name__ == "__main__":
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        print("spawn", VALUE, *pool.map(call, [1, 2]))
"""
BESIDE = """
from pathlib import Path
here = Path(__file__).parent
print("beside", (here / "conf/a.yaml").read_text().strip(), (here / "data/x").read_text())
try:
    (here / "created").touch()
except PermissionError:
    print("read-only")
"""
HYDRA = """
import hydra

@hydra.main(version_base=None, config_path="conf", config_name="a")
def main(config):
    from library.value import VALUE
    print("hydra", VALUE, config.x)

main()
"""
JOBLIB = """
from joblib import Parallel, delayed
from library.calls import call

if __name__ == "__main__":
    print("joblib", *Parallel(n_jobs=2, backend="loky")(delayed(call)(number) for number in range(2)))
"""
NOTEBOOK = """
import nbformat
from nbclient import NotebookClient

book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("from library.value import VALUE; print(VALUE)")])
print("notebook", NotebookClient(book).execute().cells[0].outputs[0].text.strip())
"""
TORCH = """
import torch.distributed as dist
from library.value import VALUE

dist.init_process_group("gloo")
print(f"torch {VALUE} {dist.get_world_size()}\\n", end="")  # in one write, as both write to one file
dist.destroy_process_group()
"""


@pytest.fixture
def project(background: Background) -> Path:
    """A repository with a package, beside the directory in which jobs are submitted."""
    folder = background.cwd
    write(
        folder,
        {
            "library/__init__.py": "",
            "library/value.py": VALUE,
            "library/late.py": "LATE = 'late old'\n",
            "library/calls.py": "from library.value import VALUE\ndef call(number):\n    return VALUE + str(number)\n",
            "library/inner/__init__.py": "",
            "library/inner/main.py": "from ..value import VALUE\nprint('relative', VALUE)\n",
            "conf/a.yaml": "x: old\n",
            "data/x": "ignored",
            "src/editable.py": "EDITABLE = 'old'\n",
            "spawn.py": SPAWN,
            "beside.py": BESIDE,
            "app.py": HYDRA,
            "parallel.py": JOBLIB,
            "notebook.py": NOTEBOOK,
            "torch_program.py": TORCH,
            "read.py": "import sys\nprint('read', open(sys.argv[1]).read().strip())\n",
            "fails.py": "from library import value\nraise ValueError(value.VALUE)\n",
            "tool": f"#!{sys.executable}\nfrom library.value import VALUE\nprint('tool', VALUE)\n",
            "checks/test_it.py": "import unittest\nclass T(unittest.TestCase):\n    def test(self): pass\n",
            "tests.sh": f"{sys.executable} -m unittest discover checks 2>&1\n",
            ".gitignore": "data/\n*.log\noutputs/\n",
        },
    )
    (folder / "tool").chmod(0o755)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    return folder


def edit(project: Path) -> None:
    """Break everything that a job could read."""
    for path in [*project.glob("*.py"), *project.glob("[!c]*/**/*.py"), project / "tool", project / "conf/a.yaml"]:
        path.write_text("raise SystemExit('new code')\n" if path.suffix != ".yaml" else "x: new\n")
    (project / "library/value.py").unlink()
    (project / "library/inner").rename(project / "library/moved")
    (project / "read.py").chmod(0)


def run_all(queue: Background, project: Path, commands: list[list[str]]) -> list[str]:
    """The outputs of jobs that start after the edits."""
    jobs = [submitted(queue, "--", *words) for words in commands]
    edit(project)
    queue("resume", *map(str, jobs))
    queue.wait_over(*jobs)
    return [queue.log(job).strip() for job in jobs]


def test_python_programs(background: Background, project: Path) -> None:
    """Relative imports, spawned processes, programs by their `#!` line, arguments, and files beside the script."""
    python = sys.executable
    outputs = run_all(
        background,
        project,
        [
            [python, "-m", "library.inner.main"],
            [python, "-Wignore", "spawn.py"],
            ["./tool"],
            [python, "read.py", "conf/a.yaml"],
            [python, "beside.py"],
            [python, "fails.py"],
            ["sh", "tests.sh"],
            ["sh", "-c", f"{python} -m library.inner.main; PYTHONPATH=src {python} -P -c 'import editable'"],
        ],
    )
    relative, spawn, tool, read, beside, failure, tests, shell = outputs
    assert "OK" in tests.splitlines()  # a program that refuses tests from elsewhere finds those that are there
    assert relative == "relative old"
    assert spawn == "spawn old late old1 late old2"
    assert tool == "tool old"
    assert read == "read x: old"
    assert beside.splitlines()[0] == "beside x: old ignored"
    assert beside.splitlines()[1:] == ["read-only"]  # for root too
    assert not (project / "created").exists()
    assert "ValueError: old" in failure
    assert f"/{project.name}/fails.py" in failure
    assert (
        shell.splitlines() == ["new code"] * 2
    )  # a text in the command is no file, so that it is not frozen by default


def test_search_paths(background: Background, project: Path) -> None:
    """PYTHONPATH inside the tree, and editable installs: a .pth file, and a mapping as setuptools makes it."""
    packages = background.cwd.parent / "packages"
    write(
        packages,
        {
            "sitecustomize.py": "import site\nsite.addsitedir(__file__.rpartition('/')[0])\nprint('hidden')\n",
            "x.pth": f"{project}/src\n",
            "finder.py": "import sys\nfrom importlib.util import spec_from_file_location\n"
            f"MAPPING = {{'mapped': '{project}/library/calls.py'}}\n"
            "class Finder:\n    @classmethod\n    def find_spec(cls, name, path=None, target=None):\n"
            "        if name in MAPPING:\n            return spec_from_file_location(name, MAPPING[name])\n",
        },
    )
    program = "import editable, library.value; print(editable.EDITABLE, library.value.VALUE)"
    write(project, {"uses.py": program})
    jobs = [
        submitted(background, "--env", f"PYTHONPATH={project}/src:{project}", "--", sys.executable, "uses.py"),
        submitted(background, "--env", "PYTHONPATH=src", "--", sys.executable, "-m", "uses"),
        submitted(background, "--env", f"PYTHONPATH={packages}", "--", sys.executable, "uses.py"),
    ]
    edit(project)
    background("resume", *map(str, jobs))
    background.wait_over(*jobs)
    assert [background.log(job).split() for job in jobs] == [["old", "old"], ["old", "old"], ["hidden", "old", "old"]]


def test_hydra(background: Background, project: Path) -> None:
    """The module and the configuration beside it."""
    pytest.importorskip("hydra")
    assert run_all(background, project, [[sys.executable, "app.py"]]) == ["hydra old old"]
    assert list((project / "outputs").iterdir())


def test_joblib(background: Background, project: Path) -> None:
    pytest.importorskip("joblib")
    assert run_all(background, project, [[sys.executable, "parallel.py"]]) == ["joblib old0 old1"]


def test_notebook(background: Background, project: Path) -> None:
    """A kernel imports the frozen modules."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    (output,) = run_all(background, project, [[sys.executable, "notebook.py"]])
    assert output.splitlines()[-1] == "notebook old"


def test_torch(background: Background, project: Path) -> None:
    """The module, and the program that the package installs."""
    pytest.importorskip("torch")
    script = ["--standalone", "--nproc_per_node=2", "torch_program.py"]  # a free port each
    commands = [[sys.executable, "-m", "torch.distributed.run", *script], ["torchrun", *script]]
    for output in run_all(background, project, commands):
        assert output.splitlines()[-2:] == ["torch old 2"] * 2
