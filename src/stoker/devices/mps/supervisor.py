"""The program that makes a daemon ready for one more client, and stops it after the last one.

It leaves a process behind that waits until the kernel says that nobody has a client any more: no engine has to be
there for that. Then it says `ready`, or `failed` with a reason and a hint, on its standard output, and ends.
Standard library only.
"""

from __future__ import annotations

import os
import sys

from stoker.core.errors import StokerError
from stoker.devices.mps.control import Control
from stoker.devices.mps.daemon import Place, give_back, make_exclusive, take_office, wait_last


def main(words: list[str]) -> None:
    """The words are the control program, the place, the GPU as in CUDA_VISIBLE_DEVICES, a descriptor and a wish.

    The descriptor is that of the client: as long as we have it, nobody stops what we start, and when we are killed
    somebody does. The wish is "exclusive" or nothing.
    """
    program, root, visible, membership, wish = words
    place = Place(root)
    control = Control(program, place, os.environ)
    office = take_office(place)
    if office is not None:
        _leave_behind(control, place, visible, office, int(membership))
    try:
        _make_ready(control, place, visible, exclusive=wish == "exclusive")
    except StokerError as error:
        print(f"failed\t{error.message}\t{error.hint}", flush=True)
    else:
        print("ready", flush=True)


def _make_ready(control: Control, place: Place, visible: str, *, exclusive: bool) -> None:
    if control.alive():
        return
    if exclusive and (note := make_exclusive(visible, place)):
        print(f"note\t{note}")
    control.start(visible)


def _leave_behind(control: Control, place: Place, visible: str, office: int, membership: int) -> None:
    """A child takes the office over, which waits for the last client and is none itself."""
    if os.fork() > 0:
        os.close(office)
        return
    try:
        os.close(membership)
        _let_go()
        last = wait_last(place)
        control.quit()
        give_back(visible, place)
        os.close(office)  # before the others may join: the next one must find the office free
        os.close(last)
    finally:
        os._exit(0)


def _let_go() -> None:
    """Stay when a terminal goes, and keep none of our starter's streams open."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


if __name__ == "__main__":
    main(sys.argv[1:])
