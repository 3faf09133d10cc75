"""The file in which root drains devices for all users."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

import msgspec

from stoker.ledger.files import (
    FAULTS_OF_THE_FILE,
    SIZE_LIMIT,
    InvalidFile,
    Moment,
    opened,
    owner_name,
    publish,
    unlink,
    within_limit,
)

NAME = "drained"
"""A fixed name: a file of another user in this place is ignored, and root replaces it."""
ROOT = 0

_decoder = msgspec.json.Decoder(dict[str, Moment])


def read(directory: int) -> dict[str, float]:
    """Ledger names of the devices that root drained, each with the time; an error if the file is not root's."""
    try:
        with opened(directory, NAME) as fd:
            status = os.fstat(fd)
            if status.st_uid != ROOT:
                raise InvalidFile(f"it belongs to {owner_name(status.st_uid)}, and only root drains devices for all")
            if not stat.S_ISREG(status.st_mode):
                raise InvalidFile("not a file of Stoker")
            return dict(_decoder.decode(within_limit(os.read(fd, SIZE_LIMIT + 1))))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise InvalidFile(f"its contents are no list of devices ({error})") from error
    except OSError as error:
        if error.errno not in FAULTS_OF_THE_FILE:
            raise
        raise InvalidFile("it cannot be opened") from error


def write(directory: int, drains: Mapping[str, float]) -> None:
    """Replace the list."""
    if not drains:
        unlink(directory, NAME)
        return
    try:
        os.close(publish(directory, NAME, within_limit(msgspec.json.encode(drains))))
    except IsADirectoryError as error:
        raise OSError(error.errno, f"{NAME} is a directory that a user made there: remove it") from error
