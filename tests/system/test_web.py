"""`stoker web` as people use it: the link, live changes, actions, other users, a server that is killed."""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401, loaded before the process of another user can no longer read it
import json
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest
from msgspec import Struct

from stoker.core.spec import Resources
from stoker.store.web_server import web_token
from support.background import Background
from support.cli import PROGRAM, Stoker
from support.ports import reserved_port
from support.users import made_users, reachable_directory, run_as
from support.wait import PATIENCE_SECONDS, line_from, wait_until


class Server(Struct):
    """A running `stoker web`."""

    process: subprocess.Popen[bytes]
    link: str
    notes: list[str]
    token: str

    @property
    def address(self) -> str:
        return self.link.partition("/?")[0]

    def client(self, **options: Any) -> httpx.Client:
        """A program that knows the token."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.Client(
            base_url=self.address, headers=headers, timeout=PATIENCE_SECONDS, trust_env=False, **options
        )


@contextmanager
def serving(queue: Background, *options: str) -> Iterator[Server]:
    """A server on a port of its own, unless the options name another place."""
    with reserved_port() as port:
        place = () if {"--port", "--socket"} & {*options} else ("--port", str(port))
        with started(queue, *place, *options) as server:
            yield server


@contextmanager
def started(queue: Background, *options: str) -> Iterator[Server]:
    process = queue.start("web", *options)
    link = line_from(process.stdout).decode().strip()
    assert link.startswith("http://127.0.0.1:"), process.communicate(timeout=PATIENCE_SECONDS)[1].decode()
    notes: list[str] = []
    while not notes or not notes[-1].startswith("Ctrl-C"):
        notes.append(line_from(process.stderr).decode())
    try:
        yield Server(process, link, notes, web_token(queue.paths))
    finally:
        process.kill()


def read(client: httpx.Client, path: str) -> Any:
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/api/v1/session").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def events(client: httpx.Client) -> Iterator[Queue[tuple[str, Any]]]:
    """Events as they come, after the greeting."""
    found: Queue[tuple[str, Any]] = Queue()
    with client.stream("GET", "/api/v1/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")

        def follow() -> None:
            name = ""
            try:
                for line in answer.iter_lines():
                    key, _, value = line.partition(": ")
                    name = value if key == "event" else name
                    if key == "data":
                        found.put((name, json.loads(value)))
            except (httpx.TransportError, httpx.StreamError):
                found.put(("lost", None))

        threading.Thread(target=follow, daemon=True).start()
        assert found.get(timeout=PATIENCE_SECONDS)[0] == "hello"
        yield found


def test_a_job_is_seen_and_cancelled(background: Background) -> None:
    """The page of a browser: jobs appear, an action ends one, the log grows, and the end is told without asking."""
    with serving(background) as server, server.client() as client:
        assert any(note.startswith("from another computer: ssh -L ") for note in server.notes)
        with events(client) as found:
            (job_id,) = background.submit("echo begun; sleep 600", names=["<script>"])
            background.wait_word("running", job_id)
            while not any(line["state"] == "running" for line in found.get(timeout=PATIENCE_SECONDS)[1]["jobs"]):
                pass
            wait_until(lambda: read(client, "jobs/1/log")["text"] == "begun\n")
            body = {"action": "cancel", "jobs": ["1"]}
            result = client.post("/api/v1/actions", json=body, headers={"Origin": server.address}).json()
            assert [(one["shown"], one["refused"]) for one in result["jobs"]] == [("1", False)]
            while "1" not in found.get(timeout=PATIENCE_SECONDS)[1]["gone"]:
                pass
        background.wait_over(job_id)
        assert read(client, "jobs?state=cancelled")["jobs"][0]["name"] == "<script>"
        assert read(client, "jobs/1/log")["ended"] is True


def test_all_actions(background: Background) -> None:
    """Hold, priority, release and retry, by the engine as for the command line; one that is refused says why."""
    background.submit("sleep 600", "sleep 600", resources=Resources(1))
    background.wait_word("running", 1, 2)
    background.submit("false", resources=Resources(1))

    def act(name: str, jobs: list[str], value: int | None = None) -> list[str]:
        answer = client.post("/api/v1/actions", json={"action": name, "jobs": jobs, "value": value})
        assert answer.status_code == 200, answer.text
        return [one["said"] for one in answer.json()["jobs"]]

    with serving(background) as server, server.client() as client:
        assert act("hold", ["3"]) == ["held 3"]
        assert act("priority", ["3"], 7) == ["3: priority 0 → 7"]
        assert "a running job cannot be paused" in act("hold", ["1"])[0]
        assert act("cancel", ["1"])[0].startswith(("cancelled 1 (", "stopping 1 ("))
        assert act("release", ["3"]) == ["released 3"]
        background.wait_over(3)
        answer = client.post("/api/v1/actions", json={"action": "retry", "jobs": ["2"]})
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "2 has not finished")
        assert act("retry", ["3"]) == ["requeued 3 (last result: exit 1)"]
        wait_until(lambda: read(client, "jobs/3")["jobs"][0]["attempts"][1:])


def test_a_line_means_tasks_in_its_state(background: Background) -> None:
    """Its label is shortened where an array has many ranges, so that it does not name all of them."""
    background.submit(*["true"] * 60, array=True, held="test", resources=Resources(gpus=0))
    background("pause", "--queue")
    released = [index for index in range(60) if index % 5 in (0, 2)]
    background("resume", f"1.[{','.join(map(str, released))}]")
    with serving(background) as server, server.client() as client:
        wait_until(lambda: answers(client))
        (held,) = [line for line in read(client, "jobs")["jobs"] if line["state"] == "held"]
        assert (held["tasks"], "…" in held["label"]) == (60 - len(released), True)
        body = {"action": "cancel", "jobs": [{"label": held["label"], "state": "held"}]}
        done = client.post("/api/v1/actions", json=body).json()["jobs"]
        assert {result["shown"] for result in done} == {f"1.{index}" for index in range(60) if index not in released}
        assert client.post("/api/v1/actions", json=body).json()["jobs"] == []


def test_killed_and_started_again(background: Background) -> None:
    """Open pages stay valid; while one server runs, the command prints a link to it, and status its address."""
    with reserved_port() as port, started(background, "--port", str(port)) as first:
        with first.client() as client, events(client) as found:
            assert background("web").out.startswith(f"{first.address}/?code=")
            assert f"web {first.address}" in background("status", "--table", COLUMNS="120").out
            assert json.loads(background("status", "--json").out)["web"] == first.address
            refused = background("web", "--new-token")
            assert (refused.code, f"kill {first.process.pid}" in refused.err) == (125, True)
            first.process.kill()
            while found.get(timeout=PATIENCE_SECONDS)[0] != "lost":
                pass
        with started(background) as second, second.client() as client:
            assert (second.address, second.token) == (first.address, first.token)
            wait_until(lambda: answers(client))
            second.process.send_signal(signal.SIGTERM)
            second.process.wait(PATIENCE_SECONDS)
        assert json.loads(background("status", "--json").out)["web"] == ""
        with started(background, "--new-token") as third, third.client() as client:
            assert third.token != first.token
            wait_until(lambda: answers(client))
            with first.client() as old:
                assert old.get("/api/v1/status").status_code == 401


def test_the_engine_survives_the_server(background: Background) -> None:
    """An action starts the engine where none runs; Ctrl-C at the server ends neither engine nor jobs."""
    (job_id,) = background.submit("sleep 600", start=False)
    with serving(background) as server:
        with server.client() as client:
            wait_until(lambda: answers(client))
            assert (
                client.post("/api/v1/actions", json={"action": "priority", "jobs": ["1"], "value": 1}).status_code
                == 200
            )
        background.wait_word("running", job_id)
        server.process.send_signal(signal.SIGINT)
        server.process.wait(PATIENCE_SECONDS)
        assert background.engine_process is not None
        assert background.word(job_id) == "running"


def test_a_socket(background: Background) -> None:
    """A Unix socket in place of a port; the tunnel leads to it."""
    path = background.home / "a socket"
    with serving(background, "--socket", str(path), "--readonly") as server:
        assert any(f"ssh -L 7717:'{path}' " in note for note in server.notes)
        transport = httpx.HTTPTransport(uds=str(path))
        with server.client(transport=transport) as client:
            wait_until(lambda: answers(client))
            assert read(client, "session")["readonly"] is True
            assert client.post("/api/v1/actions", json={"action": "cancel", "jobs": ["1"]}).status_code == 403


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_no_socket(background: Background, number: signal.Signals) -> None:
    """Its file is removed however the server is asked to end, and an open page is no reason for a traceback."""
    path = background.home / "socket"
    with serving(background, "--socket", str(path)) as server:
        with server.client(transport=httpx.HTTPTransport(uds=str(path))) as client:
            wait_until(lambda: answers(client))
            with events(client):
                server.process.send_signal(number)
                _, said = server.process.communicate(timeout=PATIENCE_SECONDS)
        assert (path.exists(), said.strip()) == (False, b"")


def test_many_half_sent_requests(background: Background) -> None:
    """With few files, connections of strangers leave room for those who know the token, and print little."""
    limited = ["prlimit", "--nofile=100:100"]
    with reserved_port() as port, contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [*limited, PROGRAM, "web", "--port", str(port)],
                env=background.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
        stack.callback(process.kill)
        line_from(process.stdout)
        server = Server(process, f"http://127.0.0.1:{port}/?", [], web_token(background.paths))
        client = stack.enter_context(server.client())
        wait_until(lambda: answers(client))
        for _ in range(120):
            stranger = stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)))
            with contextlib.suppress(ConnectionError):
                stranger.sendall(b"GET / HTTP/1.1\r\nX")
        wait_until(lambda: answers(stack.enter_context(server.client())))
        process.kill()
        assert process.stderr is not None
        assert len(process.stderr.read()) < 2000


def test_the_browser_is_not_told_the_code(background: Background) -> None:
    """All users see its arguments: it gets a private file, which leads to the link."""
    program = background.write("browser", "#!/bin/sh", f'echo "$@" > {background.cwd}/told')
    program.chmod(0o755)
    background.environment["BROWSER"] = f"{program} %s"
    with serving(background, "--open") as server:
        background.wait_lines("told", 1)
        (told,) = background.lines("told")
        entrance = Path(told.removeprefix("file://"))
        assert "code=" not in told
        assert (server.link in entrance.read_text(), entrance.stat().st_mode & 0o777) == (True, 0o600)


def test_a_unit_for_systemd(stoker: Stoker) -> None:
    """Beside that of the engine, with the next commands to type; without --web there is none."""
    units = stoker.home / "config/systemd/user"
    plain = stoker("engine", "install", XDG_CONFIG_HOME=str(stoker.home / "config"))
    assert ([path.name for path in units.iterdir()], "web" in plain.err) == (["stoker.service"], False)
    both = stoker("engine", "install", "--web", XDG_CONFIG_HOME=str(stoker.home / "config"))
    assert both.code == 0
    assert sorted(path.name for path in units.iterdir()) == ["stoker-web.service", "stoker.service"]
    assert "systemctl --user enable --now stoker-web.service" in both.err
    unit = (units / "stoker-web.service").read_text()
    assert re.search(r"^ExecStart=\S+stoker web$", unit, re.MULTILINE)
    assert "StandardOutput=null" in unit  # the journal is no place for the token


def test_bad_options(stoker: Stoker) -> None:
    """Each is refused with what to do; nothing is left behind."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        outcome = stoker("web", "--port", port)
        assert (outcome.code, "another program uses it" in outcome.err) == (125, True)
    assert stoker("web", "--port", "70000").code == 2
    assert stoker("web", "--port", "1234", "--socket", "x").code == 2
    assert stoker("web", "--socket", "/nowhere/x").code == 125
    assert stoker("status", "--json").out.count('"web":""') == 1


def test_without_the_extra(stoker: Stoker) -> None:
    """The error names the command that installs what is missing."""
    folder = stoker.home / "hidden"
    folder.mkdir()
    (folder / "uvicorn.py").write_text("raise ModuleNotFoundError('No module named uvicorn', name='uvicorn')")
    outcome = stoker("web", PYTHONPATH=str(folder))
    assert (outcome.code, re.search("pip install .*starlette uvicorn", outcome.err) is not None) == (125, True)


def attack(port: str, socket_path: str, state: str) -> None:
    """What another user of the machine can reach; all that it needs is imported before."""
    requests = [("GET", path) for path in ("/", "/api/v1/status", "/api/v1/jobs/1/log", "/metrics", "/?code=guess")]
    for method, path in [*requests, ("POST", "/api/v1/actions")]:
        with closing(HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE_SECONDS)) as connection:
            connection.request(
                method, path, '{"action": "cancel", "jobs": ["1"]}', {"Content-Type": "application/json"}
            )
            assert connection.getresponse().status in (401, 403), path
    with closing(socket.socket(socket.AF_UNIX)) as local, pytest.raises(PermissionError):
        local.connect(socket_path)
    for name in ("web.token", "web.server"):
        with pytest.raises(PermissionError):
            (Path(state) / name).read_bytes()


def test_another_user(background: Background) -> None:
    """They can connect to the port and learn nothing; they cannot connect to the socket, nor read the token."""
    with made_users(1) as (other,), reachable_directory() as folder:
        (folder / "home").mkdir()
        path, second = folder / "web.sock", Background(folder / "home")
        with serving(background, "--socket", str(path)), closing(second), serving(second) as server:
            with server.client() as client:
                wait_until(lambda: answers(client))
            run_as(other, attack, server.address.rpartition(":")[2], str(path), str(second.paths.state))
