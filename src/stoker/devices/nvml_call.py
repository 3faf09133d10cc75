"""Asks the NVIDIA driver's library for one thing that it may not have, or not tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml

# What fails in one of these ways is unknown, and the rest of the device is fine.
_UNTOLD = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
}


def told(call: Callable[..., Any], *arguments: Any) -> Any:
    """The driver's answer, None where it does not have or does not give one."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _UNTOLD:
            return None
        raise
