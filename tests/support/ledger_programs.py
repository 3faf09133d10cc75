"""What other users see of a ledger and do to it: functions that are the whole program of a process."""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import socket
import sys
import time
from pathlib import Path

from stoker.core.booking import Booking
from stoker.core.lease import Claim
from stoker.core.planner.fairshare import Demand
from stoker.ledger import Ledger, find_ledger
from support.users import User, run_as

_LONGEST = 20.0
"""Seconds after which a storm ends even if it had few grants."""


def find(path: str) -> None:
    """Find the ledger with nothing but STOKER_LEDGER to go by."""
    print(find_ledger({"STOKER_LEDGER": path}))


def look(path: str) -> None:
    """Print what this user sees in the ledger."""
    view = Ledger(Path(path)).live()
    owners = {name: lease.owner for name, lease in view.leases.items()}
    print(json.dumps({"owners": owners, "warnings": view.warnings}))


def seen_by(user: User, ledger: Ledger) -> tuple[dict[str, str], list[str]]:
    """The owners of the live leases, and the warnings, as the user sees them."""
    seen = json.loads(run_as(user, look, ledger.path))
    return seen["owners"], seen["warnings"]


def hold(path: str, device: str) -> None:
    """Claim a device, tell the lease's name (or nothing), and keep it until the end of standard input."""
    held = Ledger(Path(path)).claim((Claim(device),), "held by a test", 1.0)
    print(held.name if held else "", flush=True)
    sys.stdin.read()


def wait_for_gpus(path: str, usage: str, gpus: str) -> None:
    """Leave a want, tell its name, and wait until the end of standard input."""
    held = Ledger(Path(path)).demand(Demand(0, "root", float(usage), 1.0, int(gpus), what="waits in a test"))
    print(held.name, flush=True)
    sys.stdin.read()


def hand_over(path: str, device: str, receiver: str) -> None:
    """Claim a device and give the descriptor to whoever listens on the socket."""
    held = Ledger(Path(path)).claim((Claim(device),), "handed over", 1.0)
    assert held
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(receiver)
        socket.send_fds(connection, [held.name.encode()], [held.fd])
        print("sent", flush=True)
        sys.stdin.read()


def complain(path: str, device: str) -> None:
    """Try to claim a device and print the error."""
    try:
        Ledger(Path(path)).claim((Claim(device),), "in vain", 1.0)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")


def complain_without_space(path: str) -> None:
    """Try to claim where a file can have no more than ten bytes, and print the error."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
    complain(path, "A")


def complain_without_descriptors(path: str) -> None:
    """Try to claim when only the directory can still be opened, and print the error."""
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 1, lowest_free + 1))
    complain(path, "A")


def lock(path: str) -> None:
    """Lock any file that can be read, and keep it."""
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    print("locked", flush=True)
    sys.stdin.read()


def plant(path: str, name: str, contents: str) -> None:
    """Leave a locked file with any name and contents, and keep it so."""
    fd = os.open(Path(path) / name, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    os.fchmod(fd, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(fd, contents.encode())
    print("planted", flush=True)
    sys.stdin.read()


def storm(path: str, witnesses: str, rounds: str, seed: str) -> None:
    """Claim and release one or two of three devices until so many claims were granted; tell grants and double grants.

    The witness of a grant is a file per device that must not exist yet, made without the ledger.
    """
    ledger, choose = Ledger(Path(path)), random.Random(int(seed))
    granted = doubled = 0
    sys.stdin.readline()
    end = time.monotonic() + _LONGEST
    while granted < int(rounds) and time.monotonic() < end:
        devices = choose.sample(["A", "B", "C"], choose.randint(1, 2))
        held = ledger.claim(tuple(map(Claim, devices)), "storm", 1.0)
        if not held:
            time.sleep(choose.random() * 0.002)  # as an engine plans again a moment later
            continue
        granted += 1
        doubled += sum(not _witnessed(Path(witnesses) / device) for device in devices)
        time.sleep(choose.random() * 0.002)  # so that another grant would meet the witness
        for device in devices:
            (Path(witnesses) / device).unlink(missing_ok=True)
        ledger.release(held)
    print(json.dumps([granted, doubled]))


def _witnessed(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def try_to_hold(path: str, device: str) -> None:
    """Tell the name of a lease that was granted at once, or nothing."""
    held = Ledger(Path(path)).claim((Claim(device),), "tried by a test", 2.0)
    print(held.name if held else "")


def litter(path: str, uid: str, count: str, contents: str = "", kind: str = "lease") -> None:
    """Leave many files that are named like leases of a user, or like other files."""
    for number in range(int(count)):
        (Path(path) / f"{uid}.{number:016x}.{kind}").write_text(contents)


def enter(path: str) -> None:
    """Try to open a file or directory, and print the error."""
    try:
        os.close(os.open(path, os.O_RDONLY))
        print("opened")
    except OSError as error:
        print(type(error).__name__)


def book(path: str, device: str) -> None:
    """Book a device from now for an hour, and print the name of the booking, or the user who has it."""
    now = time.time()
    outcome = Ledger(Path(path)).agreements.book(Booking("", os.geteuid(), (device,), now, now + 3600.0))
    print(outcome.owner if isinstance(outcome, Booking) else outcome)


def book_many(path: str, rounds: str, begin: str) -> None:
    """Book one device after the other at the same moments as others do, and print those that were granted."""
    ledger, granted = Ledger(Path(path)), []
    since = float(begin) + 3600.0
    while time.time() < float(begin):
        time.sleep(0.001)
    for number in range(int(rounds)):
        device = str(number)
        if isinstance(ledger.agreements.book(Booking("", os.geteuid(), (device,), since, since + 60.0)), str):
            granted.append(device)
            if len(granted) >= 30:
                break
    print(json.dumps(granted))


def plant_lasting(path: str, name: str, contents: str) -> None:
    """Write a file that no process holds."""
    (Path(path) / name).write_text(contents)


def remove(path: str) -> None:
    """Try to remove a file, and print the error."""
    try:
        os.unlink(path)
    except OSError as error:
        print(type(error).__name__)


def book_later(path: str, device: str, begin: str, seconds: str) -> None:
    """Book a device for a time to come."""
    since = float(begin)
    Ledger(Path(path)).agreements.book(Booking("", os.geteuid(), (device,), since, since + float(seconds)))


def book_thousands(path: str, count: str) -> None:
    """Write as many bookings, beside the limits that Stoker's own code has, and bad ones among them."""
    now, uid = time.time(), os.geteuid()
    for number in range(int(count)):
        since = (now + 86400.0, 0.0, 2.5e11, -5.0)[number % 4]
        body = {"version": 1, "claims": [f"x{number}"], "since": since, "until": since + 60.0, "why": "\x1b[31m"}
        (Path(path) / f"{uid}.{number:016x}.booking").write_text(json.dumps(body))
