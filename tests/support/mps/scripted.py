"""A stand-in for nvidia-cuda-mps-control: the same words, return codes, files and lock, with servers that do nothing.

Standard library only. Clients of it are processes that say `client NUMBER` on its socket and stay connected. The
variable SCRIPTED_MPS makes it hang (nothing ever returns), refuse (the daemon does not start) or go deaf (it starts,
and never answers).
"""

from __future__ import annotations

import fcntl
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time

NOT_FOUND = "Cannot find MPS control daemon process"
PATH_LIMIT = 107


def main() -> None:
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    mood = os.environ.get("SCRIPTED_MPS", "")
    if mood == "hang":
        signal.pause()
    if sys.argv[1:] == ["-d"]:
        sys.exit(start(pipe, mood))
    sys.exit(converse(pipe))


def converse(pipe: str) -> int:
    """The front end: one command a line, and the daemon's words for it."""
    with socket.socket(socket.AF_UNIX) as daemon:
        try:
            daemon.connect(f"{pipe}/control")
        except OSError:
            print(NOT_FOUND, file=sys.stderr)
            return 1
        for line in sys.stdin:
            daemon.sendall(b"ui " + line.strip().encode() + b"\n")
            answer = receive(daemon)
            if answer is None:  # it has left, as after quit
                return 0
            sys.stdout.write(answer)
    return 0


def receive(daemon: socket.socket) -> str | None:
    said = b""
    while not said.endswith(b"\0"):
        span = daemon.recv(65536)
        if not span:
            return None
        said += span
    return said[:-1].decode()


def start(pipe: str, mood: str) -> int:
    if mood == "refuse" or not os.access(pipe, os.W_OK):
        print(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={pipe}", file=sys.stderr)
        return 1
    if len(f"{pipe}/control_privileged") > PATH_LIMIT:
        return 1
    lock = os.open(f"{pipe}/control_lock", os.O_RDWR | os.O_CREAT, 0o666)
    listening, told = os.pipe()
    if os.fork() == 0:
        os.setsid()
        become_daemon(pipe, lock, told, mood)
    os.close(told)
    if os.read(listening, 1) != b"!":
        print("An instance of this daemon is already running", file=sys.stderr)
        return 1
    return 0


def become_daemon(pipe: str, lock: int, told: int, mood: str) -> None:
    """Never returns."""
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Daemon(pipe).serve(told, deaf=mood == "deaf")
    finally:
        os._exit(1)


class Daemon:
    """The control daemon, with one server once there has been a client."""

    def __init__(self, pipe: str) -> None:
        for name in ("control", "control_privileged"):
            if os.path.exists(f"{pipe}/{name}"):
                os.unlink(f"{pipe}/{name}")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(f"{pipe}/control")
        self.listener.listen(16)
        socket.socket(socket.AF_UNIX).bind(f"{pipe}/control_privileged")
        log = f"{os.environ.get('CUDA_MPS_LOG_DIRECTORY', '/var/log/nvidia-mps')}/control.log"
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.write(f"Starting control daemon using socket {pipe}/control")
        self.write(f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')}")
        self.percentage = 100.0
        self.server: subprocess.Popen[bytes] | None = None
        self.clients: dict[socket.socket, int] = {}
        self.inboxes: dict[socket.socket, bytes] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)

    def write(self, text: str) -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        os.write(self.log, f"[{now}.000 Control {os.getpid():5}] {text}\n".encode())

    def serve(self, told: int, *, deaf: bool) -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        os.write(told, b"!")
        os.close(told)
        while deaf:
            signal.pause()
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    connection, _ = self.listener.accept()
                    self.inboxes[connection] = b""
                    self.selector.register(connection, selectors.EVENT_READ)
                else:
                    self.hear(key.fileobj)  # type: ignore[arg-type]

    def hear(self, connection: socket.socket) -> None:
        try:
            said = connection.recv(4096)
        except OSError:
            said = b""
        if not said:
            self.selector.unregister(connection)
            connection.close()
            del self.inboxes[connection]
            if client := self.clients.pop(connection, None):
                self.write(f"Client {client} disconnected")
            return
        *lines, self.inboxes[connection] = (self.inboxes[connection] + said).split(b"\n")
        for line in lines:
            kind, _, rest = line.decode().partition(" ")
            if kind == "client":
                self.adopt(connection, int(rest))
            else:
                self.write(f"Cmd:{rest}")
                answer = "".join(f"{each}\n" for each in self.obey(rest))
                connection.sendall(answer.encode() + b"\0")

    def adopt(self, connection: socket.socket, client: int) -> None:
        if self.server is None:
            self.server = subprocess.Popen(["sleep", "1000"])
            self.write(f"Starting new server {self.server.pid} for user {os.getuid()}")
        self.clients[connection] = client
        self.write(f"NEW CLIENT {client} from user {os.getuid()}: Server already exists")
        connection.sendall(b"welcome\n")

    def obey(self, command: str) -> list[str]:
        words = command.split()
        match words:
            case ["get_server_list"]:
                return [str(self.server.pid)] if self.server else []
            case ["get_client_list", server]:
                return [str(pid) for pid in self.clients.values()] if self.knows(server) else [missing(server)]
            case ["terminate_client", server, client]:
                return self.terminate(server, client)
            case ["get_default_active_thread_percentage"]:
                return [f"{self.percentage:.1f}"]
            case ["set_default_active_thread_percentage", text]:
                if re.fullmatch(r"\d+(\.\d+)?", text) and 0 < float(text) <= 100:
                    self.percentage = float(text)
                else:
                    self.write("Invalid percentage, expected between (0.0, 100.0]")
                return [f"{self.percentage:.1f}"]
            case ["ps"]:
                return ["Server not found"] if self.server is None else []
            case ["quit"] | ["quit", "-t", _]:
                self.leave()
        return [f'Unknown command "{command}"']

    def knows(self, server: str) -> bool:
        return self.server is not None and server == str(self.server.pid)

    def terminate(self, server: str, client: str) -> list[str]:
        if not self.knows(server):
            return [missing(server), f"{missing(server)}!", "1"]
        for connection, pid in self.clients.items():
            if str(pid) == client:
                connection.sendall(b"terminated\n")
                return ["0"]
        return [f"Invalid process {client}!", "1"]

    def leave(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
        self.write("Exit with status 0")
        os._exit(0)


def missing(server: str) -> str:
    return f"Server {server} not found"


if __name__ == "__main__":
    main()
