"""Write the sample trace of `stoker simulate --sample`: three weeks of a made-up group of eight users.

Nothing is copied from a real trace. As in published traces, most jobs are short and use one GPU, a few long and wide
jobs use much of the GPU time, jobs arrive in the daytime, and most jobs repeat a program, with log-normal durations
(s = 0.6).
"""

from __future__ import annotations

from pathlib import Path
from random import Random

TARGET = Path(__file__).parent.parent / "src" / "stoker" / "simulation" / "sample.csv"
JOBS, DAYS, USERS = 400, 21, 8
PROGRAMS = (
    (30, 0.5, 1, 3, 30),
    (30, 2.0, 1, 6, 60),
    (20, 6.0, 1, 10, 85),
    (12, 3.0, 2, 14, 90),
    (5, 10.0, 4, 20, 95),
    (3, 12.0, 8, 26, 97),
)
"""Weight, median hours, GPUs, GiB on each, and percent of each that a program keeps busy."""


def sample() -> str:
    """The text of the file."""
    random = Random(12)  # noqa: S311 - not a secret
    rows = sorted(_row(random) for _ in range(JOBS))
    return "\n".join(["submit,duration,gpus,user,vram,load,name", *(",".join(map(str, row)) for row in rows), ""])


def _row(random: Random) -> tuple[int, int, int, str, str, int, str]:
    number = random.choices(range(len(PROGRAMS)), [program[0] for program in PROGRAMS])[0]
    _, hours, gpus, gib, load = PROGRAMS[number]
    user = f"user{random.randrange(USERS)}"
    hour = min(23.9, max(0.0, random.gauss(14, 4)))
    arrival = random.randrange(DAYS) * 86400 + hour * 3600
    seconds = 3600 * hours * random.lognormvariate(0, 0.6)
    return round(arrival), max(20, round(seconds)), gpus, user, f"{gib}G", load, f"{user}-program{number}"


if __name__ == "__main__":
    TARGET.write_text(sample(), encoding="utf-8")
