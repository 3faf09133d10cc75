"""The code of a job on the page of `stoker web`, in a real browser."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from features.freeze.repository import git
from features.freeze.system.test_frozen_code import submitted
from support.background import Background
from support.browser import NARROW, Server, View, chromium, opened
from support.optional import require
from support.ports import reserved_port

HOSTILE = "<img src=x onerror=alert(1)>"
BUTTON = "Compare with the present code"


def test_the_page_compares_the_code_of_a_job(tmp_path: Path) -> None:
    """After a press, and as text; also on a phone, where a wide line scrolls by itself."""
    require("git")
    with contextlib.ExitStack() as stack:
        browser = stack.enter_context(chromium())
        queue = stack.enter_context(contextlib.closing(Background(tmp_path, "4x24G")))
        script = queue.cwd / "train.py"
        script.write_text("print('old')\n")
        git(queue.cwd, "init", "-q")
        job = submitted(queue, "--", sys.executable, "train.py")
        unfrozen = submitted(queue, "--", sys.executable, "-c", "pass")
        server = Server(queue, stack.enter_context(reserved_port()))
        server.start()
        with opened(browser, server) as view:
            view.open(f"job/{job}")
            press(view)
            view.wait("Nothing has changed in")
            script.write_text(f"print('new')\n# {HOSTILE} {'wide ' * 200}\n")
            press(view)
            view.wait("1 file changed in")
            assert view.page.locator(".diff-text .old").all_inner_texts() == ["-print('old')"]
            assert HOSTILE in view.page.locator(".diff-text .new").nth(1).inner_text()
            view.assert_fits()
            view.open(f"job/{unfrozen}")
            view.wait("State history")
            assert view.page.get_by_role("button", name=BUTTON).count() == 0
            view.assert_no_complaints()
        with opened(browser, server, NARROW, "dark") as view:
            view.open(f"job/{job}")
            press(view)
            view.wait("1 file changed in")
            view.assert_fits()
            view.assert_no_complaints()


def press(view: View) -> None:
    view.page.get_by_role("button", name=BUTTON).click()
