"""Lines that add packages to this installation of Stoker, or repair it, in the words of the tool that made it.

Stoker is installed from a copy of its source. A package of its name in an index would be another program, so no
line asks an index for it.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DISTRIBUTION = "stoker"
_PIPX, _UV = "pipx_metadata.json", "uv-receipt.toml"
"""Files that these tools write into the environments they make."""


def how_to_add_extra(extra: str) -> str:
    """The line that installs those packages of an extra that are missing here."""
    packages = packages_of(extra)
    if not packages:  # run from its source, without an installation
        return f"in the copy of Stoker's source: pip install '.[{extra}]'"
    return how_to_add(*([package for package in packages if not _is_installed(package)] or packages))


def packages_of(extra: str) -> list[str]:
    """The names of the packages in an extra of pyproject.toml."""
    from importlib import metadata

    try:
        asked = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:
        return []
    lines = [line for line in asked if re.search(f"extra == ['\"]{extra}['\"]", line)]
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in lines]


def how_to_add(*packages: str, prefix: str = sys.prefix) -> str:
    """The line that installs packages beside this Stoker."""
    place = Path(prefix)
    if (place / _PIPX).exists():
        return shlex.join(["pipx", "inject", place.name, *packages])
    if (place / _UV).exists():
        return shlex.join(["uv", "tool", "install", *_asked_of_uv(place / _UV, packages)])
    return _pip(place, "install", *packages)


def how_to_repair(prefix: str = sys.prefix) -> str:
    """The line that installs this Stoker again, over damaged or missing files."""
    place = Path(prefix)
    if (place / _PIPX).exists():
        return shlex.join(["pipx", "reinstall", place.name])
    if (place / _UV).exists():
        return shlex.join(["uv", "tool", "upgrade", "--reinstall", place.name])
    return _pip(place, "install", "--force-reinstall", "--no-deps", _source())


def how_to_remove(package: str, prefix: str = sys.prefix) -> str:
    """The line that removes a package from the environment of this Stoker."""
    place = Path(prefix)
    if (place / _PIPX).exists():
        return shlex.join(["pipx", "runpip", place.name, "uninstall", package])
    return _pip(place, "uninstall", package)


def _pip(place: Path, verb: str, *words: str) -> str:
    """A line for pip of an environment; one that uv made has no pip."""
    from importlib.util import find_spec

    python = str(place / "bin/python3")
    pip = ["uv", "pip", verb, "--python", python] if find_spec("pip") is None else [python, "-m", "pip", verb]
    return shlex.join([*pip, *words])


def _asked_of_uv(receipt: Path, packages: Iterable[str]) -> list[str]:
    """The arguments that ask uv for these packages and for all that it was asked for before, which it would drop."""
    import tomllib

    requirements: list[dict[str, Any]] = tomllib.loads(receipt.read_text())["tool"]["requirements"]
    ours = next(asked for asked in requirements if asked["name"] == DISTRIBUTION)
    before = [f"{asked['name']}{asked.get('specifier', '')}" for asked in requirements if asked is not ours]
    extras = f"[{','.join(ours['extras'])}]" if ours.get("extras") else ""
    added = [word for package in (*before, *packages) for word in ("--with", package)]
    return [*added, f"{ours.get('directory') or _source()}{extras}"]


def _source() -> str:
    """The copy of the source that this Stoker was installed from; DIRECTORY stands for one that is not recorded."""
    import json
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    try:
        recorded = json.loads(metadata.distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        recorded = {}
    url = urlsplit(recorded.get("url", ""))
    return unquote(url.path) if url.scheme == "file" else url.geturl() or "DIRECTORY"


def _is_installed(package: str) -> bool:
    from importlib import metadata

    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True
