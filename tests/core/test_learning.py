"""Estimates from earlier runs."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from stoker.core.learning import (
    CURVE,
    GRAIN_BYTES,
    KEPT,
    LEAST_BYTES,
    MIB,
    Learnt,
    MeasuredUse,
    estimated,
    expected_seconds,
    observe,
    observe_use,
    reached,
    seen,
    signature_of,
)
from stoker.core.spec import Command, Member, Resources, amount_on
from support.build import GIB, simulated

LR = Command(("python", "train.py", "--lr", "1e-3"))


def test_no_estimate_without_runs() -> None:
    """Without runs there is no estimate."""
    assert expected_seconds(Learnt()) is None


def test_one_outlier_does_not_change_the_estimate() -> None:
    """The median counts, not the mean."""
    learnt = Learnt()
    for seconds in (60.0, 62.0, 4000.0):
        learnt = observe(learnt, seconds)
    assert expected_seconds(learnt) == 62.0


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=50))
def test_only_the_newest_runs_count(runs: list[float]) -> None:
    """Old runs are dropped, and the estimate lies within the kept runs."""
    learnt = Learnt()
    for seconds in runs:
        learnt = observe(learnt, seconds)
    assert learnt.seconds == tuple(runs[-KEPT:])
    expected = expected_seconds(learnt)
    assert expected is not None
    assert min(learnt.seconds) <= expected <= max(learnt.seconds)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LR, Command(("python", "train.py", "--lr", "3e-4"))),
        (
            Command(("python train.py --seed 1 > out1.txt",), "/bin/sh"),
            Command(("python train.py --seed 22 > out2.txt",), "/bin/bash"),
        ),
        (LR, Command(("python train.py --lr '2e-3'",), "/bin/sh")),
        (Command(("echo 'a 1",), "/bin/sh"), Command(("echo 'a 2",), "/bin/sh")),
    ],
)
def test_numbers_do_not_make_another_kind_of_work(one: Command, other: Command) -> None:
    """A sweep over rates and seeds is one kind of work."""
    assert signature_of(one, "/home/ada") == signature_of(other, "/home/ada")


@pytest.mark.parametrize(
    "other",
    [
        (Command(("python", "eval.py", "--lr", "1e-3")), "/home/ada"),
        (Command(("python3", "train.py", "--lr", "1e-3")), "/home/ada"),
        (Command(("python", "train.py", "--model", "vit")), "/home/ada"),
        (LR, "/home/bob"),
        (Command(("",)), "/home/ada"),
    ],
)
def test_another_program_script_option_or_place_is_other_work(other: tuple[Command, str]) -> None:
    """Program, script, option names and directory distinguish kinds of work."""
    assert signature_of(LR, "/home/ada") != signature_of(*other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("--batch-size 32", "--batch-size 64"),
        ("--bs=32", "--bs=64"),
        ("batch=32", "batch=64"),
        ("--model resnet18", "--model resnet152"),
        ("--hidden 128", "--hidden 256"),
        ("--model-name vit", "--model-name bert"),
        ("--memory 6.5G", "--memory 13.5G"),
        ("--memory 6G", "--memory 8G"),
    ],
)
def test_what_decides_the_memory_makes_another_kind_of_work(one: str, other: str) -> None:
    """Another batch size or model is another kind of work."""
    first, second = (Command((f"python train.py {words} --lr 0.1",), "/bin/sh") for words in (one, other))
    assert signature_of(first, "/home/ada") != signature_of(second, "/home/ada")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("--out runs/7/a1", "--out runs/8/a2"),
        ("--log log_1.txt", "--log log_2.txt"),
        ("--name a", "--name b"),
        ("run_name=x", "run_name=y"),
        ("--exp-id a1", "--exp-id b2"),
    ],
)
def test_output_paths_do_not_make_another_kind_of_work(one: str, other: str) -> None:
    """Numbered output paths are the same kind of work."""
    first, second = (Command((f"python train.py {words}",), "/bin/sh") for words in (one, other))
    assert signature_of(first, "/home/ada") == signature_of(second, "/home/ada")


def test_the_largest_of_the_last_peaks_counts_with_a_margin() -> None:
    """The estimate is rounded up, so that small differences do not make different kinds."""
    learnt = Learnt()
    for peak in (2 * GIB, 3 * GIB, GIB):
        learnt = observe_use(learnt, "A100", peak=peak)
    ((model, size),) = estimated(Resources(auto=True), learnt, 15).predicted
    assert model == "A100"
    assert 3.45 * GIB <= size < 3.45 * GIB + GRAIN_BYTES
    assert size % GRAIN_BYTES == 0


def test_work_without_gpu_memory_is_known_after_two_runs() -> None:
    """A single run may have ended early. A later run that takes memory counts alone."""
    learnt, amounts = Learnt(), []
    for peak in (0, 0, GIB):
        learnt = observe_use(learnt, "A100", peak=peak)
        amounts.append(dict(estimated(Resources(auto=True), learnt, 0).predicted).get("A100"))
    assert amounts == [None, LEAST_BYTES, GIB]


def test_another_gpu_model_is_unknown() -> None:
    """On another GPU model the next run is exclusive and measured."""
    resources = estimated(Resources(auto=True), observe_use(Learnt(), "A100", peak=GIB), 15)
    known, unknown = (structs.replace(simulated(24)[0], model=model) for model in ("A100", "T4"))
    assert amount_on(resources, known) is not None
    assert amount_on(resources, unknown) is None


def test_a_declared_size_is_only_raised_after_out_of_memory() -> None:
    """A declared size gets no margin; it is raised only after an out-of-memory error."""
    learnt = observe_use(Learnt(), "A100", peak=20 * GIB, load=70)
    (device,) = simulated(24)
    assert amount_on(estimated(Resources(memory=6 * GIB), learnt, 15), device) == 6 * GIB
    assert amount_on(estimated(Resources(memory=6 * GIB), learnt, 15, floor=9 * GIB), device) == 9 * GIB
    assert amount_on(estimated(Resources(memory=6 * GIB), learnt, 15, floor=30 * GIB), device) is None
    assert estimated(Resources(memory=6 * GIB), learnt, 15).loads == (("A100", 70),)


LOOKS = st.lists(st.tuples(st.floats(0.01, 60.0), st.integers(0, 2**36)), min_size=1, max_size=300)


@given(LOOKS)
@example([(1.0, 0)] * CURVE + [(1.0, MIB)])
def test_a_long_run_makes_no_long_curve(looks: list[tuple[float, int]]) -> None:
    """Any number of measurements gives few points, in order, with the highest among them."""
    use, moment = MeasuredUse(), 0.0
    for step, memory in looks:
        moment += step
        use = seen(use, moment, memory, None)
    assert len(use.curve) <= CURVE
    assert list(use.curve) == sorted(use.curve, key=lambda point: point[0])
    assert use.peak == max(memory for _, memory in looks)
    assert max(memory for _, memory in use.curve) == use.peak // MIB


def test_utilisation_counts_only_without_co_tenants() -> None:
    """The utilisation of a shared GPU does not count."""
    use = seen(seen(seen(MeasuredUse(1), 1.0, 5, 80), 2.0, 5, None), 3.0, 5, 60)
    assert use.utilisation == 70
    assert seen(MeasuredUse(), 1.0, 5, None).utilisation is None


def test_utilisation_counts_only_while_the_gpu_is_used() -> None:
    """Neither the start of a program counts, nor its end, nor the driver's first figure, which is a mean of both."""
    use = MeasuredUse()
    for memory, percent in ((0, 0), (0, 0), (5, 40), (5, 100), (5, 100), (0, 0), (5, 100), (0, 0)):
        use = seen(use, 1.0, memory, percent)
    assert (use.utilisation, use.busy, use.looks) == (100, 3, 8)


def test_work_without_gpu_memory_has_a_load() -> None:
    """As far as the driver shows one; that it had the GPU to itself is known."""
    use = seen(seen(MeasuredUse(), 1.0, 0, 10), 2.0, 0, 30)
    assert (use.utilisation, use.busy, use.looks) == (20, 2, 2)


def test_a_peak_between_measurements() -> None:
    """The driver's accounting counts where it is higher."""
    use = seen(MeasuredUse(), 1.0, 5, None)
    assert reached(use, 9).peak == 9
    assert reached(use, 3).peak == 5


def kind(words: str, params: str) -> str:
    return signature_of(Command(tuple(words.split())), "/work", Member(0, params))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("train 0.1 32", '{"lr": 0.1, "seed": 32}'), ("train 0.2 64", '{"lr": 0.2, "seed": 64}')),
        (("train --hidden=700", '{"hidden": 700}'), ("train --hidden=720", '{"hidden": 720}')),
        (("train x", '{"tag": "a"}'), ("train x", '{"tag": "b"}')),
    ],
)
def test_parameters_of_one_kind(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Rates, seeds and labels do not change the memory; nearly equal sizes hardly do."""
    assert kind(*one) == kind(*other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("train 32", '{"batch_size": 32}'), ("train 64", '{"batch_size": 64}')),
        (("train", '{"hidden": 700}'), ("train", '{"hidden": 1000}')),
        (("train", '{"model": "vit"}'), ("train", '{"model": "resnet"}')),
        (("train", '{"amp": true}'), ("train", '{"amp": false}')),
        (("train --batch 8", '{"lr": 1}'), ("train --batch 16", '{"lr": 1}')),
    ],
)
def test_parameters_of_different_kinds(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Sizes and models do, wherever they are in the command, or only in STOKER_PARAMS."""
    assert kind(*one) != kind(*other)
