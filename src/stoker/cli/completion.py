"""Shell completion of commands, options, job ids and names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stoker.cli.console import tell
from stoker.core.errors import StokerError
from stoker.core.text import printable
from stoker.core.units import LAST_GPUS
from stoker.store.paths import Paths, paths_for, user_home

if TYPE_CHECKING:
    import click

VARIABLE = "_STOKER_COMPLETE"
"""By which a shell asks for completions, as click's scripts have it."""
OPEN_ONLY = frozenset({"cancel", "kill", "pause", "hold", "resume", "release", "edit"})
"""Commands for jobs that have not ended."""
ALL = frozenset({"status", "st", "ls", "logs", "follow", "wait", "retry", "history"})
"""Commands for any job."""
_WORDS = ("last", "all")
SIM = "--sim"
_PLAIN = re.compile(r"[\w.@%+/=-]+")
"""Names that need no quotes in a shell; others are not offered."""


class Offer(NamedTuple):
    """A word to complete to, and its meaning."""

    word: str
    meaning: str


def offers(incomplete: str, typed: str | None, *, ended: bool) -> list[Offer]:
    """Ids, names and words that begin so; of a list with commas, for its last part. `typed` is the value of `--sim`."""
    try:
        paths = paths_for(typed)
    except (StokerError, OSError):
        return []
    before, comma, part = incomplete.rpartition(",")
    return [Offer(before + comma + word, meaning) for word, meaning in _found(paths, part, ended=ended)]


def _found(paths: Paths, part: str, *, ended: bool) -> Iterator[Offer]:
    from stoker.store.hints import hints, names  # every command imports this module

    for hint in hints(paths.database, part, ended=ended):
        yield Offer(hint.word, printable(hint.meaning))
    if part:  # with nothing typed, ids are enough
        for name in names(paths.database, part, ended=ended):
            if _PLAIN.fullmatch(name):
                yield Offer(name, "")
        yield from (Offer(word, "") for word in _WORDS if word.startswith(part))


class TypedLine(NamedTuple):
    """A command line as far as it is typed."""

    shell: str
    words: list[str]
    """Those before the word that is being typed."""
    incomplete: str


def complete_at_once() -> bool:
    """Print ids where only ids can follow, without loading click; False leaves it to click."""
    line = _typed()
    if line is None or not _wants_ids(line):
        return False
    typed = LAST_GPUS if any(word.partition("=")[0] == SIM for word in line.words) else None
    for offer in offers(line.incomplete, typed, ended=line.words[1] in ALL):
        print(_answer(line.shell, offer))
    return True


def _typed() -> TypedLine | None:
    """The line, unless it has quotes, which only click reads."""
    shell, _, instruction = os.environ.get(VARIABLE, "").partition("_")
    text, place = os.environ.get("COMP_WORDS", ""), os.environ.get("COMP_CWORD", "")
    if instruction != "complete" or shell not in ("bash", "zsh", "fish") or set(text) & set("\\\"'$`"):
        return None
    words = text.split()
    if shell == "fish":  # it passes the word itself
        return TypedLine(shell, words[:-1] if place else words, place)
    if not place.isdecimal():
        return None
    return TypedLine(shell, words[: int(place)], words[int(place)] if int(place) < len(words) else "")


def _wants_ids(line: TypedLine) -> bool:
    """Whether it is a verb with ids, and neither an option nor the value of one is being typed."""
    if len(line.words) < 2 or line.words[1] not in ALL | OPEN_ONLY:
        return False
    if line.shell == "fish" and "," in line.incomplete:  # click's script cuts words there
        return False
    last = line.words[-1]
    return not line.incomplete.startswith("-") and (len(line.words) == 2 or last == SIM or not last.startswith("-"))


def _answer(shell: str, offer: Offer) -> str:
    """The form that click's scripts read."""
    match shell:
        case "bash":
            return f"plain,{offer.word}"
        case "zsh":
            return f"plain\n{offer.word}\n{offer.meaning or '_'}"
        case _:
            return f"plain,{offer.word}\t{offer.meaning}" if offer.meaning else f"plain,{offer.word}"


def script(program: click.Command, shell: str) -> str:
    """Click's script for a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    return kind(program, {}, "stoker", VARIABLE).source()


def install_script(shell: str, text: str) -> None:
    """Write the script where the shell looks for it, and say what to type next."""
    path = script_path(shell, os.environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    tell(f"wrote {path}")
    for line in _NEXT[shell].format(path=path).splitlines():
        tell(line)


_NEXT = {
    "bash": "for this shell type: source {path}\n"
    "new shells load it automatically if bash-completion is installed; else add that line to ~/.bashrc",
    "zsh": "put this in ~/.zshrc before compinit: fpath+=({path.parent})",
    "fish": "new shells load it automatically",
}


def script_path(shell: str, environment: Mapping[str, str]) -> Path:
    """Where a shell looks for completions of one user."""
    data = Path(environment.get("XDG_DATA_HOME") or user_home() / ".local/share")
    bash = Path(environment.get("BASH_COMPLETION_USER_DIR") or data / "bash-completion")
    config = Path(environment.get("XDG_CONFIG_HOME") or user_home() / ".config")
    return {
        "bash": bash / "completions/stoker",
        "zsh": data / "zsh/site-functions/_stoker",
        "fish": config / "fish/completions/stoker.fish",
    }[shell]
