"""A stand-in for a training script: prints a loss per epoch and uses memory of simulated GPUs."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import time


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
    with memory(f"{1000 + 60 * given.bs}M"):
        for epoch in range(1, given.epochs + 1):
            time.sleep(given.seconds)
            loss = math.exp(-epoch * given.lr * 100) + 0.01 * given.seed
            print(f"epoch {epoch}/{given.epochs} loss={loss:.4f}", flush=True)


@contextlib.contextmanager
def memory(size: str):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Hold memory on simulated GPUs, so that packing can be seen; nothing on real ones."""
    if "STOKER_SIM_DIR" not in os.environ:
        yield
        return
    from stoker.core.units import parse_size
    from stoker.devices.demo_job import VisibleGpus

    with contextlib.closing(VisibleGpus(os.environ, 40)) as gpus:
        gpus.hold(parse_size(size))
        yield


if __name__ == "__main__":
    main()
