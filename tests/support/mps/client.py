"""A client of the scripted MPS daemon, as a program: it connects, says so, and works until the daemon ends its work.

Standard library only.
"""

from __future__ import annotations

import os
import signal
import socket
import sys


def main() -> None:
    """The words are a file to write its number to once it is connected, and "stubborn" to ignore TERM."""
    path, *manner = sys.argv[1:]
    if "stubborn" in manner:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(f"{os.environ['CUDA_MPS_PIPE_DIRECTORY']}/control")
        daemon.sendall(f"client {os.getpid()}\n".encode())
        said = daemon.recv(100)
        with open(path, "w") as file:
            file.write(f"{os.getpid()}\n")
        while said:
            print(said.decode().strip(), flush=True)
            said = daemon.recv(100)


if __name__ == "__main__":
    main()
