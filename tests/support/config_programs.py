"""Programs about configuration files that tests run as another user."""

from __future__ import annotations

import tomllib  # noqa: F401  loaded while the process may still read the library
from pathlib import Path

from stoker.app.jobs.config import Settings, read_settings


def tell(*paths: str) -> None:
    """Prints what each file says, or why it is ignored."""
    for path in paths:
        found = next(read_settings(Path(path)), None)
        print(found.table if isinstance(found, Settings) else found.why if found else "nothing")
