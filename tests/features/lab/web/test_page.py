"""The page for the group: what is served, to whom, and for how long."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stoker.core.errors import UsageError
from stoker.features.lab.page import LabPage
from stoker.store.queries import drained_key
from stoker.store.web_passes import MOST_PASSES, make_pass, read_passes, revoke_pass
from stoker.web.api import ServedQueue
from stoker.web.guard import Door, OpenDoor, PassDoor
from stoker.web.server import shared_application
from support.past import PastQueue
from support.web import Browser

API, ENTRANCE = "/api/v1/lab", "/api/v1/pass"


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_LEDGER", str(tmp_path / "ledger"))


@pytest.fixture
def visitor(queue: PastQueue) -> Browser:
    return browser(queue, PassDoor(queue.paths, "lab"))


def browser(queue: PastQueue, door: Door) -> Browser:
    service = ServedQueue(queue.paths, "tester", readonly=True)
    return Browser(service, shared_application(service, "lab", door))


def with_pass(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def new_pass(queue: PastQueue, seconds: float = 60) -> str:
    return make_pass(queue.paths, "lab", seconds, time.time())[1]


def test_nothing_without_a_pass(visitor: Browser) -> None:
    """But the files of the page, which ask for it; a pass is in no address."""
    assert visitor.get("/").status_code == 200
    for path in (API, ENTRANCE, "/api/v1/jobs", f"{API}?pass=x"):
        answer = visitor.get(path)
        assert (answer.status_code, "pass" in answer.json()["error"]["message"]) == (401, True)


def test_a_pass_is_not_in_an_address(queue: PastQueue, visitor: Browser) -> None:
    """It would stay in the history of the browser, where it is of use until it ends."""
    text = new_pass(queue)
    for name in ("pass", "code", "token", "link"):
        for path in ("/", API, ENTRANCE):
            answer = visitor.get(path, params={name: text})
            assert "set-cookie" not in answer.headers
    assert visitor.get(API).status_code == 401


def test_several_people_use_a_pass(queue: PastQueue, visitor: Browser) -> None:
    """As they type it. A browser keeps a cookie in its place, which no script and no other site can use."""
    text = new_pass(queue)
    for typed in (text, text.upper(), text.replace("-", ""), text.replace("-", " ")):
        visitor.cookies.clear()
        entrance = visitor.get(ENTRANCE, headers=with_pass(typed))
        parts = {part.strip() for part in entrance.headers["set-cookie"].split(";")}
        assert {"HttpOnly", "Path=/", "SameSite=strict"} <= parts
        assert 0 < int(next(part for part in parts if part.startswith("Max-Age")).partition("=")[2]) <= 60
        assert text.replace("-", "") not in entrance.headers["set-cookie"]
        assert visitor.get(API).status_code == 200
    assert text.replace("-", "") not in queue.paths.page_passes("lab").read_text()
    assert queue.paths.page_passes("lab").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("end", ["revoked", "expired", "damaged"])
def test_the_end_of_a_pass(queue: PastQueue, visitor: Browser, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """It opens nothing any more, the cookie that it was exchanged for neither; another one stays valid."""
    text, other = new_pass(queue), new_pass(queue, 600)
    visitor.get(ENTRANCE, headers=with_pass(text))
    assert visitor.get(API).status_code == 200
    if end == "revoked":
        revoke_pass(queue.paths, "lab", 1, time.time())
    elif end == "expired":
        later = time.time() + 61
        monkeypatch.setattr("stoker.web.guard.time.time", lambda: later)
    else:
        queue.paths.page_passes("lab").write_bytes(b'[{"number": 1')
    assert visitor.get(API).status_code == 401
    assert visitor.get(API, headers=with_pass(text)).status_code == 401
    assert visitor.get(API, headers=with_pass(other)).status_code == (401 if end == "damaged" else 200)


def test_bounds_of_passes(queue: PastQueue) -> None:
    """None is for ever, and there are not too many; numbers of passes that ended may come again."""
    with pytest.raises(UsageError, match="366 days"):
        new_pass(queue, 400 * 86400)
    for _ in range(MOST_PASSES):
        new_pass(queue)
    with pytest.raises(UsageError, match="100 links"):
        new_pass(queue)
    with pytest.raises(UsageError, match="no link 101"):
        revoke_pass(queue.paths, "lab", 101, time.time())
    assert not read_passes(queue.paths, "lab", time.time() + 61)


DOORS: dict[str, Callable[[PastQueue], Door]] = {
    "socket": lambda _: OpenDoor(),
    "pass": lambda queue: PassDoor(queue.paths, "lab"),
}


@pytest.mark.parametrize("door", DOORS)
def test_nothing_else_of_the_queue(queue: PastQueue, door: str) -> None:
    """No log, no job, no action: those paths do not exist, whoever asks."""
    visitor = browser(queue, DOORS[door](queue))
    visitor.headers.update(with_pass(new_pass(queue)))
    assert visitor.get(API).status_code == 200
    for path in ("status", "jobs", "jobs/1", "jobs/1/log", "history", "events", "session", "sweeps", "../v1/status"):
        assert visitor.get(f"/api/v1/{path}").status_code == 404, path
    assert visitor.get("/metrics").status_code == 404
    for method in ("POST", "PUT", "DELETE"):
        answer = visitor.request(method, "/api/v1/actions", json={"action": "cancel", "jobs": ["1"]})
        assert answer.status_code == 403
    assert visitor.get(API, headers={"Host": "evil.example"}).status_code == 421
    assert visitor.get(API, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert "default-src 'none'; script-src 'self';" in visitor.get("/").headers["content-security-policy"]


def test_nothing_private_in_the_answer(queue: PastQueue) -> None:
    """Not the names, commands, groups and notes of the user who serves the page, though its engine tells them all."""
    queue.submit("secret-waiting", group="secret-group")
    queue.ran("secret-running", queue.devices[0].id, -100, None)
    queue.store.put_setting(drained_key(queue.devices[1].id), {"note": "secret", "at": queue.now})
    answer = browser(queue, OpenDoor()).get(API)
    page = msgspec.json.decode(answer.content, type=LabPage)
    assert len(page.gpus) == len(queue.devices)
    assert not any(gpu.drained for gpu in page.gpus)
    assert "secret" not in answer.text
    assert "train.py" not in answer.text
    assert '"you":true' not in answer.text
