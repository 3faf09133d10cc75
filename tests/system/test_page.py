"""The page of `stoker web` in a real browser, beside a queue with simulated GPUs."""

from __future__ import annotations

import contextlib
import gzip
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser

from stoker.core.spec import Resources
from stoker.web.page import FOLDER, INDEX
from support.background import Background
from support.browser import NARROW, Server, View, chromium, opened
from support.cli import until
from support.ports import reserved_port
from support.wait import wait_until

HOSTILE = "<script>alert(1)</script>"
TRAIN = "python -m stoker.devices.demo_job --memory {} --seconds 900 --steps 900"
TEXT = r"\033[1;31mred text\033[0m <b>not bold</b>\n10%%\r100%% done\nwandb: https://wandb.ai/t/p/runs/1\n"
NO_GPU = Resources(gpus=0)
VIEWS = ("overview", "timeline", "jobs", "jobs?state=all", "job/1", "history")


class Site(NamedTuple):
    """A browser, a queue with jobs of all kinds, and its server."""

    browser: Browser
    queue: Background
    server: Server


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        browser = stack.enter_context(chromium())
        queue = stack.enter_context(contextlib.closing(Background(tmp_path_factory.mktemp("page"), "4x24G")))
        for name, group, memory in (("vit-b", "vision", "14G"), ("bert", "language", "9G"), ("vit-s", "vision", "6G")):
            command = TRAIN.format(memory).split()
            assert queue("submit", "-J", name, "--group", group, "-m", memory, "-t", "1h", "--", *command).code == 0
        queue("submit", "-J", HOSTILE, "-G", "0", "-s", "--", f"printf '{TEXT}'; exit 3")
        queue("submit", "-J", "wide", "-G", "4", "--", "true")
        queue.wait_word("running", 1, 2, 3)
        queue.wait_over(4)
        server = Server(queue, stack.enter_context(reserved_port()))
        server.start()
        yield Site(browser, queue, server)


@pytest.fixture(scope="module")
def laptop(site: Site) -> Iterator[View]:
    """A page at the size of a laptop."""
    with opened(site.browser, site.server) as shown:
        yield shown


@pytest.fixture
def view(laptop: View) -> Iterator[View]:
    """The page, loaded again: a process of the browser for each test costs more than the test."""
    laptop.enter()
    yield laptop
    laptop.assert_no_complaints()


def test_the_page_is_small_and_complete(site: Site) -> None:
    """All files together take at most 400 KB compressed, and the first one contains no script or style itself."""
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) <= 400_000
    index = (FOLDER / INDEX).read_text(encoding="utf-8")
    assert not re.search(r"<style|style=|<script(?![^>]* src=)|https?://", index)


def test_every_view_shows_the_queue(view: View) -> None:
    """GPUs, jobs with reasons, curves and charts; nothing is wider than the window. The switch changes the theme."""
    assert_theme(view, "light")
    for route, texts, charts in (
        ("overview", ("GPU 3", "vit-b", "needs 4 GPUs", "Saved by sharing"), 0),
        ("timeline", ("vision", "language", "forecast"), 1),
        ("jobs", ("bert", "needs 4 GPUs", "language"), 0),
        ("job/1", ("State history", "demo_job: 14.0G on GPU", "Environment:"), 1),
        ("history", ("GPU-hours per day and group", "Outcomes", HOSTILE), 2),
    ):
        view.open(route)
        for text in texts:
            view.wait(text)
        view.wait_charts(charts)
        view.assert_fits()


def test_a_telephone_needs_no_horizontal_scrolling(site: Site) -> None:
    """It shows ids, GPUs and memory in the tables of open and of ended jobs. The switch changes the theme."""
    with opened(site.browser, site.server, NARROW, "dark") as view:
        for route in VIEWS:
            view.open(route)
            view.page.wait_for_selector(".skeleton", state="detached")
            view.page.wait_for_selector("main .card, main table, main .tile, main .placeholder")
            view.assert_fits()
        assert_theme(view, "dark")
        view.open("jobs")
        row = view.page.locator("tr[data-label='1']")
        row.locator(".narrow.id").wait_for()
        assert "GPU" in row.locator("td.column-time").inner_text()
        view.open("history")
        view.page.locator(".past .narrow.id").first.wait_for()
        view.assert_no_complaints()


def assert_theme(view: View, system: str) -> None:
    """The theme is that of the system, until the switch is used."""
    assert view.page.get_attribute("html", "data-theme") == system
    for expected in ("light", "dark", system):
        view.page.get_by_label("theme:").click()
        assert view.page.get_attribute("html", "data-theme") == expected


def test_hostile_text_stays_text(view: View) -> None:
    """A name and a log with markup are shown as they are; colours, carriage returns and links are understood."""
    view.open("job/4")
    assert view.page.locator("h1").inner_text() == HOSTILE
    view.wait("<b>not bold</b>")
    assert view.page.locator(".log-text b").count() == 0
    red = view.page.locator(".log-text .bold")
    assert (red.inner_text(), red.get_attribute("style")) == ("red text", "color: var(--ansi-1);")
    assert [line.strip() for line in view.page.locator(".log-text .line").all_inner_texts()][1] == "100% done"
    assert view.page.get_by_text("Weights & Biases run").get_attribute("href") == "https://wandb.ai/t/p/runs/1"
    view.page.get_by_label("search the log").fill("bold")
    assert view.page.locator(".log-text .match").count() == 1


def test_changes_are_shown_as_they_happen(site: Site, view: View) -> None:
    """A new job appears, reports progress and ends without a reload."""
    view.open("jobs")
    view.wait("vit-b")
    line = f"echo step 1/4; {until('first')}; echo step 3/4; {until('second')}"
    (label,) = map(str, site.queue.submit(line, names=["newcomer"], resources=NO_GPU))
    row = view.page.locator(f"tr[data-label='{label}']")
    row.locator(".state.active").wait_for()
    row.get_by_text("25%").wait_for()
    site.queue.open_gate("first")
    row.get_by_text("75%").wait_for()
    site.queue.open_gate("second")
    row.wait_for(state="detached")
    view.page.get_by_role("button", name="Done").click()
    row.locator(".state.good").wait_for()


def test_an_action_asks_first(site: Site, view: View) -> None:
    """Cancelling names the jobs; without the confirmation nothing happens."""
    first, second = site.queue.submit("sleep 900", "sleep 901", names=["spare", "surplus"], resources=NO_GPU)
    site.queue.wait_word("running", first, second)
    view.open("jobs")
    for job in (first, second):
        view.page.get_by_label(f"select job {job}", exact=True).check()
    view.page.get_by_role("toolbar").get_by_role("button", name="Cancel").click()
    dialog = view.page.locator("dialog")
    dialog.get_by_text("Cancel 2 jobs?").wait_for()
    assert "spare" in dialog.inner_text()
    assert "surplus" in dialog.inner_text()
    dialog.get_by_role("button", name="Go back").click()
    dialog.wait_for(state="detached")
    assert site.queue.word(first) == site.queue.word(second) == "running"
    view.page.get_by_role("toolbar").get_by_role("button", name="Cancel").click()
    dialog.get_by_role("button", name="Cancel 2 jobs").click()
    view.wait("2 jobs cancelled")
    site.queue.wait_over(first, second)
    assert site.queue.word(first) == site.queue.word(second) == "cancelled"


def test_a_job_gives_way_by_hand(site: Site, view: View) -> None:
    """Only a preemptible job that runs has the button; the page of the job tells that it gave way."""
    saves = f"trap 'exit 75' USR1; touch ready$STOKER_RESTART; {until('saved')}"
    (job,) = site.queue.submit(saves, names=["saves"], resources=NO_GPU, preemptible="save")
    wait_until((site.queue.cwd / "ready").exists)
    site.queue.wait_word("running", job)
    view.open("job/1")
    view.wait("vit-b")
    assert view.page.get_by_role("button", name="Preempt").count() == 0
    view.open(f"job/{job}")
    view.page.get_by_role("button", name="Preempt").click()
    view.page.locator("dialog").get_by_text("Preempt 1 job?").wait_for()
    view.page.locator("dialog").get_by_role("button", name="Preempt 1 job").click()
    view.wait("1 job asked to give way")
    wait_until((site.queue.cwd / "ready1").exists)
    view.wait("preempted")
    site.queue.open_gate("saved")
    site.queue.wait_over(job)
    assert site.queue.job(job).preemptions == 1


def test_a_job_that_ended_by_itself_is_not_cancelled(site: Site, view: View) -> None:
    """The dialog follows its state, and the notice tells what became of it."""
    (job,) = site.queue.submit(until("enough"), names=["quick"], resources=NO_GPU)
    site.queue.wait_word("running", job)
    view.open(f"job/{job}")
    view.page.get_by_role("button", name="Cancel").click()
    dialog = view.page.locator("dialog")
    dialog.get_by_text("running", exact=True).wait_for()
    site.queue.open_gate("enough")
    dialog.get_by_text("done", exact=True).wait_for()
    dialog.get_by_role("button", name="Cancel 1 job").click()
    view.wait(f"already finished: {job} (done)")


def test_a_priority_is_never_guessed(site: Site, view: View) -> None:
    """An empty field is not sent; for jobs with different priorities the field begins empty."""
    with site.queue.open_store():
        high = site.queue.submit("true", names=["high"], held="test", priority=7, resources=NO_GPU)
        low = site.queue.submit("true", names=["low"], held="test", resources=NO_GPU)
    view.open("jobs?state=held")
    view.page.get_by_label(f"select job {high[0]}", exact=True).check()
    view.page.get_by_role("toolbar").get_by_role("button", name="Priority").click()
    field, dialog = view.page.locator("dialog input"), view.page.locator("dialog")
    assert field.input_value() == "7"
    field.fill("")
    dialog.get_by_role("button", name="Change priority").click()
    assert dialog.is_visible()
    dialog.get_by_role("button", name="Go back").click()
    view.page.get_by_label(f"select job {low[0]}", exact=True).check()
    view.page.get_by_role("toolbar").get_by_role("button", name="Priority").click()
    dialog.get_by_text("now 0 to 7").wait_for()
    assert field.input_value() == ""
    field.fill("3")
    dialog.get_by_role("button", name="Change priority").click()
    view.wait("2 jobs changed")
    assert [site.queue.job(job).spec.priority for job in (*high, *low)] == [3, 3]
    site.queue("cancel", *map(str, (*high, *low)))


def test_all_jobs_of_all_pages(site: Site, view: View) -> None:
    """They are chosen at once, only as many as were shown, and no priority is guessed. A line leads to its array."""
    tasks = site.queue.submit(*["true"] * 120, names=["mass"] * 120, array=True, held="test", resources=NO_GPU)
    view.open("jobs?state=held")
    view.page.get_by_role("link", name="mass").click()
    view.wait(f"Array {tasks[0]}")
    view.wait("120 held")
    view.page.get_by_label("select all jobs of this page").check()
    view.wait("100 jobs chosen")
    view.page.get_by_role("button", name="Choose all that match").click()
    view.wait("120 jobs chosen")
    view.page.get_by_role("toolbar").get_by_role("button", name="Priority").click()
    assert view.page.locator("dialog input").input_value() == ""
    view.page.locator("dialog").get_by_role("button", name="Go back").click()
    view.page.get_by_role("toolbar").get_by_role("button", name="Cancel").click()
    view.page.locator("dialog").get_by_text("and 112 more").wait_for()
    view.page.locator("dialog").get_by_role("button", name="Cancel 120 jobs").click()
    view.wait("120 jobs cancelled")
    site.queue.wait_over(*tasks)
    assert site.queue.word(tasks[-1]) == "cancelled"


def test_all_of_a_long_log_is_searched(site: Site, view: View) -> None:
    """Also what the page has not loaded: it goes there, and back to the end."""
    line = "echo View run at start; seq -f 'step %.0f of many' 20000; echo View run at end"
    (job,) = site.queue.submit(line, names=["talkative"], resources=NO_GPU)
    site.queue.wait_over(job)
    view.open(f"job/{job}")
    view.wait("View run at end")
    search = view.page.get_by_label("search the log")
    search.fill("View run")
    view.wait("2/2")
    search.press("Enter")
    view.wait("1/2")
    view.page.locator(".line.current", has_text="View run at start").wait_for()
    view.page.get_by_role("button", name="Show later lines").wait_for(state="attached")
    search.fill("STEP 10000 of")
    view.wait("1/1")
    view.page.locator(".line.current", has_text="step 10000 of many").wait_for()
    search.fill("nowhere")
    view.page.locator(".matches", has_text="none").wait_for()
    view.page.get_by_role("button", name="Follow").click()
    view.page.locator(".log-text .line", has_text="View run at end").wait_for()
    view.page.get_by_role("button", name="First lines").click()
    view.page.locator(".log-text .line", has_text="View run at start").wait_for()
    with view.page.expect_download() as download:
        view.page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == f"stoker-{job}-1.log"
    assert download.value.path().read_text() == site.queue.log(job)


def test_back_returns_to_the_filter_and_the_row(view: View) -> None:
    """A chip is a step of the browser; a double click opens a job, and Esc clears a choice."""
    view.open("jobs")
    row = view.page.locator("tr[data-label='2']")
    row.locator("td.column-time").dblclick()
    view.page.wait_for_url("**#/job/2")
    view.page.go_back()
    view.page.locator("tr.current[data-label='2']").wait_for()
    view.page.get_by_role("button", name="Failed").click()
    row.wait_for(state="detached")
    view.page.go_back()
    row.wait_for()
    view.page.get_by_label("select job 1", exact=True).check()
    view.page.get_by_label("select job 3", exact=True).click(modifiers=["Shift"])
    view.wait("3 jobs chosen")
    view.page.locator("main").focus()
    view.page.keyboard.press("Escape")
    view.page.locator(".bulk.shown").wait_for(state="detached")
    assert view.page.get_by_label("select job 2", exact=True).is_checked() is False


def test_the_keyboard_is_enough(view: View) -> None:
    """Keys change the view, move in the table, open a job and go back."""
    view.wait("GPU 0")
    view.page.keyboard.press("3")
    view.page.locator("tr[data-label='1']").wait_for()
    view.page.keyboard.press("j")
    view.page.keyboard.press("Enter")
    view.page.locator("h1").wait_for()
    assert view.page.url.endswith("#/job/1")
    view.page.keyboard.press("c")
    view.page.get_by_text("Cancel 1 job?").wait_for()
    view.page.keyboard.press("Escape")
    view.page.locator("dialog").wait_for(state="detached")
    view.page.keyboard.press("Escape")
    view.page.wait_for_url("**#/jobs")
    view.page.keyboard.press("/")
    view.page.keyboard.type("bert")
    view.page.locator("tr[data-label='1']").wait_for(state="detached")
    view.page.locator("tr[data-label='2']").wait_for()


def test_a_lost_connection_comes_back(site: Site) -> None:
    """The page says that the server is gone, connects again, and shows what happened meanwhile."""
    with opened(site.browser, site.server) as view:
        view.open("jobs")
        view.wait("engine running")
        view.assert_no_complaints()
        site.server.kill()
        view.wait("The connection is lost.")
        site.queue.submit("sleep 900", names=["meanwhile"])
        site.server.start()
        view.wait("meanwhile")
        view.wait_gone("The connection is lost.")
        assert {text for text in view.complaints if "ERR_" not in text} == set()


def test_an_empty_queue_and_a_stopped_engine_are_explained(
    site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each empty view says what to type; a page that may not change anything offers no actions."""
    with contextlib.closing(Background(tmp_path_factory.mktemp("empty"))) as queue, reserved_port() as port:
        server = Server(queue, port, "--readonly")
        server.start()
        with opened(site.browser, server) as view:
            view.wait("engine stopped")
            view.wait("No job is running.")
            view.open("jobs")
            view.wait("stoker submit -- python3 train.py")
            view.open("history")
            view.wait("No job ended in this period.")
            queue.submit("true", names=["stuck"], start=False)
            view.open("jobs")
            view.wait("stuck")
            view.wait("The engine is stopped.")
            assert view.page.locator("input[type=checkbox]").count() == 0
            view.assert_no_complaints()
