"""A process that tells which NVIDIA GPUs are forgotten by the driver while nobody uses them."""

from __future__ import annotations

import contextlib

import pynvml


def main() -> None:
    """Print the index of every GPU whose persistence mode is off; those that do not tell are left out."""
    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        with contextlib.suppress(pynvml.NVMLError):
            if not pynvml.nvmlDeviceGetPersistenceMode(pynvml.nvmlDeviceGetHandleByIndex(index)):
                print(index)


if __name__ == "__main__":
    main()
