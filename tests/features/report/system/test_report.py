"""`stoker report`, `stoker history --timeline` and `--svg`, as typed."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from support.background import Background

NAME = "<img src=x onerror=alert(1)>"


class _Markup(HTMLParser):
    """Tags and attributes as a browser sees them, whatever the text between them says."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def test_a_report_about_a_period(background: Background, tmp_path: Path) -> None:
    """One file with the timeline, the outcomes and the last lines of failures; no name or log becomes markup."""
    done, failed = background.submit("true", "echo '<b>last words</b>'; exit 3", names=["good", NAME])
    background.wait_over(done, failed)
    page = tmp_path / "my report.html"
    outcome = background("report", "--html", str(page))
    assert outcome.code == 0, outcome.err
    text = page.read_text()
    assert "&lt;b&gt;last words&lt;/b&gt;" in text
    assert "<b>last" not in text
    markup = _Markup()
    markup.feed(text)
    assert "img" not in markup.tags
    assert not {"src", "href"} & {name for name, _ in markup.attributes}
    assert {value for _, value in markup.attributes if "://" in value} <= {"http://www.w3.org/2000/svg"}
    assert "Slowest jobs" in text
    assert "default-src 'none'" in text


def test_a_report_about_a_batch(background: Background, tmp_path: Path) -> None:
    """Only the jobs that were submitted together count."""
    background.wait_over(*background.submit("exit 1"))
    jobs = background.submit("true", "true", "exit 2")
    background.wait_over(*jobs)
    outcome = background("report", "--batch", str(jobs[1]), "--json")
    report = json.loads(outcome.out)
    assert report["schema"] == "stoker.report/1"
    assert report["outcomes"] == {"done": 2, "failed": 1}
    assert [one["job"]["id"] for one in report["failures"]] == [jobs[2]]
    assert sum(len(lane["bars"]) for lane in report["timeline"]["lanes"]) == 3
    single = json.loads(background("report", str(jobs[0]), "--json").out)
    assert (single["outcomes"], single["title"]) == ({"done": 1}, f"job {jobs[0]}")


def test_wrong_words(background: Background) -> None:
    """What is missing, contradicts itself or does not exist is told."""
    for words, told in (
        (["report"], "--html names no file"),
        (["report", "1", "--since", "1d", "--html", "x"], "cannot be combined"),
        (["report", "--batch", "999", "--html", "x"], "no job"),
        (["report", "--html", "/no/such/directory/x.html"], "cannot write"),
    ):
        outcome = background(*words)
        assert outcome.code != 0
        assert told in outcome.err


def test_the_timeline_of_the_history(background: Background, tmp_path: Path) -> None:
    """As text, JSON and a picture."""
    background.wait_over(*background.submit("true", names=["one"]))
    text = background("history", "--timeline", "--table").out
    assert "GPU 0" in text
    assert "█ used" in text
    found = json.loads(background("history", "--timeline", "--json").out)
    assert [lane["label"] for lane in found["lanes"]] == ["0", "1"]
    picture = tmp_path / "gpus.svg"
    assert background("history", "--svg", str(picture)).code == 0
    assert ElementTree.fromstring(picture.read_text()).tag.endswith("svg")
    assert background("history", "--svg", "-").out.startswith("<svg")


def test_a_long_list_suggests_a_report(background: Background) -> None:
    """And the suggestion works as it is typed."""
    jobs = background.write("jobs.txt", *["true"] * 20)
    outcome = background("run", str(jobs))
    (command,) = re.findall(r"stoker (report .*)", outcome.err + outcome.out)
    assert background(*command.split()).code == 0
    page = (background.cwd / "report.html").read_text()
    assert "20</b>jobs ended" in page
