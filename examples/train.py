"""A stand-in for a training script: prints a loss per epoch and uses memory of simulated GPUs.

It runs with any python3: Stoker need not be installed there.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path


def main() -> None:
    """Train for a few short epochs."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--lr", type=float, default=1e-3)
    options.add_argument("--bs", type=int, default=32)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--seconds", type=float, default=0.2, help="of one epoch")
    given = options.parse_args()
    print(f"lr={given.lr} bs={given.bs} seed={given.seed} on GPU {os.environ.get('CUDA_VISIBLE_DEVICES', 'none')}")
    with memory((1000 + 60 * given.bs) * 2**20):
        for epoch in range(1, given.epochs + 1):
            time.sleep(given.seconds)
            loss = math.exp(-epoch * given.lr * 100) + 0.01 * given.seed
            print(f"epoch {epoch}/{given.epochs} loss={loss:.4f}", flush=True)


@contextlib.contextmanager
def memory(size: int) -> Iterator[None]:
    """Hold memory on simulated GPUs, so that packing can be seen; do nothing on real ones."""
    folder = os.environ.get("STOKER_SIM_DIR")
    gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.isdecimal()]
    if not folder or not gpus:
        yield
        return
    # The simulator reads a file per process, and takes a file without a lock for one of a dead process.
    path = f"{folder}/{os.getpid()}.{os.urandom(4).hex()}"
    with open(f"{path}.new", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump({"pid": os.getpid(), "devices": dict.fromkeys(gpus, size), "load": dict.fromkeys(gpus, 40)}, file)
        file.flush()
        Path(file.name).rename(path)
        try:
            yield
        finally:
            os.unlink(path)


if __name__ == "__main__":
    main()
