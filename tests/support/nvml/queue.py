"""The queue in the background on a machine with the stand-in driver, whose jobs are lines of a shell."""

from __future__ import annotations

import socket
from pathlib import Path

from stoker.core.learning import Learnt, MeasuredUse
from stoker.store.paths import find_paths
from support.background import Background
from support.nvml import Bench, FakeMachine
from support.nvml.job import turn

STILL = "sleep 600"


def holds(size: int | str, gpu: int = 0, load: int = 30, then: int | None = None) -> str:
    """Shell text: its process holds so many bytes of a GPU from now on; `na` is what the driver does not know.

    What it holds `then` it holds before anybody can look.
    """
    sizes = [size] if then is None else [size, then]
    lines = " ".join(f'"process {gpu} $$ {each} compute -1 {load}"' for each in sizes)
    return f'printf "%s\\n" {lines} >> "$FAKE_NVML_STATE"'


class NvmlQueue(Background):
    """Types `stoker ...` on such a machine."""

    def __init__(self, home: Path, library: Path, machine: FakeMachine) -> None:
        super().__init__(home)
        self.bench = Bench(library, home / "nvml")
        self.bench.write(machine)
        del self.environment["STOKER_SIM"]
        self.environment |= {name: self.bench.environment[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")}
        self.paths = find_paths(self.environment, socket.gethostname(), simulated=False)

    def add(self, line: str) -> None:
        """One more line of the machine's state."""
        with turn(self.bench.state), self.bench.state.open("a") as file:
            file.write(f"{line}\n")

    def remove(self, word: str) -> None:
        """Take back what lines with this first word have said; no job may write meanwhile."""
        with turn(self.bench.state):
            lines = self.bench.state.read_text().splitlines(keepends=True)
            draft = self.bench.state.with_suffix(".draft")
            draft.write_text("".join(line for line in lines if not line.startswith(word)))
            draft.replace(self.bench.state)

    def hand_in(self, *lines: str, vram: str = "auto", options: tuple[str, ...] = ()) -> int:
        """Submit a job of shell text, as it would be typed, and return its id."""
        answer = self("submit", "--parsable", "--vram", vram, *options, "\n".join(lines))
        assert answer.code == 0, answer.err
        return int(answer.out)

    def use(self, job_id: int) -> MeasuredUse | None:
        """What was seen of the first attempt of a job, if anything was."""
        with self.open_store() as store:
            return store.uses(job_id).get(1)

    def peak(self, job_id: int) -> int | None:
        """The most that the first attempt held, where that is known."""
        use = self.use(job_id)
        return use.peak if use else None

    def learnt(self, job_id: int) -> Learnt:
        """What is known of the work of a job."""
        with self.open_store() as store:
            return store.learnt(self.job(job_id).kind)
