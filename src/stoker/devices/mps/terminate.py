"""The program that ends the GPU work of clients before they are killed: a kill in the midst of it may wedge the server.

Standard library only.
"""

from __future__ import annotations

import os
import sys

from stoker.devices.mps.control import Control
from stoker.devices.mps.daemon import Place

PATIENCE = 5.0
"""Seconds; a worker waits a little longer than that."""


def main(words: list[str]) -> None:
    """The words are the control program, the place, and the processes that are about to be killed."""
    program, root, *pids = words
    control = Control(program, Place(root), {"PATH": os.defpath})
    control.terminate({int(pid) for pid in pids}, PATIENCE)


if __name__ == "__main__":
    main(sys.argv[1:])
