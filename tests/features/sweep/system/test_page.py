"""Sweeps on the page of `stoker web`, in a real browser."""

from __future__ import annotations

import contextlib
from pathlib import Path

from features.sweep.sweeps import start_sweep, sweep_status
from support.background import Background
from support.browser import NARROW, Server, View, chromium, opened
from support.ports import reserved_port

PARALLEL_RIGHT, PARALLEL_TOP = 64, 38
"""Pixels from the edges of the chart to the last axis and to its top."""


def test_a_sweep_is_shown_as_its_trials_end(tmp_path: Path) -> None:
    """Charts and table fill without a reload; a part of an axis chooses trials; a trial opens its job."""
    with contextlib.ExitStack() as stack:
        browser = stack.enter_context(chromium())
        queue = stack.enter_context(contextlib.closing(Background(tmp_path, "4x24G")))
        server = Server(queue, stack.enter_context(reserved_port()))
        server.start()
        with opened(browser, server) as view:
            look_at_a_sweep(queue, view)
            view.assert_no_complaints()
        with opened(browser, server, NARROW) as view:
            view.open("sweeps")
            view.wait("toy")
            view.assert_fits()
            view.assert_no_complaints()


def look_at_a_sweep(queue: Background, view: View) -> None:
    """Start one, and use its page as its trials end."""
    view.open("sweeps")
    view.wait("There is no sweep yet.")
    view.wait("stoker sweep lr=1e-4..1e-1:log")
    options = ("--method", "random", "-N", "6", "--name", "toy", "-G", "0", "--max-parallel", "2")
    sweep = start_sweep(queue, *options)
    view.page.locator(f"tr[data-sweep='{sweep}']").get_by_role("link").click()
    view.wait("best loss (min)")
    view.page.locator("section.trials .state.good").nth(5).wait_for()
    view.page.locator(".job-title .state.good").wait_for()
    view.wait_charts(4)
    best = sweep_status(queue, sweep)["best"][0]
    rows = view.page.locator("table.trials tbody tr")
    assert rows.first.get_attribute("data-trial") == str(best["trials"][0])
    view.assert_fits()
    brush_value(view, "parallel coordinates of 6 trials")
    view.wait("chosen in the chart")
    rows.first.wait_for()  # the table follows the pointer: at first no trial may be inside
    assert rows.count() < 6
    assert rows.first.get_attribute("data-trial") == str(best["trials"][0])
    view.page.get_by_role("button", name="Show all", exact=True).click()
    rows.nth(5).wait_for()
    view.page.get_by_label("parameter", exact=True).select_option("depth")
    view.page.keyboard.press("Tab")
    view.page.keyboard.press("j")
    view.page.keyboard.press("Enter")
    view.page.wait_for_url(f"**#/job/{best['jobs'][0]}")
    view.wait("State history")
    view.page.keyboard.press("Escape")
    view.page.wait_for_url(f"**#/sweeps/{sweep}")


def brush_value(view: View, label: str) -> None:
    """Drag along the better part of the last axis, which is the value."""
    chart = view.page.get_by_label(label)
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    x, top = box["x"] + box["width"] - PARALLEL_RIGHT, box["y"] + PARALLEL_TOP
    view.page.mouse.move(x, top + 1)
    view.page.mouse.down()
    view.page.mouse.move(x, top + 40, steps=3)
    view.page.mouse.move(x, top + 0.45 * (box["height"] - PARALLEL_TOP), steps=3)
    view.page.mouse.up()
