"""How the programs of this package are started: by our own Python, whatever the environment says of modules."""

from __future__ import annotations

import sys
from pathlib import Path

from stoker.mps.place import Place

_PARENT = str(Path(__file__).resolve().parents[2])


def warden_words(program: str, place: Place, visible: str, membership: int, *, exclusive: bool) -> tuple[str, ...]:
    """The command that makes a daemon ready, for whoever hands down the descriptor of a client."""
    wish = "exclusive" if exclusive else ""
    return (*_words("warden"), program, place.root, visible, str(membership), wish)


def farewell_words(program: str, place: Place) -> tuple[str, ...]:
    """The command that ends the work of clients; the numbers of their processes follow."""
    return (*_words("farewell"), program, place.root)


def _words(module: str) -> tuple[str, ...]:
    start = f"import sys; sys.path.insert(0, sys.argv.pop(1)); from stoker.mps.{module} import main; main(sys.argv[1:])"
    return (sys.executable, "-I", "-S", "-c", start, _PARENT)
