"""The GPU's compute mode: exclusive while a daemon runs, where that was asked for and is permitted.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

from stoker.mps.place import Place

PROGRAM = "nvidia-smi"
PATIENCE = 10.0


def make_exclusive(visible: str, place: Place) -> str:
    """Let nobody but the daemon use the GPU; why that was not possible, or nothing.

    A mode that an administrator chose is left alone, now and afterwards.
    """
    if os.path.exists(place.exclusive):
        return ""
    said, well = _ask(visible, "--query-gpu=compute_mode", "--format=csv,noheader")
    if well and said != "Default":
        return ""
    with open(place.exclusive, "w"):  # first: who finds the mode changed must know by whom
        pass
    said, well = _ask(visible, "-c", "EXCLUSIVE_PROCESS")
    if well:
        return ""
    _forget(place)
    return f"the compute mode of {visible} stays as it is: {said}"


def give_back(visible: str, place: Place) -> None:
    """Let everybody use the GPU again, if it was us who changed that."""
    if os.path.exists(place.exclusive) and _ask(visible, "-c", "DEFAULT")[1]:
        _forget(place)


def _forget(place: Place) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(place.exclusive)


def _ask(visible: str, *words: str) -> tuple[str, bool]:
    """What nvidia-smi says, in one line, and whether it did what it was told."""
    try:
        done = subprocess.run(
            [PROGRAM, "-i", visible, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{PROGRAM} does not answer", False
    except OSError as error:
        return f"{PROGRAM}: {error.strerror}", False
    return " ".join(done.stdout.split()) or f"{PROGRAM} gave no reason", done.returncode == 0
