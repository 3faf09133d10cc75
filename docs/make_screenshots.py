"""Take the screenshots of the page in the documents: a real queue on simulated GPUs, seen by Chromium."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, Route, sync_playwright

from stoker.ledger import prepare_ledger

SECONDS = 170
"""How long jobs run before the pictures are taken: the curves of GPUs have a point for each minute."""
WIDTH, HEIGHT = 1280, 800
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
TRAINING = '''"""Trains nothing, and looks like it: memory, load, a progress bar, colours, reported values."""
import contextlib, math, os, sys, time
import stoker
from stoker.core.units import parse_size
from stoker.devices.demo_job import VisibleGpus

epochs, size = int(sys.argv[1]), parse_size(sys.argv[2])
print("\\x1b[1;36mtrain\\x1b[0m", *sys.argv[3:], "on GPU", os.environ.get("CUDA_VISIBLE_DEVICES"))
print("wandb: \\x1b[33mView run\\x1b[0m at https://wandb.ai/lab/vit/runs/k3x9q1", flush=True)
with contextlib.closing(VisibleGpus(os.environ, 55)) as gpus:
    for epoch in range(1, epochs + 1):
        gpus.hold(int(size * min(1.0, 0.45 + 2 * epoch / epochs)))
        for part in range(10):
            time.sleep(0.1)
            print(f"\\r epoch {epoch}: {10 * part + 10:3}%|{'█' * (part + 1):10}|", end="", flush=True)
        loss = 0.1 + 2.2 * math.exp(-3 * epoch / epochs) + 0.04 * math.sin(3 * epoch)
        accuracy = 0.93 - 0.8 * math.exp(-4 * epoch / epochs) + 0.01 * math.cos(5 * epoch)
        print(f"\\n\\x1b[32mepoch {epoch}/{epochs}\\x1b[0m loss={loss:.4f}", end=" ")
        print(f"\\x1b[2mval_acc={accuracy:.3f}\\x1b[0m", flush=True)
        stoker.report(loss=loss, val_acc=accuracy, step=epoch)
        stoker.progress(epoch, epochs)
'''
JOBS = (
    "-J vit-b --group vision -m 14G -t 8m -- python train.py 420 12G --lr 3e-4",
    "-J bert --group language -m 9G -t 6m -- python train.py 300 8G --lr 1e-4",
    "-J vit-s --group vision -m 7G -t 2m -a 0-17%3 -- python train.py 55 6G --seed {i}",
    "-J preprocess -G 0 -- python train.py many",
    "-J probe --group tests -m 4G -t 1m -- python -m stoker.devices.demo_job --memory 30G --seconds 9 --ramp 6",
    "-J bert-sweep --group language -m 6G -t 90s -a 0-29%4 -- python train.py 40 5G --trial {i}",
    "-J lora --group language -G 2 -m 16G -t 3m -- python train.py 100 15G --rank 16",
    "-J vit-l --group vision -G 4 -t 10m -- python train.py 300 22G",
    "-J eval -d vit-l -- python train.py 10 4G",
    "-J nightly -b now+6hour -m 3G -- python train.py 10 2G",
)
PICTURES = (("overview", "overview", "light"), ("timeline", "timeline", "light"), ("job", "job/1", "dark"))
"""The name of a picture, its view and its theme."""


class Queue:
    """The command line, with a state of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "vit"
        self.directory.mkdir()
        (self.directory / "train.py").write_text(TRAINING, encoding="utf-8")
        own = {"STOKER_STATE": str(directory / "state"), "STOKER_SIM": "4x24G"}
        ledger = str(prepare_ledger(directory / "ledger"))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, **own, "STOKER_LEDGER": ledger, "PATH": path}

    def run(self, words: str) -> None:
        command = [sys.executable, "-m", "stoker", *words.split()]
        subprocess.run(command, cwd=self.directory, env=self.environment, capture_output=True, timeout=60, check=False)

    @contextmanager
    def serving(self) -> Iterator[str]:
        """The address of the page, with its token."""
        command = [sys.executable, "-m", "stoker", "web"]
        with subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                yield server.stdout.readline().strip()
            finally:
                server.terminate()


def rename_host(route: Route) -> None:
    """Replace the name of this machine in the answers of the server."""
    answer = route.fetch()
    route.fulfill(response=answer, body=json.dumps({**answer.json(), "host": "lab7"}))


def photograph(browser: Browser, link: str, target: Path, view: str, theme: str) -> None:
    context = browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark" if theme == "dark" else "light"
    )
    page: Page = context.new_page()
    page.route("**/api/v1/status", rename_host)
    page.goto(link)
    page.wait_for_selector("header.top")
    page.goto(f"{link.partition('?')[0]}#/{view}")
    page.wait_for_selector(".gpu-card .line, .chart canvas")
    page.wait_for_timeout(4000)  # the charts, the log, and some changes of the running job
    page.screenshot(path=target)
    context.close()


def main() -> None:
    """Run jobs for some minutes, then take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, default=Path(__file__).parent)
    directory: Path = parser.parse_args().directory
    program = shutil.which("chromium")
    if program is None:
        sys.exit("chromium is not installed; the screenshots stay as they are")
    with tempfile.TemporaryDirectory(prefix="lab-") as state:
        queue = Queue(Path(state))
        try:
            for job in JOBS:
                queue.run(f"submit {job}")
            time.sleep(SECONDS)
            with queue.serving() as link, sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
                for name, view, theme in PICTURES:
                    photograph(browser, link, directory / f"web-{name}.png", view, theme)
                browser.close()
        finally:
            for ending in ("cancel all --grace 0", "wait all", "engine stop"):
                queue.run(ending)


if __name__ == "__main__":
    main()
