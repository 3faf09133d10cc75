"""Text of jobs is short, on one line, and safe for a terminal."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.job import Ended
from stoker.core.spec import Command
from stoker.core.text import HIDDEN, after, looks_secret, outcome, printable, shortened, shown_value, title, title_text
from support.build import a_job


def test_plain_text_stays_as_it_is() -> None:
    """Letters of any language, signs and emoji are shown."""
    text = "lr=1e-3 µ 日本 ✓ 🙂 'x'"
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x9b2J\x7f", "\\x9b2J\\x7f"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\udcff\ud800", "\\xff\\ud800"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    """Control characters, line ends, direction marks and invalid bytes are shown as escapes."""
    assert printable(text) == shown


@given(st.text(st.characters(codec=None)))
def test_anything_can_be_written(text: str) -> None:
    """Whatever a name contains, the result can be encoded and stays on one line."""
    shown = printable(text)
    assert len(shown.encode().splitlines()) <= 1


def test_shortening_shows_that_there_was_more() -> None:
    """A long text is cut to the width and ends with …."""
    assert [shortened("abcdef", width) for width in (6, 4, 1)] == ["abcdef", "abc…", "…"]


@pytest.mark.parametrize(
    ("words", "name", "shown", "together"),
    [
        (("python", "t.py", "--seed", "{i}"), "", "python t.py --seed 3", "python t.py --seed {i}"),
        (("python", "t.py", "--out", "a b/{i}"), "", "python t.py --out 'a b/3'", "python t.py --out 'a b/{i}'"),
        (("echo", "{1,2}", "${i}"), "", "echo '{1,2}' '${i}'", "echo '{1,2}' '${i}'"),
        (("python", "t.py", "{i}"), "vit", "vit", "vit"),
        (("py", "-P", "/x/python/function_child.py", "/s", "m.f"), "", "f()", "f(…)"),
        (
            ("py", "-P", "/x/python/function_child.py", "/s", "m.<locals>.f", "lr=0.1", "n=2"),
            "",
            "f(lr=0.1, n=2)",
            "f(…)",
        ),
        (("py", "-P", "/x/python/function_child.py", "/s", "app.main", "lr=0.1"), "app", "app(lr=0.1)", "app(…)"),
    ],
)
def test_a_task_has_values_of_its_own(words: tuple[str, ...], name: str, shown: str, together: str) -> None:
    """Placeholders are replaced; all tasks in one line show them as typed, without quotes."""
    plain = a_job(12)
    spec = msgspec.structs.replace(plain.spec, fill=True)
    job = msgspec.structs.replace(plain, command=Command(words), spec=spec, name=name, array=9, task=3)
    assert (title_text(job), title_text(job, array=True)) == (shown, together)


def test_a_title_is_one_line() -> None:
    """A script becomes one line; a name replaces it."""
    job = msgspec.structs.replace(a_job(1), command=Command(("\nset -e\npython \\\n  a.py\n",), "/bin/sh"))
    assert title(job) == "set -e; python    a.py"
    assert title(msgspec.structs.replace(job, name="night")) == "night"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (Ended("done", 1.0, 0), "done"),
        (Ended("failed", 1.0, 3), "exit 3"),
        (Ended("failed", 1.0, 137, 9), "signal 9"),
        (Ended("timeout", 1.0, 143, 15), "timeout"),
        (Ended("lost", 1.0), "lost"),
    ],
)
def test_ends(state: Ended, words: str) -> None:
    """The outcome shows the exit code, the signal or the result."""
    assert outcome(state) == words


def test_how_long_it_ran() -> None:
    """The duration is shown where the start is known and the job has ended."""
    over = a_job(1, state=Ended("done", 101.0))
    assert (after(over, 60.0), after(over, None), after(a_job(1), 60.0)) == (" after 00:41", "", "")


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "db_password", "MYSQL_PASSWD"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "SSH_PRIVATE_KEY", "GITHUB_TOKEN", "PGPASSWORD", "DATABASE_URL"),
    ],
)
def test_secrets(name: str) -> None:
    """Names of secrets of common tools match in upper and lower case."""
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["PATH", "SEED", "CUDA_VISIBLE_DEVICES", "KEYBOARD", "GIT_AUTHOR_NAME", "MONKEY"])
def test_harmless_names(name: str) -> None:
    """Most variables are shown."""
    assert not looks_secret(name)


def test_other_patterns() -> None:
    """The user's patterns replace the built-in ones."""
    assert looks_secret("my_seed", ["*SEED"])
    assert not looks_secret("HF_TOKEN", ["*SEED"])


def test_length_is_hidden_too() -> None:
    """All hidden values look the same."""
    assert shown_value("HF_TOKEN", "x") == shown_value("HF_TOKEN", "x" * 40) == HIDDEN
    assert shown_value("SEED", "1") == "1"
