"""Threads that decode a struct for the first time do not crash the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.wait import PATIENCE_SECONDS

PROGRAM = """
import json, sys, threading
import msgspec
import stoker_structs
from stoker.python.connection import find_link
from stoker.store.decoders import prepare_decoders

if sys.argv[1] == "before":
    prepare_decoders()
sys.setswitchinterval(1e-6)
value = {}
for _ in range(40):
    value = {**{f"f{field}": 1 for field in range(10)}, "inner": value}
data, barrier = json.dumps(value).encode(), threading.Barrier(8)

def decode():
    barrier.wait()
    if sys.argv[1] == "within":
        find_link()
    msgspec.json.decode(data, type=stoker_structs.S39)

threads = [threading.Thread(target=decode) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize("when", ["before", "within"])
def test_many_threads(tmp_path: Path, when: str) -> None:
    """One thread prepares the structs before the others start, or each does when it looks for its queue.

    Without the preparation, this process dies of a segmentation fault nearly every time.
    """
    fields = "".join(f"    f{field}: int | None = None\n" for field in range(10))
    lines = ["from __future__ import annotations", "import msgspec"]
    for number in range(40):
        inner = f"S{number - 1} | None" if number else "dict[str, int]"
        lines.append(f"class S{number}(msgspec.Struct):\n{fields}    inner: {inner} = None")
    (tmp_path / "stoker_structs.py").write_text("\n".join(lines))
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, "program.py", when], cwd=tmp_path, check=False, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0
