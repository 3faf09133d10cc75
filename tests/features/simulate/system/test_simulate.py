"""`stoker simulate` as people type it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from xml.etree import ElementTree

import msgspec
import pytest

from stoker.features.simulate.policies import POLICIES
from stoker.features.simulate.report import Simulation
from support.cli import Stoker
from support.terminal import open_terminal


@pytest.fixture
def trace(stoker: Stoker) -> str:
    """A day of sixty jobs, four of which need more than two GPUs."""
    random = Random(5)
    gpus = [8] * 4 + [random.choice([1, 1, 2]) for _ in range(56)]
    rows = [f"{random.uniform(0, 86400):.0f},{random.lognormvariate(7, 1):.0f},{count},u" for count in gpus]
    (stoker.cwd / "trace.csv").write_text("\n".join(["submit,duration,gpus,user", *rows]) + "\n")
    return "trace.csv"


def simulated(stoker: Stoker, *words: str) -> Simulation:
    """The JSON report."""
    outcome = stoker("simulate", *words, "--json")
    assert outcome.code == 0, outcome.err
    return msgspec.json.decode(outcome.out, type=Simulation)


def test_stoker_and_strict_order_are_compared(stoker: Stoker, trace: str) -> None:
    """By default; jobs that the machine could not run are named and left out, and none is lost."""
    told = simulated(stoker, trace, "--gpus", "2x24G")
    assert [one.policy for one in told.policies] == ["stoker", "stoker-auto", "fifo"]
    assert (told.jobs, list(told.notes)) == (56, ["4 jobs left out: more than 2 GPUs needed"])
    assert [one.figures.lost for one in told.policies] == [0, 0, 0]
    assert told.policies[0].figures.completion_mean < told.policies[2].figures.completion_mean


def test_jobs_that_give_way_are_compared(stoker: Stoker, trace: str) -> None:
    """One more row of Stoker's orders for each share of the jobs, with how often they gave way."""
    told = simulated(
        stoker, trace, "--gpus", "1x24G", "--rho", "0.9", "--preemptible", "0,100%", "--switch-cost", "20s"
    )
    assert [one.policy for one in told.policies] == [
        "stoker", "stoker+100%", "stoker-auto", "stoker-auto+100%", "fifo",
    ]  # fmt: skip
    assert [one.preemptible for one in told.policies] == [0.0, 1.0, 0.0, 1.0, 0.0]
    assert told.policies[0].figures.switches == 0.0
    assert told.policies[1].figures.switches > 0.0
    assert "If all of them gave way" in told.summary
    wrong = stoker("simulate", trace, "--preemptible", "150%")
    assert wrong.code == 2
    assert "write it as --preemptible 25,50,100%" in wrong.err


def test_the_same_words_give_the_same_figures(stoker: Stoker, trace: str) -> None:
    """And another seed gives others."""
    words = trace, "--gpus", "2x24G", "--policy", "packing", "--rho", "0.9"
    assert simulated(stoker, *words) == simulated(stoker, *words)
    assert simulated(stoker, *words).policies != simulated(stoker, *words, "--seed", "7").policies


def test_all_policies_in_a_table_for_programs(stoker: Stoker, trace: str) -> None:
    """TAB separated without a terminal, with a note on jobs left out; the bound is the best of all."""
    outcome = stoker("simulate", trace, "--gpus", "2x24G", "--policy", "all", "--rho", "0.9", "--cap-duration", "1h")
    assert outcome.code == 0
    note, summary = outcome.err.splitlines()
    assert note == "stoker: 4 jobs left out: more than 2 GPUs needed"
    assert summary.startswith("stoker: With 56 jobs of trace.csv on 2x24G, the default order would end jobs")
    head, *rows = [line.split("\t") for line in outcome.out.splitlines()]
    assert [row[0] for row in rows] == list(POLICIES)
    means = [float(row[head.index("completion_mean")]) for row in rows]
    assert min(means) == means[-1]


def test_a_person_gets_a_table_and_a_plot(stoker: Stoker, trace: str) -> None:
    """In the width of the terminal."""
    with open_terminal(stoker.home, PATH=stoker.environment["PATH"]) as terminal:
        words = [str(stoker.cwd / trace), "--gpus", "2x24G", "--jobs", "30", "--rho", "0.8"]
        terminal.start(["stoker", "simulate", *words], 100, 24)
        screen = terminal.wait_for("exit code 0")
    assert "on 2x24G" in screen
    assert "offered load 0.80" in screen
    assert "finished within this time after their arrival" in screen
    assert "█" in screen


def test_the_plot_can_be_drawn_into_a_file(stoker: Stoker, trace: str) -> None:
    """As an SVG with a line for each policy."""
    outcome = stoker("simulate", trace, "--gpus", "2x24G", "--policy", "stoker,fifo,srtf", "--svg", "plot.svg")
    assert outcome.code == 0, outcome.err
    root = ElementTree.parse(stoker.cwd / "plot.svg").getroot()
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 3


def test_the_sample_works_as_the_documents_have_it(stoker: Stoker) -> None:
    """Anywhere, without a file."""
    told = simulated(stoker, "--sample")
    assert (told.jobs, told.gpus) == (400, "8x40G")
    assert "times sooner than strict FIFO" in told.summary


def test_a_history_is_replayed_from_the_queue_and_from_its_file(stoker: Stoker) -> None:
    """On the machine of the engine, by all policies; the file tells the same jobs."""
    missing = stoker("simulate", "--history")
    assert (missing.code, missing.err.splitlines()[0]) == (2, "stoker: there is no history yet")
    assert stoker("submit", "--sim", "2x24G", "-a", "0-3", "--", "sleep", "1").code == 0
    assert stoker("wait", "--sim", "all").code == 0
    told = simulated(stoker, "--history", "--sim")
    assert (told.jobs, told.gpus, len(told.policies)) == (4, "2x24G", len(POLICIES) + 2)
    (stoker.cwd / "jobs.csv").write_text(stoker("history", "--sim", "--csv").out)
    again = simulated(stoker, "jobs.csv", "--gpus", "2x24G", "--policy", "all", "--preemptible", "100%")
    assert again.policies == told.policies


def test_an_oracle_is_told_in_the_report(stoker: Stoker, trace: str) -> None:
    """The report says that durations were known."""
    told = simulated(stoker, trace, "--gpus", "2x24G", "--policy", "shortest", "--oracle")
    assert told.oracle


def test_models_come_from_a_file(stoker: Stoker, trace: str) -> None:
    """Measured pairs that hardly move beside each other make packing slow."""
    names = ["('A3C', 1)", "('CycleGAN', 1)"]
    slow = {name: {"null": 10.0, **{other: [0.5, 0.5] for other in names}} for name in names}
    (stoker.cwd / "models.json").write_text(json.dumps({"v100": slow}))
    words = trace, "--gpus", "2x24G", "--policy", "packing", "--rho", "1"
    usual, other = simulated(stoker, *words), simulated(stoker, *words, "--models", "models.json")
    assert other.policies[0].figures.makespan > usual.policies[0].figures.makespan


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.csv"], "none.csv cannot be read: No such file or directory"),
        (["bad.csv"], "bad.csv has no column for the duration"),
        (["negative.csv"], "negative.csv:2: duration is '-3', not a number of seconds"),
        (["wide.csv", "--gpus", "2x24G"], "none of 1 job can run on 2x24G (1 job left out: more than 2 GPUs needed)"),
        (["large.csv", "--gpus", "2x24G"], "1 job left out: more than 24.0G on a GPU needed"),
        ([], "need exactly one trace to replay"),
        (["trace.csv", "--sample"], "need exactly one trace to replay"),
        (["trace.csv", "--from", "99"], "no job of trace.csv is selected: it has 60 jobs"),
        (["trace.csv", "--gpus", "lots"], "'lots' is not a description of simulated GPUs"),
        (["trace.csv", "--gpus", "0x24G"], "'0x24G' is not a description of simulated GPUs"),
        (["trace.csv", "--gpus", "999x24G,999x24G"], "are 1,998 GPUs"),
        (["trace.csv", "--policy", "fifi"], "no policy 'fifi'"),
        (["trace.csv", "--policy", ""], "no policy ''"),
        (["trace.csv", "--cap-duration", "long"], "'long' is not a duration"),
        (["trace.csv", "--rho", "0"], "--rho"),
        (["trace.csv", "--rho", "nan"], "--rho nan is not a load"),
        (["trace.csv", "--jobs", "0"], "--jobs"),
        (["trace.csv", "--models", "trace.csv"], "trace.csv has no throughputs"),
    ],
)
def test_what_cannot_be_is_refused(stoker: Stoker, trace: str, words: Sequence[str], said: str) -> None:
    """With one clear sentence and exit code 2."""
    (stoker.cwd / "bad.csv").write_text("arrival\n1\n")
    (stoker.cwd / "negative.csv").write_text("arrival,duration\n1,-3\n")
    (stoker.cwd / "wide.csv").write_text("arrival,duration,gpus\n1,3,4\n")
    (stoker.cwd / "large.csv").write_text("arrival,duration,vram\n1,3,80G\n")
    outcome = stoker("simulate", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert said in outcome.err
