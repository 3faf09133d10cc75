"""The installed packages that a script imports."""

from __future__ import annotations

from pathlib import Path

from stoker.app.jobs.imports import NOTHING, imported_by, with_modules
from stoker.core.spec import Command, JobSpec
from stoker.core.warm import AUTO

SCRIPT = """
from __future__ import annotations
import json, torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from model import Net
import package.part
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import heavy_for_types
try:
    import optional
except ImportError:
    pass
def later():
    import seldom
from numpy import *
"""


def test_imports_of_a_script(tmp_path: Path) -> None:
    """Those that surely happen: of the script, and of modules beside it; none of the standard library."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "model.py").write_text("import einops\nimport train\n")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text("from . import inner\nfrom .inner import x\nfrom ._compiled import y\n")
    (package / "inner.py").write_text("import scipy.stats\nx = 1\nimport package.part\nimport model\n")
    found = imported_by([str(tmp_path / "train.py")])
    assert sorted(found) == ["einops", "numpy", "scipy.stats", "torch.nn", "torch.utils.data:DataLoader,Dataset"]


def test_bad_files(tmp_path: Path) -> None:
    """A file that cannot be read or parsed imports nothing."""
    (tmp_path / "bad.py").write_bytes(b"import \x00\nthis is no python")
    assert imported_by([str(tmp_path / "bad.py"), str(tmp_path / "missing.py")]) == []


def test_modules_of_a_job(tmp_path: Path) -> None:
    """They are found beside the script or the module; a script without any gains the start of Python."""
    (tmp_path / "train.py").write_text("import torch")
    (tmp_path / "plain.py").write_text("import json")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__main__.py").write_text("import einops")
    spec = JobSpec(cwd=str(tmp_path), warm=(AUTO,))
    expected = {
        "python train.py": ("torch",),
        "python -m train": ("torch",),
        "python -m package": ("einops",),
        "python plain.py": NOTHING,
        "bash run.sh": (AUTO,),
    }
    found = {words: with_modules(Command(tuple(words.split())), spec).warm for words in expected}
    assert found == expected
