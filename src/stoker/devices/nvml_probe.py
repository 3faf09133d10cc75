"""The program that asks the NVIDIA driver, so that a driver that hangs does not hang the engine."""

from __future__ import annotations

import contextlib
import os
import sys
import time

import msgspec
import pynvml

from stoker.devices.nvidia import Answer
from stoker.devices.nvml_reading import AccountBook, Driver

_LIBRARY = "libnvidia-ml.so.1"
_MISMATCH = f"the NVIDIA driver and {_LIBRARY} are of different versions; a restart of the machine mends that"
_ABSENCES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: f"no NVIDIA driver is installed: {_LIBRARY} was not found",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: f"{_LIBRARY} is there, but the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: _MISMATCH,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: _MISMATCH,
    pynvml.NVML_ERROR_NO_PERMISSION: "this user may not open the NVIDIA driver",
}


def main(words: list[str]) -> None:
    """With the word `persistence`, print GPUs without persistence mode; otherwise serve snapshots."""
    if words == ["persistence"]:
        _print_not_persistent()
    else:
        _serve()


def _print_not_persistent() -> None:
    """Print the index of every GPU whose persistence mode is off, for `stoker engine check`."""
    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        with contextlib.suppress(pynvml.NVMLError):
            if not pynvml.nvmlDeviceGetPersistenceMode(pynvml.nvmlDeviceGetHandleByIndex(index)):
                print(index)


def _serve() -> None:
    """Answer each byte on standard input with a line, until it closes or there is no driver to ask.

    A library that failed once stays loaded as it is, even when the driver is updated; so the process
    ends after it has said what is wrong, and the next one loads the library that is installed then.
    """
    driver: Driver | None = None
    books: dict[str, AccountBook] = {}
    while os.read(0, 1):
        driver, answer = _ask(driver, books)
        os.write(1, msgspec.json.encode(answer) + b"\n")
        if answer.snapshot is None:
            return


def _ask(driver: Driver | None, books: dict[str, AccountBook]) -> tuple[Driver | None, Answer]:
    try:
        driver = driver or Driver(books)
        snapshot = driver.read(time.time())
        if any(reading.problem for reading in snapshot.readings.values()):
            driver.close()
            driver = None
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError) as error:
        return None, Answer(absent=_absence(error))
    if not snapshot.devices:
        return driver, Answer(absent="the NVIDIA driver is loaded, but shows no GPU that jobs could use")
    return driver, Answer(snapshot)


def _absence(error: Exception) -> str:
    code = getattr(error, "value", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    return _ABSENCES.get(code, f"the NVIDIA driver cannot be asked ({error})")


if __name__ == "__main__":
    main(sys.argv[1:])
