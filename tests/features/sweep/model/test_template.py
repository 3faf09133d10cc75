"""Values in commands: placeholders, quotes of shells, names of folders."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import UsageError
from stoker.core.spec import Command
from stoker.features.sweep.model.template import (
    Style,
    Template,
    appended,
    check_placeholders,
    placeholders,
    render_path,
    render_text,
    with_variables,
)

HOSTILE = (
    *("'; touch owned; '", '"; touch owned; "', "$(touch owned)", "`touch owned`", "${x:-$(touch owned)}"),
    *("a\\", "\\'; touch owned #", "\n touch owned \n", "a'b\"c", "& touch owned &", "| touch owned", "> owned"),
    *("~", "*", "{a,b}", "!!", "#x", "", " ", "-n", "%s", "{lr}", "$'\\x27; touch owned'", "a\\\\'", "=ls", "a=b"),
)
LINES = (
    "printf '%s|' {v}",
    "printf '%s|' '{v}'",
    "printf '%s|' \"{v}\"",
    "printf '%s|' a{v}b'c{v}d'\"e{v}f\"",
    "x=1; printf '%s|' $x {v} && true",
    "printf '%s|' {v} # comment",
    "printf '%s|' \"a\\\"{v}\" 'it'\\''s {v}'",
)
SHELLS = [path for name in ("sh", "bash", "dash", "zsh", "ksh") if (path := shutil.which(name))]

words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
values = st.one_of(st.sampled_from(HOSTILE), words, st.tuples(st.sampled_from(HOSTILE), words).map("".join))


def rendered(line: str, value: str, shell: str = "/bin/sh") -> str:
    return Template(Command((line,), shell)).render({"v": value}).words[0]


@settings(max_examples=150)
@given(st.sampled_from(SHELLS), st.sampled_from(LINES), values)
def test_a_value_never_becomes_a_command(shell: str, line: str, value: str) -> None:
    """A real shell sees the value as text, wherever in the line it stands and whatever is in it."""
    script = rendered(line, value, shell)
    outcome = subprocess.run(
        [shell, "-c", script], check=False, capture_output=True, timeout=60, env={"PATH": os.environ["PATH"]}
    )
    pieces = {
        LINES[0]: [value],
        LINES[1]: [value],
        LINES[2]: [value],
        LINES[3]: [f"a{value}bc{value}de{value}f"],
        LINES[4]: ["1", value],
        LINES[5]: [value],
        LINES[6]: [f'a"{value}', f"it's {value}"],
    }[line]
    assert outcome.stdout == "".join(f"{piece}|" for piece in pieces).encode()
    assert (outcome.returncode, outcome.stderr) == (0, b"")


@pytest.mark.parametrize(
    "line",
    [
        "echo $(train {v})",
        "echo `train {v}`",
        "echo ${x:-{v}}",
        "cat <<END\n{v}\nEND",
        "eval train {v}",
        "sh -c 'train {v}'",
        'bash -lc "train {v}"',
        "ssh host train {v}",
        "[[ {v} -eq 1 ]] && train",
        "((x = {v}))",
        "let x={v}",
        "true # {v}",
        "echo $'{v}'",
        "echo \\{v}",
    ],
)
def test_where_quotes_do_not_help_only_plain_values_are_taken(line: str) -> None:
    """A number or a word is harmless; anything else is refused."""
    assert rendered(line, "1e-3") == line.replace("{v}", "1e-3")
    with pytest.raises(UsageError, match="cannot be put safely") as caught:
        rendered(line, "$(touch owned)")
    assert "STOKER_PARAMS" in caught.value.hint


def test_shells_with_other_quotes() -> None:
    """Their quotes are not ours: only plain values are taken."""
    assert rendered("train {v}", "0.1", "/usr/bin/fish") == "train 0.1"
    with pytest.raises(UsageError, match="cannot be put safely"):
        rendered("train {v}", "a b", "/usr/bin/fish")


def test_a_line_for_a_shell_among_words() -> None:
    """`bash -c 'echo {v}'` is a line, too; other words are passed as they are."""
    line = Template(Command(("bash", "-ec", "echo {v}", "{v}"))).render({"v": "$(touch owned)"})
    assert line.words == ("bash", "-ec", "echo '$(touch owned)'", "$(touch owned)")
    plain = Template(Command(("python", "-c", "print({v})"))).render({"v": "a b"})
    assert plain.words == ("python", "-c", "print(a b)")


def test_placeholders() -> None:
    """Names in braces; a shell's own, JSON and doubled braces are none."""
    words = ["{lr}", "${lr}", '{"lr": 1}', "{{lr}}", "{a.b}", "{ lr }", "{1}"]
    assert placeholders(words) == ["lr", "a.b"]
    filled = Template(Command(tuple(words))).render({"lr": "1", "a.b": "2"})
    assert filled.words == ("1", "${lr}", '{"lr": 1}', "{lr}", "2", "{ lr }", "{1}")
    assert Template(Command(("train", "100%", "{lr}%"))).render({"lr": "5"}).words == ("train", "100%", "5%")


def test_an_unknown_placeholder_is_refused() -> None:
    """With a suggestion, and with how to keep the braces."""
    check_placeholders(["{lr} {gpu} {id} {trial} {{print}} ${HOME}"], ["lr"])
    with pytest.raises(UsageError, match="no parameter lrr") as caught:
        check_placeholders(["{lrr}"], ["lr"])
    assert "did you mean lr?" in caught.value.hint
    assert "{{lrr}}" in caught.value.hint


def test_placeholders_for_the_start_stay() -> None:
    """The engine fills {id} and {gpu} when the job starts, unless a parameter has that name."""
    command = Command(("train", "{gpu}", "{id}-{lr}"))
    assert Template(command).render({"lr": "1"}).words == ("train", "{gpu}", "{id}-1")
    assert Template(command).render({"lr": "1", "id": "7"}).words == ("train", "{gpu}", "7-1")


def test_words_of_missing_parameters_are_left_out() -> None:
    """With the option before them; a shell's line cannot be shortened."""
    template = Template(Command(("train", "--m", "{m}", "--m2={m}", "-v", "{lr}")))
    assert template.render({"lr": "1"}).words == ("train", "-v", "1")
    assert template.render({"lr": "1", "m": "2"}).words == ("train", "--m", "2", "--m2=2", "-v", "1")
    with pytest.raises(UsageError, match="not all trials have m"):
        Template(Command(("train {m}",), "/bin/sh")).render({})


@pytest.mark.parametrize(
    ("style", "words"),
    [
        ("args", ("train", "--lr={lr}", "--a.b={a.b}")),
        ("hydra", ("train", "lr={lr}", "a.b={a.b}")),
        ("env", ("train",)),
        ("none", ("train",)),
    ],
)
def test_styles(style: Style, words: tuple[str, ...]) -> None:
    """How parameters reach a command without placeholders."""
    assert appended(Command(("train",)), ["lr", "a.b"], style).words == words
    line = appended(Command(("train -v ",), "/bin/sh"), ["lr"], style)
    assert line.words[0].rstrip() == {"args": "train -v --lr={lr}", "hydra": "train -v lr={lr}"}.get(style, "train -v")


def test_variables_are_part_of_the_command() -> None:
    """So that all trials share one spec."""
    assert with_variables(Command(("train",)), {"LR": "a b"}).text == "/usr/bin/env 'LR=a b' train"
    line = with_variables(Command(("train; rest",), "/bin/sh"), {"LR": "1"})
    assert line == Command(("/usr/bin/env", "LR=1", "/bin/sh", "-c", "train; rest"))


@given(values)
def test_folders_stay_where_they_are(value: str) -> None:
    """A value is one part of a name: no slash, no dots at its start, never empty."""
    path = render_path("runs/{v}/{v}-x", {"v": value})
    assert os.path.normpath(path) == path
    assert path.startswith("runs/")
    assert path.count("/") == 2
    assert "\n" not in path
    assert render_text("{v}", {"v": value}) == value
