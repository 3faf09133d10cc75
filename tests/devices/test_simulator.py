"""The files in which processes on simulated GPUs report what they hold."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from stoker.core.errors import StokerError, UsageError
from stoker.core.units import device_sizes, parse_sim
from stoker.devices.simulator import SimulatedProcess, holdings, make_directory
from support.wait import PATIENCE_SECONDS, ending, line_from, wait_until

GIB = 2**30
SIZES = [24 * GIB, 24 * GIB]

NONSENSE = ["", "4", "4x", "x24G", "0x24G", "-1x2G", "4x24G,", "4x24", "4x0G", "4x-1G", "4x24Q", "4 x 24 G x"]
NONSENSE += ["²x24G", "9999x1G", f"4x{'9' * 400}G", f"{'9' * 5000}x1G", "1e2x1G", "4x24G;2x80G"]

HOLDING = """
import sys, time
from stoker.devices.simulator import SimulatedProcess
simulated = SimulatedProcess(sys.argv[1], [24])
print(simulated.hold({0: 1}, {0: 50}), flush=True)
time.sleep(60)
"""
FLICKERING = """
import itertools, sys
from stoker.devices.simulator import SimulatedProcess
simulated = SimulatedProcess(sys.argv[1], [24])
print(simulated.hold({0: 1}, {0: 50}), flush=True)
for turn in itertools.count():
    simulated.hold({0: 1 + turn % 2}, {0: 50})
"""


@contextmanager
def locked_file(path: Path, contents: bytes) -> Iterator[None]:
    with path.open("wb", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(contents)
        yield


@pytest.mark.parametrize(
    ("spec", "groups"),
    [
        ("4x24G", [(4, 24 * GIB)]),
        ("2x80G,4x24G", [(2, 80 * GIB), (4, 24 * GIB)]),
        (" 1x512M , 1X1.5GiB ", [(1, GIB // 2), (1, 3 * GIB // 2)]),
    ],
)
def test_a_machine_is_written_as_counts_and_sizes(spec: str, groups: list[tuple[int, int]]) -> None:
    """Groups of equal devices are listed one after the other."""
    assert parse_sim(spec) == groups


@pytest.mark.parametrize("spec", NONSENSE)
def test_nonsense_is_refused_with_what_to_type(spec: str) -> None:
    """Anything but COUNTxMEMORY is a usage error whose hint shows a right one."""
    with pytest.raises(UsageError) as caught:
        parse_sim(spec)
    assert "24G" in caught.value.hint


def test_devices_are_numbered_through_all_groups() -> None:
    """The index of a device runs on from one group to the next."""
    assert device_sizes("1x80G,2x24G") == [80 * GIB, 24 * GIB, 24 * GIB]


def test_the_directory_is_for_its_user_alone(tmp_path: Path) -> None:
    """A new directory is 0700; one that exists keeps its mode."""
    make_directory(str(tmp_path / "new"))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    (tmp_path / "old").mkdir()
    (tmp_path / "old").chmod(0o750)
    make_directory(str(tmp_path / "old"))
    assert (tmp_path / "old").stat().st_mode & 0o777 == 0o750


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """The error names the directory and the variable that chooses another."""
    (tmp_path / "file").touch()
    with pytest.raises(StokerError, match="file") as caught:
        make_directory(str(tmp_path / "file"))
    assert "STOKER_SIM_DIR" in caught.value.hint


def test_what_is_held_is_what_others_see(tmp_path: Path) -> None:
    """A process holds memory and load per device until it closes, and leaves nothing behind."""
    with closing(SimulatedProcess(str(tmp_path), SIZES)) as simulated:
        assert holdings(str(tmp_path)) == []
        assert simulated.hold({0: 6 * GIB, 1: GIB}, {0: 90, 1: 10}) is None
        (holding,) = holdings(str(tmp_path))
        assert (holding.pid, holding.owner) == (os.getpid(), os.getuid())
        assert (holding.memory, holding.load) == ({0: 6 * GIB, 1: GIB}, {0: 90, 1: 10})
    assert list(tmp_path.iterdir()) == []


def test_memory_is_taken_on_all_devices_or_on_none(tmp_path: Path) -> None:
    """When the second device has too little left, the first keeps what it had."""
    with (
        closing(SimulatedProcess(str(tmp_path), SIZES)) as first,
        closing(SimulatedProcess(str(tmp_path), SIZES)) as second,
    ):
        first.hold({1: 20 * GIB}, {})
        second.hold({0: GIB, 1: GIB}, {})
        oom = second.hold({0: 8 * GIB, 1: 8 * GIB}, {})
        assert oom is not None
        assert (oom.device, oom.total, oom.wanted) == (1, 24 * GIB, 7 * GIB)
        assert (oom.mine, oom.free) == (GIB, 3 * GIB)
        assert oom.others == ((os.getpid(), 20 * GIB),)
        assert [h.memory for h in holdings(str(tmp_path)) if 0 in h.memory] == [{0: GIB, 1: GIB}]


def test_the_last_byte_can_be_taken(tmp_path: Path) -> None:
    """A device is full at its size, not before, and what is given back can be taken again."""
    with (
        closing(SimulatedProcess(str(tmp_path), SIZES)) as first,
        closing(SimulatedProcess(str(tmp_path), SIZES)) as second,
    ):
        assert first.hold({0: 20 * GIB}, {}) is None
        assert second.hold({0: 4 * GIB + 1}, {}) is not None
        assert second.hold({0: 4 * GIB}, {}) is None
        assert first.hold({0: GIB}, {}) is None
        assert second.hold({0: 23 * GIB}, {}) is None


def test_a_reader_never_meets_a_live_process_half_way(tmp_path: Path) -> None:
    """While a process changes what it holds as fast as it can, every reader finds one of its values."""
    command = [sys.executable, "-c", FLICKERING, str(tmp_path)]
    with ending(subprocess.Popen(command, stdout=subprocess.PIPE)) as process:
        assert line_from(process.stdout) == b"None\n"
        seen = [[holding.memory[0] for holding in holdings(str(tmp_path))] for _ in range(2000)]
        process.kill()
    assert all(values in ([1], [2]) for values in seen)
    assert holdings(str(tmp_path)) == []


def test_a_file_that_a_killed_process_was_writing_is_no_obstacle(tmp_path: Path) -> None:
    """The unnamed new file of a process killed at the worst moment is simply written again."""
    (tmp_path / ".new").write_text("{")
    with closing(SimulatedProcess(str(tmp_path), SIZES)) as simulated:
        assert simulated.hold({0: GIB}, {}) is None
    assert list(tmp_path.iterdir()) == []


def test_files_of_the_dead_are_removed_and_others_left_alone(tmp_path: Path) -> None:
    """An entry without a lock is a dead process; a file that is no entry is not ours to remove."""
    (tmp_path / "123.0123abcd").write_text(json.dumps({"pid": 123, "devices": {"0": GIB}, "load": {}}))
    (tmp_path / "notes.txt").touch()
    assert holdings(str(tmp_path)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b'{"pid": 77, "devices": {"0"',
        b"\xff\xfe\x00",
        b"[" * 60_000,
        b"{" + b" " * 200_000 + b"}",
        b"null",
        b"[]",
        b'{"pid": 77}',
        b'{"pid": 78, "devices": {"0": 1}, "load": {}}',
        b'{"pid": 77, "devices": [1], "load": {}}',
        b'{"pid": 77, "devices": {"0": -1}, "load": {}}',
        b'{"pid": 77, "devices": {"0": true}, "load": {}}',
        b'{"pid": 77, "devices": {"0": 1.5}, "load": {}}',
        b'{"pid": 77, "devices": {"0": 1e999}, "load": {}}',
        b'{"pid": 77, "devices": {"first": 1}, "load": {}}',
        b'{"pid": 77, "devices": {"0": 1}, "load": {"0": NaN}}',
        b'{"pid": 77, "devices": {"0": ' + b"9" * 5000 + b'}, "load": {}}',
    ],
)
def test_a_live_file_of_nonsense_holds_nothing(tmp_path: Path, contents: bytes) -> None:
    """Half-written, oversized or lying contents are passed over, and neither stop a reader nor hide others."""
    with locked_file(tmp_path / "77.0123abcd", contents), closing(SimulatedProcess(str(tmp_path), SIZES)) as simulated:
        simulated.hold({0: GIB}, {})
        assert [holding.memory for holding in holdings(str(tmp_path))] == [{0: GIB}]


def test_things_that_are_no_files_are_passed_over(tmp_path: Path) -> None:
    """Links, pipes, sockets and directories with the name of an entry do not block or mislead a reader."""
    (tmp_path / "secret").write_text(json.dumps({"pid": 1, "devices": {"0": GIB}, "load": {}}))
    (tmp_path / "1.0123abcd").symlink_to("secret")
    (tmp_path / "2.0123abcd").symlink_to("nowhere")
    os.mkfifo(tmp_path / "3.0123abcd")
    (tmp_path / "4.0123abcd").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "5.0123abcd"))
        assert holdings(str(tmp_path)) == []
    assert len(list(tmp_path.iterdir())) == 6


def test_what_is_around_is_seen_with_its_changes(tmp_path: Path) -> None:
    """A process sees all others, and notices when one comes or goes."""
    with closing(SimulatedProcess(str(tmp_path), SIZES)) as simulated:
        simulated.hold({0: GIB}, {0: 50})
        assert [other.load for other in simulated.present()] == [{0: 50}]
        with closing(SimulatedProcess(str(tmp_path), SIZES)) as other:
            other.hold({0: GIB}, {0: 70})
            assert sorted(each.load[0] for each in simulated.present()) == [50, 70]
        wait_until(lambda: len(simulated.present()) == 1)


def test_a_neighbour_that_was_killed_is_missed(tmp_path: Path) -> None:
    """Though a killed process changes nothing, the others notice within a moment that it is gone."""
    with closing(SimulatedProcess(str(tmp_path), [24])) as simulated:
        simulated.hold({0: 1}, {0: 50})
        with ending(
            subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path)], stdout=subprocess.PIPE)
        ) as process:
            assert line_from(process.stdout) == b"None\n"
            assert len(simulated.present()) == 2
            process.kill()
        wait_until(lambda: len(simulated.present()) == 1)


def test_the_example_holds_memory_without_stoker(tmp_path: Path) -> None:
    """Its script writes the file itself, since the python3 of a job has no Stoker; the end of the script removes it."""
    script = Path(__file__).parents[2] / "examples/train.py"
    environment = {"STOKER_SIM_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": "0,1"}
    words = [sys.executable, "-I", "-S", str(script), "--bs=64", "--epochs=2000", "--seconds=0.05"]
    with ending(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE)) as process:
        wait_until(lambda: bool(holdings(str(tmp_path))))
        (held,) = holdings(str(tmp_path))
        size = (1000 + 60 * 64) * 2**20
        assert (held.pid, held.memory, held.load) == (process.pid, {0: size, 1: size}, {0: 40, 1: 40})
    subprocess.run([*words[:-2], "--epochs=1"], env=environment, check=True, timeout=PATIENCE_SECONDS)
    assert list(tmp_path.iterdir()) == []
