"""A PyTorch that is only said to be installed."""

from __future__ import annotations

import os
from pathlib import Path


def with_torch(home: Path, version: str) -> dict[str, str]:
    """The environment in which Pythons find this version."""
    packages = home / f"packages-{version}"
    folder = packages / f"torch-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
    return {**os.environ, "PYTHONPATH": str(packages)}
