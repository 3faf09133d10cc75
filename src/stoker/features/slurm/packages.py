"""Find an installed Slurm, or unpack Debian's packages of it into a directory, for which no root is needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stoker.core.errors import StokerError
from stoker.core.settings import ClusterSettings
from stoker.features.slurm.commands import LIBRARIES, slurm_environment

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge")
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
APT_SECONDS = 300.0
_OWN_LIBRARIES = re.compile(r"lib(munge|hwloc|numa|slurm)")
"""Libraries that a server without Slurm seldom has; others are unpacked only if they are missing here."""
_INSTALL = "ask an administrator to install slurmctld, slurmd, slurm-client and munge on all servers, the same release"


def missing_programs(environment: Mapping[str, str]) -> list[str]:
    """Programs of an installed Slurm that this machine lacks."""
    path = slurm_environment(ClusterSettings(), environment)["PATH"]
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


def is_unpacked(prefix: Path) -> bool:
    return (prefix / "usr/sbin/slurmctld").exists() and (prefix / LIBRARIES).exists()


def unpack(prefix: Path, say: Callable[[str], None]) -> None:
    """Make `prefix` a Slurm that runs without being installed; half a one is never left there."""
    if is_unpacked(prefix):
        return
    lacking = [name for name in ("apt-get", "apt-cache", "dpkg") if shutil.which(name) is None]
    if lacking:
        raise StokerError(f"Slurm is not installed on all servers, and this machine has no {lacking[0]}", _INSTALL)
    say(f"unpacking Slurm into {prefix}")
    prefix.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    work = Path(tempfile.mkdtemp(prefix=f".{prefix.name}.", dir=prefix.parent))
    try:
        _download(work)
        for package in work.glob("*.deb"):
            _run(["dpkg", "-x", str(package), str(work)], work)
            package.unlink()
        _link(work)
        work.chmod(0o755)
        work.rename(prefix)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download(directory: Path) -> None:
    depends = _run(["apt-cache", "depends", "--no-recommends", "--no-suggests", *PACKAGES], directory)
    libraries = sorted(set(re.findall(r"Depends: (lib\S+)", depends)))
    wanted = [name for name in libraries if _OWN_LIBRARIES.match(name) or not _is_installed(name)]
    _run(["apt-get", "download", "-q", *PACKAGES, *wanted], directory)


def _is_installed(package: str) -> bool:
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Abbrev}", package],
        check=False,
        capture_output=True,
        text=True,
        timeout=APT_SECONDS,
    )
    return done.stdout.startswith("ii")


def _link(root: Path) -> None:
    """Names that Debian's alternatives would make, and one directory of libraries for any architecture."""
    for program in (root / "usr/sbin").glob("*-wlm"):
        program.with_name(program.name.removesuffix("-wlm")).symlink_to(program.name)
    links = root / LIBRARIES
    links.mkdir()
    for place in ("usr/lib/*/*.so*", "lib/*/*.so*", "usr/lib/*/slurm-wlm"):
        for file in root.glob(place):
            (links / file.name).symlink_to(os.path.relpath(file, links))
    if not (links / "slurm-wlm").exists():
        raise StokerError("Debian's packages of Slurm are not as they used to be: there is no slurm-wlm", _INSTALL)


def _run(command: Sequence[str], directory: Path) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=APT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise StokerError(f"{command[0]} takes longer than {APT_SECONDS:g} s", _INSTALL) from None
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if line.strip()]
        why = words[-1] if words else f"exit code {done.returncode}"
        raise StokerError(f"Slurm cannot be unpacked: {command[0]}: {why}", _INSTALL)
    return done.stdout
