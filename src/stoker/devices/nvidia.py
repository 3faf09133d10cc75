"""NVIDIA GPUs: snapshots without waiting, from a probe process that may hang or die."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct, structs

from stoker.core.device import Device, Reading, Snapshot
from stoker.core.errors import StokerError

_PROBE = [sys.executable, "-P", "-m", "stoker.devices.nvml_probe"]
_POLL_MILLISECONDS = 50
_SECONDS_TO_DIE = 1.0
_SILENT = "the NVIDIA driver does not answer"
"""Without the seconds: a text that changes with every snapshot would be reported again each time."""
DEADLINES_TO_LIVE = 12
"""Deadlines after which a probe without an answer is killed: what hangs may be the probe and not the driver."""
_NAMELESS = "nvidia:"


class ProbeAnswer(Struct, frozen=True):
    """A line of the probe: a snapshot, or the reason why there is none."""

    snapshot: Snapshot | None = None
    absent: str = ""


class NvidiaAbsent(StokerError):
    """There is no NVIDIA GPU that jobs could use; the message says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, "check `nvidia-smi`, or name the devices with --devices")
        self.reason = reason


class NvidiaDevices:
    """All NVIDIA GPUs of this machine.

    `now` is compared only with the `now` of other calls.
    """

    variables: Mapping[str, str] = {}

    def __init__(
        self,
        deadline: float = 5.0,
        interval: float = 1.0,
        restart_after: float = 5.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._deadline = deadline
        self._interval = interval
        self.restart_after = restart_after
        """Seconds between two starts of a probe that keeps ending."""
        self._probe = _Probe(environment)
        self.seen = Snapshot(0.0, ())
        """The newest answer, as it was when it came."""
        self._started: float | None = None
        self._asked: float | None = None
        self._silent_since: float | None = None
        """When the request was sent that the probe has not answered."""
        self._trusted = True
        """False from the death of a probe until the next answer."""
        self._absent = ""

    def first(self, timeout: float) -> Snapshot:
        """The first snapshot; NvidiaAbsent if none comes within so many seconds, and then all is closed."""
        self._probe.start()
        self._probe.ask()
        answer = self._probe.wait_answer(timeout)
        if answer.snapshot is None:
            self.close()
            raise NvidiaAbsent(answer.absent)
        self.seen = answer.snapshot
        return self.seen

    def snapshot(self, now: float, newer_than: float = 0.0) -> Snapshot:
        """The newest snapshot, without waiting; all devices have a problem while the driver is silent.

        Its time is that of the request, so that it shows nothing that ended before that time.
        """
        # First, because a probe may answer just before it ends.
        ended = self._probe.ended()
        if answer := self._probe.answer():
            self._accept(answer)
        if ended:
            self._revive(now)
        elif self._silent_since is None:
            if self.seen.at <= newer_than or _passed(self._asked, now, self._interval):
                self._ask(now)
        elif _passed(self._silent_since, now, self._deadline * DEADLINES_TO_LIVE):
            # A probe that sleeps in the driver may not die; until it has, no other is started.
            self._probe.kill()
        return self._judged(now)

    def fileno(self) -> int:
        """Readable when an answer has come; the same for life, also when the probe is started again."""
        return self._probe.fileno()

    def close(self) -> None:
        self._probe.close()

    def _accept(self, answer: ProbeAnswer) -> None:
        self._silent_since = None
        self._absent = answer.absent
        if answer.snapshot is not None:
            self._trusted = True
            self.seen = _recalled(structs.replace(answer.snapshot, at=self._asked or 0.0), self.seen)

    def _revive(self, now: float) -> None:
        self._trusted = False
        self._silent_since = None
        if _passed(self._started, now, self.restart_after):
            self._started = now
            self._probe.start()
            self._ask(now)

    def _ask(self, now: float) -> None:
        self._asked = self._silent_since = now
        self._probe.ask()

    def _judged(self, now: float) -> Snapshot:
        if self._absent:
            return _unknown(self.seen, self._absent)
        silence = 0.0 if self._silent_since is None else abs(now - self._silent_since)
        if self._trusted and silence <= self._deadline:
            return self.seen
        return _unknown(self.seen, _SILENT)


class _Probe:
    """At most one probe process, and a pipe for its answers that outlives it."""

    def __init__(self, environment: Mapping[str, str] | None) -> None:
        self._environment = environment
        self._answers, self._answers_end = os.pipe()
        os.set_blocking(self._answers, False)
        self._unread = b""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; only when there is none."""
        self._drop()
        # A session of its own keeps the terminal's Ctrl-C away.
        self._process = subprocess.Popen(
            _PROBE,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=self._answers_end,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            start_new_session=True,
        )

    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def ask(self) -> None:
        """Send a request; whether the process is gone shows when the answer is read."""
        with suppress(BrokenPipeError):
            if self._process and self._process.stdin:
                self._process.stdin.write(b"?")

    def kill(self) -> None:
        if self._process:
            self._process.kill()

    def answer(self) -> ProbeAnswer | None:
        """The answer, if all of it has come."""
        with suppress(BlockingIOError):
            while True:
                self._unread += os.read(self._answers, 65536)
        line, newline, rest = self._unread.partition(b"\n")
        if not newline:
            return None
        self._unread = rest
        try:
            return msgspec.json.decode(line, type=ProbeAnswer)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.kill()  # the next probe starts afresh
            return None

    def wait_answer(self, timeout: float) -> ProbeAnswer:
        """The answer, or why there is none."""
        end = time.monotonic() + timeout
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        while time.monotonic() < end:
            ended = self.ended()
            if answer := self.answer():
                return answer
            if ended:
                return ProbeAnswer(absent="the process that asks the NVIDIA driver ended without an answer")
            poll.poll(_POLL_MILLISECONDS)
        return ProbeAnswer(absent=f"the NVIDIA driver gave no answer within {timeout:g} s")

    def fileno(self) -> int:
        return self._answers

    def close(self) -> None:
        """Kill the process and close the pipe; a second call does nothing."""
        if self._answers < 0:
            return
        self._drop()
        os.close(self._answers)
        os.close(self._answers_end)
        self._answers = self._answers_end = -1

    def _drop(self) -> None:
        self._unread = b""
        if self._process is None:
            return
        if self._process.stdin:
            self._process.stdin.close()
        self._process.kill()
        # A process in uninterruptible sleep dies when the driver lets it; do not wait for that.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_DIE)
        self._process = None


def _passed(since: float | None, now: float, seconds: float) -> bool:
    """Whether so much time went by; if the clock was set back, it did."""
    return since is None or abs(now - since) >= seconds


def nameless(index: int) -> Device:
    """A GPU that the driver counts but does not identify."""
    name = f"{_NAMELESS}{index}"
    return Device(id=name, label=str(index), visible=str(index), claims=(name,), kind="nvidia")


def _recalled(snapshot: Snapshot, earlier: Snapshot) -> Snapshot:
    """The snapshot, with GPUs that have a problem now identified by an earlier one."""
    present = {device.id for device in snapshot.devices}
    devices: list[Device] = []
    readings = dict(snapshot.readings)
    for device in snapshot.devices:
        reading = snapshot.reading(device.id)
        recalled = list(_known(device, earlier, present)) if reading.problem else []
        devices += recalled or [device]
        readings.update({device.id: reading for device in recalled})
    kept = {device.id: readings[device.id] for device in devices if device.id in readings}
    return structs.replace(snapshot, devices=tuple(devices), readings=kept)


def _known(device: Device, earlier: Snapshot, present: set[str]) -> Iterable[Device]:
    if not device.id.startswith(_NAMELESS):
        return [former for former in earlier.devices if former.id == device.id]
    # Indices can have moved, so a GPU whose UUID is still reported elsewhere is not the one with the problem.
    # The label begins with the index of the card: `0` of a GPU, `0:1` of a slice.
    boards = [(former.label.partition(":")[0], former) for former in earlier.devices]
    return [former for board, former in boards if board == device.label and former.id not in present]


def _unknown(snapshot: Snapshot, problem: str) -> Snapshot:
    """The same devices with unknown readings: none of them is free."""
    readings = {device.id: Reading(problem=problem) for device in snapshot.devices}
    return structs.replace(snapshot, readings=readings, note=problem)
