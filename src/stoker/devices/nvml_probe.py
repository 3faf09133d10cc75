"""The process that asks the NVIDIA driver, so that a driver that hangs takes nobody else with it."""

from __future__ import annotations

import os
import time

import msgspec
import pynvml

from stoker.devices.nvml_answer import Answer
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


def main() -> None:
    """Answer each byte on standard input with a line, until it closes or there is no driver to ask.

    A library that failed once stays loaded as it is, even when the driver is updated; so the process
    ends after it has said what is wrong, and the next one starts with whatever is installed then.
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
    main()
