"""A ProxyCommand of ssh that breaks the connection after so many bytes: `cutter.py PORT FILE`.

The first line of the file is the number for the next connection; without a line it lasts.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import socket
import sys
from pathlib import Path


def taken(path: Path) -> int:
    """The number for this connection, which no other gets."""
    with open(path, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        numbers = file.read().split()
        file.seek(0)
        file.truncate()
        file.write("\n".join(numbers[1:]))
    return int(numbers[0]) if numbers else -1


def main(port: str, file: str) -> None:
    left = taken(Path(file))
    with socket.create_connection(("127.0.0.1", int(port))) as there, selectors.DefaultSelector() as both:
        both.register(0, selectors.EVENT_READ)
        both.register(there, selectors.EVENT_READ)
        while True:
            for key, _ in both.select():
                data = os.read(0, 512) if key.fd == 0 else there.recv(512)
                if not data or left == 0:
                    return
                data = data[:left] if left > 0 else data
                left -= len(data) if left > 0 else 0
                there.sendall(data) if key.fd == 0 else os.write(1, data)


if __name__ == "__main__":
    main(*sys.argv[1:])
