"""The older tool simple_hypersearch, typed as in its documents and as its users get it wrong."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.wait import PATIENCE_SECONDS, ending, line_from

PROGRAMS = Path(sys.executable).parent
HYPERSEARCH = str(PROGRAMS / "simple_hypersearch")
PATTERN = "python3 train_dnn.py --lr {lr} --batch_size {bs}"
RATES = ["0.001", "0.0005", "0.0001"]
SIZES = ["32", "64", "128"]
ALL_COMMANDS = {PATTERN.format(lr=rate, bs=size) for rate in RATES for size in SIZES}
ENDLESS = ["{a}{b}{c}{d}{e}{f}", *(word for name in "abcdef" for word in ("-p", name, *map(str, range(200))))]


def hypersearch(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the console script."""
    command = [HYPERSEARCH, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def lines(*arguments: str) -> list[str]:
    """What the console script prints when all is well."""
    result = hypersearch(*arguments)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.splitlines()


def complaint(*arguments: str) -> str:
    """The one sentence of a refusal, which comes without commands and without a traceback."""
    result = hypersearch(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("simple_hypersearch: error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def typed(line: str, directory: Path, programs: Path = PROGRAMS) -> str:
    """What a line typed into bash prints."""
    path = f"{programs}:{PROGRAMS}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    command = ["bash", "-c", line]
    result = subprocess.run(command, cwd=directory, env=environment, capture_output=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
    return result.stdout.decode()


@pytest.fixture
def listening_scheduler(tmp_path: Path) -> Path:
    """A directory with a simple_gpu_scheduler that shows what it is told: pipes can be typed unchanged."""
    script = tmp_path / "programs" / "simple_gpu_scheduler"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\n[ "$*" = "--gpus 0,1,2" ] && exec cat\n')
    script.chmod(0o755)
    return script.parent


def test_document_example_whole_grid(tmp_path: Path, listening_scheduler: Path) -> None:
    """The documents' first example pipes each of the nine commands once."""
    line = (
        'simple_hypersearch "python3 train_dnn.py --lr {lr} --batch_size {bs}"'
        " -p lr 0.001 0.0005 0.0001 -p bs 32 64 128 | simple_gpu_scheduler --gpus 0,1,2"
    )
    printed = typed(line, tmp_path, listening_scheduler).splitlines()
    assert len(printed) == 9
    assert set(printed) == ALL_COMMANDS


def test_document_example_five_samples(tmp_path: Path, listening_scheduler: Path) -> None:
    """The document's second example pipes five different commands of the nine."""
    line = (
        'simple_hypersearch "python3 train_dnn.py --lr {lr} --batch_size {bs}" --n-samples 5'
        " -p lr 0.001 0.0005 0.0001 -p bs 32 64 128 | simple_gpu_scheduler --gpus 0,1,2"
    )
    printed = typed(line, tmp_path, listening_scheduler).splitlines()
    assert len(printed) == len(set(printed)) == 5
    assert set(printed) <= ALL_COMMANDS


def test_document_example_help(tmp_path: Path) -> None:
    """`simple_hypersearch -h` names every option."""
    text = typed("simple_hypersearch -h", tmp_path)
    assert text.startswith("usage: simple_hypersearch ")
    for option in ("-p NAME [VALUES ...]", "--parameter", "--sampling-mode", "--n-samples", "--seed"):
        assert option in text


def test_document_appending_to_a_queue_file(tmp_path: Path) -> None:
    """Commands appended to the queue file come after those that are there."""
    line = (
        "touch gpu.queue; echo first >> gpu.queue;"
        ' simple_hypersearch "train {lr}" --sampling-mode grid -p lr 1 2 >> gpu.queue; cat gpu.queue'
    )
    assert typed(line, tmp_path).splitlines() == ["first", "train 1", "train 2"]


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        ("7", "p 1 3;p 0 3;p 0 2;p 1 2"),
        ("-7", "p 1 3;p 0 3;p 0 2;p 1 2"),
        ("0", "p 1 2;p 0 2;p 0 3;p 1 3"),
        ("99999999999999999999999999", "p 0 3;p 1 3;p 0 2;p 1 2"),
    ],
)
def test_seeds_keep_their_order(seed: str, expected: str) -> None:
    """A seed gives the very order that simple_hypersearch 0.1.4 printed for it."""
    assert lines("p {a} {b}", "-p", "a", "0", "1", "-p", "b", "2", "3", "--seed", seed) == expected.split(";")


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (
            "1",
            "0.0005 128;0.0001 32;0.0001 64;0.0005 64;0.0005 32;0.001 32;0.0001 128;0.001 64;0.001 128",
        ),
        (
            "42",
            "0.0005 32;0.0001 32;0.0001 64;0.0005 64;0.0001 128;0.001 128;0.0005 128;0.001 32;0.001 64",
        ),
    ],
)
def test_samples_are_the_head_of_the_seeded_order(seed: str, expected: str) -> None:
    """With a seed, --n-samples takes the first of the order that 0.1.4 printed."""
    arguments = ["{lr} {bs}", "-p", "lr", *RATES, "-p", "bs", *SIZES, "--seed", seed]
    assert lines(*arguments) == expected.split(";")
    assert lines(*arguments, "--n-samples", "5") == expected.split(";")[:5]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["{a}", "-p", "a", *"0123456789", "--seed", "123"], "8 7 5 9 2 3 6 1 4 0"),
        (
            [
                "{a}{b}{c}",
                "-p",
                "a",
                "0",
                "1",
                "-p",
                "b",
                "0",
                "1",
                "-p",
                "c",
                "0",
                "1",
                "2",
                "--seed",
                "2019",
            ],
            "110 000 100 011 102 001 012 111 112 101 010 002",
        ),
        (["{a}", "-p", "a", "x", "x", "y", "--seed", "5"], "x x y"),
        (["{a}", "--parameter", "a", "x", "y", "z", "--seed", "5", "--n-samples", "9"], "x y z"),
        (["{a}", "-p", "a", "x", "y", "z", "--sampling-mode", "grid", "--n-samples", "2"], "x y"),
        (["{a}", "-p", "a", "x", "y", "z", "--n-samples", "0"], ""),
        (["{a}", "--param", "a", "x", "y", "--sampl", "grid", "--see", "3"], "x y"),
        (["-p", "a", "x", "y", "--sampling-mode", "grid", "{a}"], "x y"),
        (["-p", "a", "x", "y", "--sampling-mode", "grid", "--", "{a}"], "x y"),
    ],
)
def test_options_as_before(arguments: list[str], expected: str) -> None:
    """All options, their abbreviations and their places give what 0.1.4 printed."""
    assert lines(*arguments) == expected.split()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("{a!r}", "'xyz'"),
        ("{a[0]}", "x"),
        ("{a:>5}|", "  xyz|"),
        ("{{a}} {a}", "{a} xyz"),
        ("{a:{b}}", "xyz__"),
        ("-x {a} {b}", "-x xyz _<5"),
    ],
)
def test_placeholders_as_before(pattern: str, expected: str) -> None:
    """Conversions, indexes, formats, nested formats and doubled braces fill as str.format_map fills them."""
    result = hypersearch(pattern, "-p", "a", "xyz", "-p", "b", "_<5")
    assert (result.returncode, result.stdout) == (0, expected + "\n")


def test_numbers_with_a_dash_are_values() -> None:
    """Values that begin with a dash are accepted when they go on like a number."""
    numbers = ["-1", "-0.5", "-1e-3", "-.5e3", "-inf", "-NaN", "-1_000"]
    assert lines("{a}", "-p", "a", *numbers, "--sampling-mode", "grid") == numbers


def test_a_blank_makes_an_option_a_value() -> None:
    """A value that looks like an option is accepted with a blank before it, as the error message advises."""
    assert lines("train{a}", "-p", "a", " --fast", "", "--sampling-mode", "grid") == ["train --fast", "train"]


def test_pattern_without_placeholders_needs_no_parameters() -> None:
    """A plain command without any -p is printed once."""
    assert lines("python3 train.py") == ["python3 train.py"]


def test_undecodable_bytes_pass_through() -> None:
    """File names that are no UTF-8 come out as they went in."""
    command = [os.fsencode(HYPERSEARCH), b"cat \xff{a}", b"-p", b"a", b"\xfe"]
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8:strict"}
    assert subprocess.check_output(command, env=environment, timeout=60) == b"cat \xff\xfe\n"


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
        (["{a.b}", "-p", "a", "1"], "cannot be filled with a=1: 'str' object has no attribute 'b'"),
        ([], "put it before the first -p, or after a --"),
        (["-p", "a", "1", "2", "x {a}"], "put it before the first -p, or after a --"),
        (["{a}", "-p", "a", "--fast"], 'with a blank before: " --fast"'),
        (["{a}", "-p", "a", "1", "--n-samples", "-1"], "'-1' is not a whole number from 0 up"),
        (["{a}", "-p", "a", "1", "--n-samples", "many"], "'many' is not a whole number from 0 up"),
        (["{a}", "-p", "a", "1", "--seed", "7.5"], "--seed: invalid int value: '7.5'"),
        (["{a}", "-p", "a", "1", "--sampling-mode", "sobol"], "invalid choice: 'sobol'"),
        ([*ENDLESS, "--seed", "1"], "leave out --seed"),
    ],
)
def test_mistakes_get_a_sentence(arguments: list[str], words: str) -> None:
    """Each mistake ends with exit code 2 and one line that says what to write instead."""
    assert words in complaint(*arguments)


@pytest.mark.parametrize(
    ("arguments", "printed", "warning"),
    [
        (["x", "-p", "a", "1", "2"], "x\nx\n", "parameter a is not in the pattern"),
        (["{a}", "-p", "a", "1", "-p", "a", "2"], "2\n", "parameter a is given more than once"),
        (["{a}", "-p", "a"], "", "parameter a has no values"),
    ],
)
def test_doubtful_requests_get_a_warning(arguments: list[str], printed: str, warning: str) -> None:
    """What used to pass silently still passes, and standard error says what is odd about it."""
    result = hypersearch(*arguments)
    assert (result.returncode, result.stdout) == (0, printed)
    assert result.stderr.startswith(f"simple_hypersearch: warning: {warning}")


def test_repeated_parameter_keeps_its_place() -> None:
    """The last values of a repeated parameter count, at the place of the first."""
    arguments = ["-p", "a", "1", "2", "-p", "b", "3", "4", "-p", "a", "8", "9", "--sampling-mode", "grid"]
    assert hypersearch("{a}{b}", *arguments).stdout.split() == ["83", "84", "93", "94"]


def test_each_line_is_one_write() -> None:
    """Every command leaves in a write of its own, so a scheduler behind the pipe can start on the first."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [HYPERSEARCH, "p {a}", "-p", "a", "1", "2", "3", "--sampling-mode", "grid"]
    with ours, theirs:
        subprocess.run(command, stdout=theirs.fileno(), timeout=60, check=True)
        ours.settimeout(PATIENCE_SECONDS)
        assert [ours.recv(100) for _ in range(3)] == [b"p 1\n", b"p 2\n", b"p 3\n"]


@pytest.mark.parametrize("mode", ["grid", "shuffled_grid"])
def test_closed_pipe_ends_quietly(mode: str, tmp_path: Path) -> None:
    """`| head` on an endless grid gets its lines and ends the tool as SIGPIPE would, without a word."""
    arguments = " ".join([*ENDLESS, "--sampling-mode", mode])
    printed = typed(f"simple_hypersearch {arguments} | head -2; echo ${{PIPESTATUS[0]}}", tmp_path).split()
    assert len(printed) == 3
    assert printed[2] == str(128 + signal.SIGPIPE)


def test_interrupt_ends_quietly() -> None:
    """Ctrl-C in the middle of an endless grid leaves no traceback."""
    command = [HYPERSEARCH, *ENDLESS]
    with ending(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)) as process:
        line_from(process.stdout)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (128 + signal.SIGINT, b"")


def test_full_disk_gets_a_sentence() -> None:
    """A queue file that cannot be written is reported, and shows in the exit code."""
    with open("/dev/full", "wb") as full:
        command = [HYPERSEARCH, "{a}", "-p", "a", "1"]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert result.returncode == 1
    expected = b"simple_hypersearch: error: cannot write the commands: No space left on device\n"
    assert result.stderr == expected


def test_module_runs_as_the_script() -> None:
    """`python -m simple_gpu_scheduler.hypersearch` is the console script."""
    command = [sys.executable, "-m", "simple_gpu_scheduler.hypersearch"]
    assert subprocess.check_output([*command, "p {a}", "-p", "a", "1"], timeout=60) == b"p 1\n"
    assert subprocess.run([*command, "{b}"], capture_output=True, timeout=60, check=False).returncode == 2


def test_start_is_light() -> None:
    """The tool starts without the libraries of the large command line."""
    program = "import sys, simple_gpu_scheduler.hypersearch; print({'click', 'rich', 'msgspec'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60) == "set()\n"
