"""A job on the GPUs of the stand-in: it writes its memory into the state, and dies where a GPU is full."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.devices.demo_job import Options, torch_oom_text
from stoker.devices.simulator import SimulatedOutOfMemory

sys.path.append(str(Path(__file__).parents[2]))  # run as a program, its own folder is the first entry

from support.training_job import TrainingOptions, training_parser

TICK_SECONDS = 0.05


def main() -> int:
    """Hold memory along the curve on every GPU that CUDA_VISIBLE_DEVICES names by its UUID."""
    options = training_parser().parse_args(namespace=TrainingOptions())
    state = Path(os.environ["FAKE_NVML_STATE"])
    began = time.monotonic()
    held = -1
    while True:
        elapsed = time.monotonic() - began
        size = options.memory_at(elapsed)
        if size != held and (words := hold(state, size, options)):
            print(words, file=sys.stderr)
            return 1
        held = size
        if elapsed >= options.seconds:
            return options.exit_code
        time.sleep(min(TICK_SECONDS, options.seconds - elapsed))


def hold(state: Path, size: int, options: Options) -> str:
    """Hold so much on each GPU from now on; a GPU that has too little left gives PyTorch's last words."""
    with turn(state):
        records = [line.split() for line in state.read_text().splitlines()]
        gpus = [record[1] for record in records if record[0] == "gpu"]
        visible = [gpus.index(uuid) for uuid in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if uuid in gpus]
        for ordinal, gpu in enumerate(visible):
            oom = shortage_of(records, gpu, size)
            if oom.is_real:
                return torch_oom_text(oom, ordinal)
        lines = [f"process {gpu} {os.getpid()} {size} compute -1 {options.load}\n" for gpu in visible]
        with state.open("a") as file:
            file.write("".join(lines))
    return ""


def shortage_of(records: list[list[str]], gpu: int, size: int) -> SimulatedOutOfMemory:
    """What a process meets that wants to hold so much on a GPU."""
    (memory,) = [record for record in records if record[:2] == ["memory", str(gpu)]]
    total, reserved, base = map(int, memory[2:5])
    sizes = {int(record[2]): int(record[3]) for record in records if record[:2] == ["process", str(gpu)]}
    mine = sizes.pop(os.getpid(), 0)
    others = tuple((pid, held) for pid, held in sizes.items() if Path(f"/proc/{pid}/exe").exists())
    return SimulatedOutOfMemory(gpu, total - reserved - base, size - mine, mine, others)


@contextmanager
def turn(state: Path) -> Iterator[None]:
    """Keep other jobs from counting and taking at the same time."""
    with state.with_suffix(".turn").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
