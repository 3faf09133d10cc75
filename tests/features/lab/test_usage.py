"""Usage by day: what a queue publishes, and what others read."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path

import msgspec
import pytest

from stoker.app.jobs.local_time import midnight, to_datetime
from stoker.core.units import DAY
from stoker.features.lab.formats import (
    KEPT_DAYS,
    MOST_KWH,
    USAGE,
    GpuDay,
    GroupDay,
    UsageFile,
    decode_usage,
    encode_usage,
)
from stoker.features.lab.own_usage import INTERVAL, UsageFileWriter, ordinal, used_days
from stoker.features.lab.usage import By, LabUsage, UsageTotal, usage_files, usage_totals
from stoker.features.lab.usage_command import render_usage
from stoker.ledger import Ledger
from stoker.ledger.files import MOST_BYTES
from stoker.store.samples import MINUTE, Sample, write_samples
from support.build import GIB
from support.ledger_files import lease_name
from support.past import NOW, PastQueue

HOUR = 3600.0
TODAY = ordinal(NOW)
NAMES = {"0": "GPU-A", "1": "GPU-B"}
TO_MIDNIGHT = midnight(NOW) - NOW
"""From now to the midnight before; negative."""


def measure(queue: PastQueue, start: float, minutes: int, *, utilisation: int, reserved: int, used: int) -> None:
    """Samples of the first GPU, which takes 300 watts."""
    first = int((NOW + start) // MINUTE)
    samples = [Sample(first + place, "0", utilisation, used, reserved, 60, 300.0) for place in range(minutes)]
    with queue.store.writing() as connection:
        write_samples(connection, samples)


def totals(queue: PastQueue, ledger: Ledger, by: By, days: int = 30) -> list[UsageTotal]:
    return usage_totals(queue.facts(), usage_files(ledger)[0], days, by)


def test_days(queue: PastQueue) -> None:
    """A job that passes midnight counts on both days, jobs that share a GPU once; waiting counts at the start."""
    queue.ran("long", "0", TO_MIDNIGHT - HOUR, TO_MIDNIGHT + HOUR, gib=6, group="vision")
    queue.ran("beside", "0", TO_MIDNIGHT + HOUR / 2, TO_MIDNIGHT + HOUR, gib=6)
    queue.ran("without", "", TO_MIDNIGHT, TO_MIDNIGHT + HOUR)
    usage = used_days(queue.store, midnight(NOW) - DAY, NOW, NAMES, groups=True)
    assert usage.gpus == (GpuDay(TODAY - 1, "GPU-A", 1.0, None, None), GpuDay(TODAY, "GPU-A", 1.0, None, None))
    assert usage.groups == (
        GroupDay(TODAY - 1, "vision", 1.0, 0.0028),
        GroupDay(TODAY, "", 0.5, 0.0028),
        GroupDay(TODAY, "vision", 1.0, 0.0),
    )
    hidden = used_days(queue.store, midnight(NOW), NOW, NAMES, groups=False)
    assert hidden.groups == (GroupDay(TODAY, "", 1.0, 0.0028),)


def test_idle_hours_and_energy(queue: PastQueue) -> None:
    """They come from samples; of a GPU that others use too, only the reserved part counts as energy."""
    queue.ran("mine", "0", TO_MIDNIGHT, TO_MIDNIGHT + 3 * HOUR, gib=6)
    measure(queue, TO_MIDNIGHT, 60, utilisation=3, reserved=6 * GIB, used=GIB)
    measure(queue, TO_MIDNIGHT + HOUR, 60, utilisation=90, reserved=6 * GIB, used=12 * GIB)
    measure(queue, TO_MIDNIGHT + 2 * HOUR, 60, utilisation=0, reserved=0, used=12 * GIB)
    (day,) = used_days(queue.store, midnight(NOW), NOW, NAMES, groups=False).gpus
    assert (day.gpu_hours, day.idle_hours, day.energy_kwh) == (3.0, 1.0, 0.45)


def test_figures_beyond_belief(queue: PastQueue) -> None:
    """A broken sensor or an odd name does not void the file of its user."""
    queue.ran("mine", "0", TO_MIDNIGHT, TO_MIDNIGHT + HOUR, gib=6, group="a\n\x1b")
    with queue.store.writing() as connection:
        write_samples(connection, [Sample(int((NOW + TO_MIDNIGHT) // MINUTE), "0", 50, 1, GIB, 60, 1e12)])
    usage = used_days(queue.store, midnight(NOW), NOW, NAMES, groups=True)
    _, told = decode_usage(encode_usage(usage), 0)
    assert [(day.gpu_hours, day.energy_kwh) for day in told.gpus] == [(1.0, MOST_KWH)]
    assert all(day.group.isprintable() for day in told.groups)


def test_the_file_outlives_its_engine(queue: PastQueue, ledger: Ledger, tmp_path: Path) -> None:
    """The next engine of the queue goes on with it, also with days that it could not sum up any more."""
    queue.ran("mine", "0", TO_MIDNIGHT, TO_MIDNIGHT + HOUR)
    old = GpuDay(TODAY - 20, "GPU-A", 24.0, 2.0, 7.0)
    first = UsageFileWriter(ledger, tmp_path, queue.store)
    first.publish(NOW, NAMES, groups=False)
    (path,) = ledger.path.glob("*.usage")
    told = msgspec.json.decode(path.read_bytes(), type=UsageFile)
    ledger.leave(path.name, encode_usage(msgspec.structs.replace(told, gpus=(old, *told.gpus))))
    queue.ran("more", "1", -2 * HOUR, -HOUR)
    second = UsageFileWriter(ledger, tmp_path, queue.store)
    second.publish(NOW, NAMES, groups=False)
    second.publish(NOW + 1, NAMES, groups=False)
    (path,) = ledger.path.glob("*.usage")
    (total,) = totals(queue, ledger, "user")
    assert (total.gpu_hours, total.idle_gpu_hours, total.energy_kwh) == (26.0, 2.0, 7.0)
    assert [(line.gpu, line.gpu_hours) for line in totals(queue, ledger, "gpu")] == [("GPU-A", 25.0), ("GPU-B", 1.0)]
    assert [line.day for line in totals(queue, ledger, "day", 7)] == [date.fromordinal(TODAY).isoformat()]


def test_other_queues_of_a_user_add_up(queue: PastQueue, ledger: Ledger, tmp_path: Path) -> None:
    """Two engines of one queue do not, and the next one removes what is doubled."""
    queue.ran("mine", "0", TO_MIDNIGHT, TO_MIDNIGHT + HOUR)
    for place in ("a", "a", "b"):
        usage = UsageFileWriter(ledger, tmp_path / place, queue.store)
        usage._found = UsageFile  # type: ignore[method-assign]  # as if both looked at the same moment
        usage.publish(NOW, NAMES, groups=False)
    assert len(list(ledger.path.glob("*.usage"))) == 3
    assert [total.gpu_hours for total in totals(queue, ledger, "user")] == [2.0]
    UsageFileWriter(ledger, tmp_path / "a", queue.store).publish(NOW, NAMES, groups=False)
    assert len(list(ledger.path.glob("*.usage"))) == 2


def test_sharing_less(queue: PastQueue, ledger: Ledger, tmp_path: Path) -> None:
    """Names of groups that an earlier engine told are forgotten, and in the end the whole file."""
    queue.ran("mine", "0", TO_MIDNIGHT - 2 * HOUR, TO_MIDNIGHT - HOUR, group="secret")
    UsageFileWriter(ledger, tmp_path, queue.store).publish(NOW, NAMES, groups=True)
    assert [total.group for total in totals(queue, ledger, "group")] == ["secret"]
    usage = UsageFileWriter(ledger, tmp_path, queue.store)
    usage.publish(NOW, NAMES, groups=False)
    assert [(total.group, total.gpu_hours) for total in totals(queue, ledger, "group")] == [("", 1.0)]
    UsageFileWriter(ledger, tmp_path, queue.store).withdraw()
    assert not list(ledger.path.iterdir())


def test_a_jump_of_the_clock(queue: PastQueue, ledger: Ledger, tmp_path: Path) -> None:
    """Days that lie in the future after it are dropped, and the present ones are summed up again."""
    queue.ran("mine", "0", TO_MIDNIGHT, TO_MIDNIGHT + HOUR)
    UsageFileWriter(ledger, tmp_path, queue.store).publish(NOW + 400 * DAY, NAMES, groups=False)
    usage = UsageFileWriter(ledger, tmp_path, queue.store)
    usage.publish(NOW, NAMES, groups=False)
    usage.publish(NOW + INTERVAL, NAMES, groups=False)
    assert [total.gpu_hours for total in totals(queue, ledger, "user")] == [1.0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes files of other users")
def test_a_planted_name(queue: PastQueue, ledger: Ledger, tmp_path: Path) -> None:
    """What another user puts in the place of the file counts for nobody, and the usage gets another name."""
    queue.ran("mine", "0", TO_MIDNIGHT, TO_MIDNIGHT + HOUR)
    usage = UsageFileWriter(ledger, tmp_path, queue.store)
    usage.publish(NOW, NAMES, groups=False)
    (path,) = ledger.path.glob("*.usage")
    path.unlink()
    path.mkdir()
    usage.publish(NOW + INTERVAL, NAMES, groups=False)
    usage.publish(NOW + 2 * INTERVAL, NAMES, groups=False)
    assert [total.gpu_hours for total in totals(queue, ledger, "user")] == [1.0]


GOOD = {"version": 1, "queue": "0" * 16, "at": 5.0, "gpus": [[TODAY, "GPU-A", 2.0, 1.0, 0.5]], "groups": []}


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"queue": "../x"},
        {"at": -1.0},
        {"at": 253402300900},
        {"user": "root"},
        {"gpus": [[TODAY, "GPU-A", -2.0, 1.0, 0.5]]},
        {"gpus": [[TODAY, "GPU-A", float("nan"), 1.0, 0.5]]},
        {"gpus": [[TODAY, "GPU-A", 25.1, 1.0, 0.5]]},
        {"gpus": [[TODAY, "GPU-A", 2.0, -1.0, 0.5]]},
        {"gpus": [[TODAY, "GPU-A", 2.0, 1.0, 1e9]]},
        {"gpus": [[date(1969, 12, 31).toordinal(), "GPU-A", 2.0, 1.0, 0.5]]},
        {"gpus": [[date(9999, 12, 31).toordinal(), "GPU-A", 2.0, 1.0, 0.5]]},
        {"gpus": [[TODAY, "G" * 201, 2.0, 1.0, 0.5]]},
        {"gpus": [[TODAY, "GPU-A", 2.0, 1.0, 0.5, "root"]]},
        {"groups": [[TODAY, "a", 2.0, -1.0]]},
        {"groups": [[TODAY, "a", 2.0, float("inf")]]},
        {"groups": [[TODAY, "a" * MOST_BYTES, 2.0, 1.0]]},
    ],
)
def test_bad_files_are_ignored(ledger: Ledger, changes: dict[str, object]) -> None:
    """With a warning that names the file."""
    name = lease_name().replace(".lease", f".{USAGE}")
    (ledger.path / name).write_text(json.dumps(GOOD))
    assert len(usage_files(ledger)[0]) == 1
    (ledger.path / name).write_text(json.dumps(GOOD | changes))
    files, warnings = usage_files(Ledger(ledger.path))
    assert not files
    assert name in warnings[0]


def test_lies_within_bounds(queue: PastQueue, ledger: Ledger) -> None:
    """Days of the far past and future count for no question, and of a day that is told twice one."""
    days = [[day, "GPU-A", 20.0, 1.0, 0.5] for day in (TODAY, TODAY, TODAY + 1, TODAY - KEPT_DAYS, 719163)]
    name = lease_name().replace(".lease", f".{USAGE}")
    escape = "\x1b[2J"
    groups = [[TODAY, escape, 2.0, 1.0]]
    (ledger.path / name).write_text(json.dumps(GOOD | {"gpus": days, "groups": groups}))
    (total,) = totals(queue, ledger, "user")
    assert (total.gpu_hours, total.waiting_hours) == (20.0, 1.0)
    (total,) = totals(queue, ledger, "group")
    assert total.group == "\\x1b[2J"


def test_a_long_history_fits() -> None:
    """Without its oldest days."""
    names = [f"GPU-{number:040}" for number in range(64)]
    gpus = [GpuDay(TODAY - day, name, 12.3456, 1.2345, 3.4567) for day in range(KEPT_DAYS) for name in names]
    contents = encode_usage(UsageFile(gpus=tuple(gpus)))
    assert len(contents) <= MOST_BYTES
    _, usage = decode_usage(contents, 0)
    kept = {line.day for line in usage.gpus}
    assert kept == set(range(min(kept), TODAY + 1))
    assert len(usage.gpus) == 64 * len(kept)


def test_the_table(queue: PastQueue, ledger: Ledger, tmp_path: Path) -> None:
    """A line for each user; what a question cannot have has no column."""
    queue.ran("mine", "0", TO_MIDNIGHT, TO_MIDNIGHT + 3 * HOUR, group="vision")
    measure(queue, TO_MIDNIGHT, 60, utilisation=3, reserved=GIB, used=GIB)
    UsageFileWriter(ledger, tmp_path, queue.store).publish(NOW, NAMES, groups=True)

    def table(by: By) -> list[list[str]]:
        usage = LabUsage("", to_datetime(NOW), "lab7", False, "", "", by, totals(queue, ledger, by), [])
        return ["".join(span.text for span in line).split() for line in render_usage(usage, 80)[2:]]

    assert table("user")[0] == ["GPU-HOURS", "WAITING", "IDLE", "KWH", "USER"]
    assert table("user")[1][:4] == ["3.00", "0.00", "1.00", "0.30"]
    assert table("gpu") == [["GPU-HOURS", "IDLE", "KWH", "GPU"], ["3.00", "1.00", "0.30", "GPU-A"]]
    assert table("group")[0] == ["GPU-HOURS", "WAITING", "USER:", "GROUP"]
    assert table("group")[1][-1] == "vision"
