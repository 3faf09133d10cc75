"""Four fake GPUs for programs that use NVML: the stand-in library of the tests."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from programs import SLOTS

TESTS = Path(__file__).resolve().parent.parent / "tests"


def compiler_is_here() -> bool:
    """Whether the stand-in can be built."""
    return shutil.which("cc") is not None


def gpus(directory: Path) -> dict[str, str]:
    """Variables with which a new process finds the GPUs; the library is compiled in the directory."""
    sys.path.append(str(TESTS))
    from support.nvml import Bench, FakeGpu, FakeMachine, compiled

    directory.mkdir(parents=True, exist_ok=True)
    bench = Bench(compiled(directory), directory / "gpus")
    bench.write(FakeMachine(tuple(FakeGpu(f"GPU-{index:08d}-0000-0000-0000-000000000000") for index in range(SLOTS))))
    return {name: bench.environment[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")}
