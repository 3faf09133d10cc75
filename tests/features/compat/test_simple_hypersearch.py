"""What simple_hypersearch prints for its arguments."""

from __future__ import annotations

import shlex

import pytest

from stoker.features.compat.simple_hypersearch import generate_commands

ENDLESS = ["{a}{b}{c}{d}{e}{f}", *(word for name in "abcdef" for word in ("-p", name, *map(str, range(200))))]
LR_BS = "'{lr} {bs}' -p lr 0.001 0.0005 0.0001 -p bs 32 64 128"
SEED_1 = "0.0005 128;0.0001 32;0.0001 64;0.0005 64;0.0005 32;0.001 32;0.0001 128;0.001 64;0.001 128"
SEED_42 = "0.0005 32;0.0001 32;0.0001 64;0.0005 64;0.0001 128;0.001 128;0.0005 128;0.001 32;0.001 64"
GRID = "--sampling-mode grid"


def run(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = generate_commands(arguments)
    return code, *capfd.readouterr()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        # A seed gives the very order that simple_hypersearch 0.1.4 printed for it, and samples are its head.
        ("'p {a} {b}' -p a 0 1 -p b 2 3 --seed 7", "p 1 3;p 0 3;p 0 2;p 1 2"),
        ("'p {a} {b}' -p a 0 1 -p b 2 3 --seed -7", "p 1 3;p 0 3;p 0 2;p 1 2"),
        ("'p {a} {b}' -p a 0 1 -p b 2 3 --seed 0", "p 1 2;p 0 2;p 0 3;p 1 3"),
        ("'p {a} {b}' -p a 0 1 -p b 2 3 --seed 99999999999999999999999999", "p 0 3;p 1 3;p 0 2;p 1 2"),
        (f"{LR_BS} --seed 1", SEED_1),
        (f"{LR_BS} --seed 1 --n-samples 5", ";".join(SEED_1.split(";")[:5])),
        (f"{LR_BS} --seed 42", SEED_42),
        (f"{LR_BS} --seed 42 --n-samples 5", ";".join(SEED_42.split(";")[:5])),
        ("{a} -p a 0 1 2 3 4 5 6 7 8 9 --seed 123", "8;7;5;9;2;3;6;1;4;0"),
        (
            "{a}{b}{c} -p a 0 1 -p b 0 1 -p c 0 1 2 --seed 2019",
            "110;000;100;011;102;001;012;111;112;101;010;002",
        ),
        ("{a} -p a x x y --seed 5", "x;x;y"),
        ("{a} --parameter a x y z --seed 5 --n-samples 9", "x;y;z"),
        # Options, their abbreviations and their places.
        (f"{{a}} -p a x y z {GRID} --n-samples 2", "x;y"),
        ("{a} -p a x y z --n-samples 0", ""),
        ("{a} --param a x y --sampl grid --see 3", "x;y"),
        (f"-p a x y {GRID} {{a}}", "x;y"),
        (f"-p a x y {GRID} -- {{a}}", "x;y"),
        # Placeholders are filled as str.format_map fills them.
        ("'{a!r} {b}' -p a xyz -p b _<5", "'xyz' _<5"),
        ("'{a[0]} {b}' -p a xyz -p b _<5", "x _<5"),
        ("'{a:>5}|{b}' -p a xyz -p b _<5", "  xyz|_<5"),
        ("'{{a}} {a} {b}' -p a xyz -p b _<5", "{a} xyz _<5"),
        ("'{a:{b}}' -p a xyz -p b _<5", "xyz__"),
        ("'-x {a} {b}' -p a xyz -p b _<5", "-x xyz _<5"),
        # Values that go on like a number after a dash, or have a blank before it, are no options.
        (f"{{a}} -p a -1 -0.5 -1e-3 -.5e3 -inf -NaN -1_000 {GRID}", "-1;-0.5;-1e-3;-.5e3;-inf;-NaN;-1_000"),
        (f"train{{a}} -p a ' --fast' '' {GRID}", "train --fast;train"),
        # A plain command needs no parameters.
        ("'python3 train.py'", "python3 train.py"),
    ],
)
def test_printed_commands(typed: str, expected: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The documented options print one command per line, and standard error stays empty."""
    lines = "".join(f"{line}\n" for line in expected.split(";") if line)
    assert run(shlex.split(typed), capfd) == (0, lines, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{lr} {bs}", "-p", "bs", "1"], "there is no parameter lr; add -p lr"),
        (["{lr}"], "there is no parameter lr; add -p lr"),
        (["{}", "-p", "a", "1"], "the placeholder {} has no name; write {NAME}"),
        (["{0}", "-p", "0", "1"], "the placeholder {0} has no name; write {NAME}"),
        (["{a", "-p", "a", "1"], "the pattern cannot be read: expected '}'"),
        (["a}", "-p", "a", "1"], "write {{ and }} for plain braces"),
        (["{a:.3f}", "-p", "a", "1"], "cannot be filled with a=1: Unknown format code 'f'"),
        (["{a[9]}", "-p", "a", "1"], "cannot be filled with a=1: string index out of range"),
        # Nothing is printed, not even the commands before the one that cannot be.
        (["{a[1]}", "-p", "a", "xy", "z", *GRID.split()], "cannot be filled with a=z: string index out of range"),
        (["{a:{b}}", "-p", "a", "x", "-p", "b", "5", "d", *GRID.split()], "cannot be filled with a=x, b=d"),
        (["{a.b}", "-p", "a", "1"], "cannot be filled with a=1: 'str' object has no attribute 'b'"),
        ([], "put it before the first -p, or after a --"),
        (["-p", "a", "1", "2", "x {a}"], "put it before the first -p, or after a --"),
        (["{a}", "-p", "a", "--fast"], 'with a blank before: " --fast"'),
        (["{a}", "-p", "a", "1", "--n-samples", "-1"], "'-1' is not a whole number of 0 or more"),
        (["{a}", "-p", "a", "1", "--n-samples", "many"], "'many' is not a whole number of 0 or more"),
        (["{a}", "-p", "a", "1", "--seed", "7.5"], "--seed: invalid int value: '7.5'"),
        (["{a}", "-p", "a", "1", "--sampling-mode", "sobol"], "invalid choice: 'sobol'"),
        ([*ENDLESS, "--seed", "1"], "leave out --seed"),
    ],
)
def test_mistakes_get_a_sentence(arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Each mistake ends with exit code 2 and one line that says what to write instead."""
    code, printed, errors = run(arguments, capfd)
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("simple_hypersearch: error: ")
    assert words in errors


@pytest.mark.parametrize(
    ("typed", "printed", "warning"),
    [
        ("x -p a 1 2", "x\nx\n", "parameter a is not in the pattern"),
        ("{a} -p a", "", "parameter a has no values"),
        ("{a} -p a 1 -p a 2", "2\n", "parameter a is given more than once"),
        # The last values of a repeated parameter count, at the place of the first.
        (f"{{a}}{{b}} -p a 1 2 -p b 3 4 -p a 8 9 {GRID}", "83\n84\n93\n94\n", "parameter a is given more than once"),
    ],
)
def test_doubtful_requests_get_a_warning(
    typed: str, printed: str, warning: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What used to pass silently still passes, and standard error says what is odd about it."""
    code, output, errors = run(shlex.split(typed), capfd)
    assert (code, output) == (0, printed)
    assert errors.startswith(f"simple_hypersearch: warning: {warning}")
