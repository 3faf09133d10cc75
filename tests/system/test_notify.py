"""`--notify`: one message when a job, an array or a run has ended."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.core.spec import Resources
from support.background import Background
from support.wait import PATIENCE_SECONDS, wait_until

pytest.importorskip("apprise")
NO_GPU = Resources(gpus=0)


class Messages:
    """A server for json:// that keeps what it gets, or never answers."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.titles: list[str] = []
        self.texts: list[str] = []
        self.asked = threading.Event()
        self.released = threading.Event()
        messages = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                messages.asked.set()
                if hangs:
                    messages.released.wait(PATIENCE_SECONDS)
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                messages.titles.append(body["title"])
                messages.texts.append(body["message"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"json://127.0.0.1:{self.server.server_port}/secret"


@contextmanager
def listening(*, hangs: bool = False) -> Iterator[Messages]:
    messages = Messages(hangs=hangs)
    thread = threading.Thread(target=messages.server.serve_forever)
    thread.start()
    try:
        yield messages
    finally:
        messages.released.set()
        messages.server.shutdown()
        thread.join(PATIENCE_SECONDS)
        messages.server.server_close()


def submitted(background: Background, *words: str) -> int:
    outcome = background("submit", "--parsable", "-G", "0", *words)
    assert outcome.code == 0, outcome.err
    return int(outcome.out)


def notified(background: Background, job: str) -> tuple[list[str], str]:
    """The targets of a job and what became of its notification, as status tells."""
    (told,) = json.loads(background("status", job, "--json").out)["jobs"]
    return told["notify"], told["notified"]


def test_a_job(background: Background) -> None:
    """The message names the job, how it ended and the last line of its log; status tells that it was sent."""
    with listening() as messages:
        job = submitted(background, "--notify", messages.url, "-J", "bert", "--", "sh", "-c", "echo no data; exit 3")
        wait_until(lambda: messages.titles)
        assert f"job {job} (bert): exit 3" in messages.titles[0]
        assert "no data" in messages.texts[0]
        wait_until(lambda: notified(background, str(job)) == (["json://…"], "sent"))


def test_an_array_across_a_killed_engine(background: Background) -> None:
    """One message comes when the last task has ended, whichever engine records that."""
    with listening() as messages:
        line = "until test -e gate{i}; do sleep 0.05; done; test {i} != 2"
        job = submitted(background, "--notify", messages.url, "-a", "1-3", "--", "sh", "-c", line)
        for task in (1, 2):
            background.open_gate(f"gate{task}")
        background.wait_over(job, job + 1)
        background.kill_engine()
        assert messages.titles == []
        background.open_gate("gate3")
        background.start_engine()
        wait_until(lambda: messages.titles)
        assert "3 of 3 finished, 1 failed" in messages.titles[0]
        wait_until(lambda: notified(background, f"{job}.1")[1] == "sent")
        background.kill_engine()
        background.start_engine()
        after = submitted(background, "true")
        background.wait_over(after)
        assert len(messages.titles) == 1


def test_a_run(background: Background) -> None:
    """A run in the foreground is told of as a whole, also where its lines come one after another."""
    with listening() as messages:
        arguments = ("run", "--sim", "2x24G", "-G", "0", "--notify", messages.url, "-")
        outcome = background(*arguments, stdin="true\nexit 1\ntrue\n")
        assert outcome.code == 1
        wait_until(lambda: messages.titles)
        assert "3 of 3 finished, 1 failed" in messages.titles[0]
        assert len(messages.titles) == 1


def test_a_server_that_hangs(background: Background) -> None:
    """Neither the job nor the next one is affected, and the failure is shown with the job."""
    with listening(hangs=True) as messages:
        url = f"{messages.url}?rto=2&cto=2"
        job = submitted(background, "--notify", url, "true")
        background.wait_over(job)
        assert background.word(job) == "done"
        assert messages.asked.wait(PATIENCE_SECONDS)
        after = submitted(background, "true")
        background.wait_over(after)
        wait_until(lambda: notified(background, str(job))[1].startswith("not sent: json://…: "))
        assert messages.titles == []


def test_mail(background: Background, tmp_path: Path) -> None:
    """`mail` goes through the mail program of the machine; without one, the user is warned at submit."""
    programs = tmp_path / "programs"
    programs.mkdir()
    mail = programs / "mail"
    mail.write_text(
        f'#!/bin/sh\n{{ echo "$@"; cat; }} > {tmp_path}/letter.new; mv {tmp_path}/letter.new {tmp_path}/letter\n'
    )
    mail.chmod(0o755)
    if Path("/usr/sbin/sendmail").exists() or Path("/usr/lib/sendmail").exists():
        pytest.skip("this machine has a sendmail, which would be used")
    background.environment["PATH"] += f":{programs}"
    submitted(background, "--notify", "mail", "true")
    wait_until((tmp_path / "letter").exists)
    assert ": done, " in (tmp_path / "letter").read_text()
    mail.unlink()
    background.environment["PATH"] = background.environment["PATH"].removesuffix(f":{programs}")
    warned = background("submit", "-G", "0", "--notify", "mail", "--hold", "true")
    assert "--notify will not work: neither sendmail nor mail is installed" in warned.err


@pytest.mark.parametrize("target", ["slack", "http//x", "://x", "json://a b", "mail,", ""])
def test_bad_targets(background: Background, target: str) -> None:
    """What cannot be a target is refused at submit."""
    outcome = background("submit", "-G", "0", "--notify", target, "true")
    assert (outcome.code, "neither a URL nor mail" in outcome.err) == (2, True), outcome.err
