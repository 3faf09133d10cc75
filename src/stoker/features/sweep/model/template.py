"""Put the values of a trial into a command: placeholders, options, variables, and names of folders.

A value never becomes a command. Where a shell reads the line, a value is quoted for the place where it stands: outside
of quotes, or inside of single or double ones. Where the shell would read it in any other way, as in a `$(...)`, only
values without special characters are accepted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from stoker.core.errors import UsageError, did_you_mean
from stoker.core.launch import file_name
from stoker.core.spec import Command
from stoker.features.sweep.model.grammar import NAME

Style = Literal["args", "hydra", "env", "none"]
"""How values reach a command without placeholders: `--lr=0.1`, `lr=0.1`, LR=0.1, or only STOKER_PARAMS."""
Context = Literal["word", "plain", "single", "double", "other"]
"""Where a placeholder stands: in a word without a shell, or in a shell's line outside or inside of quotes."""
SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash", "mksh")
"""Shells whose quotes we know."""
OWN = ("trial", "i", "repeat", "results", "name")
"""Placeholders of every sweep; a parameter of the same name takes precedence."""
LATER = ("id", "gpu")
"""Placeholders that are filled when the job starts."""
ENV = "/usr/bin/env"
_PLACEHOLDER = re.compile(r"\{\{(" + NAME + r")\}\}|(?<!\$)\{(" + NAME + r")\}")
_SAFE = re.compile(r"(?a)[\w@%+:,./-][\w@%+=:,./-]*")
MOST_KNOWN = 10_000
"""Quoted values that are remembered."""
_READ_AGAIN = re.compile(
    r"\[\[|\(\(|<<(?!<)|(?:^|[\s;&|(])(?:eval|let|trap|declare|typeset|ssh|su|xargs|watch)\s|\s-\w*c\s"
)
"""Signs of a line of which a shell reads some words as commands or as arithmetic, however they are quoted."""


class Placeholder(NamedTuple):
    """The place of a value in a command."""

    name: str
    context: Context


Pieces = tuple[str | Placeholder, ...]
Slots = Sequence[tuple[str, Mapping[str, str] | None]]
"""Names of values in the order of their places, each with the quoted values if a shell reads it."""


def placeholders(words: Sequence[str]) -> list[str]:
    """The names in braces, in order; `{{name}}` is no placeholder, and neither is a shell's `${name}`."""
    return [match[2] for word in words for match in _PLACEHOLDER.finditer(word) if match[2]]


def check_placeholders(words: Sequence[str], names: Sequence[str], what: str = "the command") -> None:
    """Refuse a placeholder that is no parameter."""
    for name in placeholders(words):
        if name not in names and name not in OWN and name not in LATER:
            hint = did_you_mean(name, names, f"the parameters are {', '.join(names)}.")
            raise UsageError(
                f"{what} has {{{name}}}, but there is no parameter {name}",
                f"{hint} To keep the braces, write {{{{{name}}}}}",
            )


def appended(command: Command, names: Sequence[str], style: Style) -> Command:
    """A command without placeholders, with one for each parameter at its end."""
    if style in ("env", "none") or not names:
        return command
    added = [f"--{name}={{{name}}}" if style == "args" else f"{name}={{{name}}}" for name in names]
    if command.shell:
        return Command((" ".join([command.words[0].rstrip(), *added]),), command.shell)
    return Command((*command.words, *added))


ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "${args}": ("--{0}={{{0}}}",),
    "${args_no_hyphens}": ("{0}={{{0}}}",),
    "${args_no_equals}": ("--{0}", "{{{0}}}"),
    "${args_append_hydra}": ("+{0}={{{0}}}",),
    "${args_override_hydra}": ("++{0}={{{0}}}",),
}
"""Words for each parameter in place of a macro of Weights & Biases'."""


def with_arguments(command: Command, names: Sequence[str]) -> Command:
    """A command of Weights & Biases with the parameters where its macros stand."""
    words = [
        part.format(name) if word in ARGUMENTS else word
        for word in command.words
        for name in (names if word in ARGUMENTS else ("",))
        for part in ARGUMENTS.get(word, ("",))
    ]
    return Command(tuple(words), command.shell)


class Template:
    """A command with placeholders, prepared once for many trials."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._names = list(dict.fromkeys(placeholders(command.words)))
        self._forms: dict[tuple[str, ...], _Form] = {}
        """By the parameters that a trial does not have."""
        self._whole = _form(command, ())

    def render(self, values: Mapping[str, str]) -> Command:
        """The command of a trial."""
        try:
            return self._whole.render(values)
        except KeyError:  # the trial does not have all parameters
            missing = tuple([name for name in self._names if name not in values])
        if missing not in self._forms:
            self._forms[missing] = _form(self._command, missing)
        return self._forms[missing].render(values)

    def gaps(self, names: Collection[str]) -> tuple[str, Slots]:
        """The words with NULs between them as a format of Python, and its values, for trials that have these names."""
        form = _form(self._command, [name for name in self._names if name not in names])
        return form.text, form.slots


def gaps_before(
    command: Command, starter: Sequence[str], variables: Mapping[str, str], names: Collection[str]
) -> tuple[list[str], Slots]:
    """The words that `after` and `with_variables` put before a command, as formats of Python, and their values."""
    slots: list[tuple[str, Mapping[str, str] | None]] = []

    def piece_text(piece: str | Placeholder) -> str:
        if isinstance(piece, str) or piece.name not in names:
            return (piece if isinstance(piece, str) else f"{{{piece.name}}}").replace("%", "%%")
        slots.append((piece.name, None))
        return "%s"

    words = [*starter, *((command.shell, "-c") if command.shell and (starter or variables) else ())]
    texts = [word.replace("%", "%%") for word in words]
    assigned = [f"{name}={text}" for name, text in variables.items()]
    own = ["".join(map(piece_text, _word_pieces(word))) for word in assigned]
    return [*([ENV, *own] if own else []), *texts], slots


def render_text(text: str, values: Mapping[str, str]) -> str:
    """A text that no shell reads, with its placeholders filled."""
    return _PLACEHOLDER.sub(lambda match: _plain(match, values), text)


def render_path(path: str, values: Mapping[str, str]) -> str:
    """A path; each value becomes a part of a name, without slashes and other special characters."""
    return render_text(path, {name: safe_name(value) for name, value in values.items()})


def safe_name(value: str) -> str:
    """A value as part of a file name."""
    return file_name(value) if value else "empty"


def with_variables(command: Command, variables: Mapping[str, str]) -> Command:
    """The command with variables of its own. They are part of the command, so that all trials share one spec."""
    return after(command, (ENV, *(f"{name}={value}" for name, value in variables.items()))) if variables else command


def after(command: Command, words: Sequence[str]) -> Command:
    """The command as the last words of another one."""
    own = (command.shell, "-c", *command.words) if command.shell else command.words
    return Command((*words, *own))


def variable_of(name: str) -> str:
    """The variable of a parameter: `optimizer.lr` is OPTIMIZER_LR."""
    return re.sub(r"\W", "_", name, flags=re.ASCII).upper()


def _plain(match: re.Match[str], values: Mapping[str, str]) -> str:
    if match[1]:
        return f"{{{match[1]}}}"
    return values.get(match[2], match[0])


class _Quoted(dict[str, str]):
    """Values as they stand in one place of a shell's line; the same ones come again and again."""

    def __init__(self, slot: Placeholder, command: Command) -> None:
        super().__init__()
        self._slot = slot
        self._command = command

    def __missing__(self, value: str) -> str:
        if len(self) >= MOST_KNOWN:
            self.clear()
        self[value] = quoted = _in_shell(self._slot, value, self._command)
        return quoted


class _Form:
    """The words of a command with a NUL between them, as one format of Python: the fastest way to fill it."""

    def __init__(self, text: str, slots: Slots, shell: str) -> None:
        self.text = text
        self.slots = slots
        self._shell = shell

    def render(self, values: Mapping[str, str]) -> Command:
        texts = [values[name] if quoted is None else quoted[values[name]] for name, quoted in self.slots]
        return Command(tuple((self.text % tuple(texts)).split("\0")), self._shell)


def _form(command: Command, missing: Sequence[str]) -> _Form:
    slots: list[tuple[str, Mapping[str, str] | None]] = []

    def piece_text(piece: str | Placeholder) -> str:
        if isinstance(piece, str):
            return piece.replace("%", "%%")
        if piece.name in LATER and piece.name in missing:
            return f"{{{piece.name}}}"
        slots.append((piece.name, None if piece.context == "word" else _Quoted(piece, command)))
        return "%s"

    kept = _without(_pieces(command), [name for name in missing if name not in LATER], command)
    return _Form("\0".join(["".join([piece_text(piece) for piece in word]) for word in kept]), slots, command.shell)


def _without(pieces: tuple[Pieces, ...], missing: Sequence[str], command: Command) -> tuple[Pieces, ...]:
    """The words without those of parameters that the trial does not have; `--momentum {momentum}` is left out whole."""
    if not missing:
        return pieces
    kept: list[Pieces] = []
    for place, word in enumerate(pieces):
        absent = [piece.name for piece in word if isinstance(piece, Placeholder) and piece.name in missing]
        if not absent:
            kept.append(word)
        elif place == _line_of(command):
            raise UsageError(
                f"{{{absent[0]}}} is in the line of a shell, but not all trials have {absent[0]}",
                "write the command as several words without quotes",
            )
        elif kept and word == ("", Placeholder(absent[0], "word"), "") and _is_option(kept[-1]):
            kept.pop()
    return tuple(kept)


def _is_option(word: Pieces) -> bool:
    return len(word) == 1 and isinstance(word[0], str) and word[0].startswith("-") and "=" not in word[0]


# -- places of values ----------------------------------------------------------------------------


def _pieces(command: Command) -> tuple[Pieces, ...]:
    """The words of a command as text and slots."""
    line = _line_of(command)
    return tuple(
        tuple(_shell_pieces(word, command.shell or command.words[0]) if place == line else _word_pieces(word))
        for place, word in enumerate(command.words)
    )


def _line_of(command: Command) -> int | None:
    """The place of the word that a shell reads as a line; None if there is none."""
    if command.shell:
        return 0
    if not _is_shell(command.words[0], only_known=False):
        return None
    options = [place for place, word in enumerate(command.words) if re.fullmatch(r"-\w*c\w*", word)]
    return options[0] + 1 if options and options[0] + 1 < len(command.words) else None


def _is_shell(path: str, *, only_known: bool = True) -> bool:
    name = path.rpartition("/")[2]
    return name in SHELLS or (not only_known and name.endswith("sh"))


def _word_pieces(word: str) -> Iterator[str | Placeholder]:
    yield from _split(word, ["word"] * len(word))


def _shell_pieces(line: str, shell: str) -> Iterator[str | Placeholder]:
    uncertain = _READ_AGAIN.search(line) or not _is_shell(shell)
    yield from _split(line, _others(len(line)) if uncertain else _contexts(line))


def _split(text: str, contexts: Sequence[Context]) -> Iterator[str | Placeholder]:
    end = 0
    for match in _PLACEHOLDER.finditer(text):
        yield text[end : match.start()]
        yield f"{{{match[1]}}}" if match[1] else Placeholder(match[2], contexts[match.start()])
        end = match.end()
    yield text[end:]


def _contexts(line: str) -> list[Context]:
    """For each character, how a shell reads a word that stands there. After a sign that we do not follow: other."""
    contexts: list[Context] = []
    context: Context = "plain"
    escaped = False
    for place, sign in enumerate(line):
        contexts.append("other" if escaped else context)
        if escaped:
            escaped = False
        elif context == "single":
            context = "plain" if sign == "'" else context
        elif sign == "\\":
            escaped = True
        elif sign == "`" or (sign == "$" and line[place + 1 : place + 2] in ("(", "{", "'", "[")):
            return [*contexts, *_others(len(line) - len(contexts))]
        elif context == "double":
            context = "plain" if sign == '"' else context
        elif sign in "'\"":
            context = "single" if sign == "'" else "double"
        elif sign == "#" and (not place or line[place - 1] in " \t\n;&|()"):
            return [*contexts, *_others(len(line) - len(contexts))]
    return contexts


def _others(count: int) -> list[Context]:
    return ["other"] * count


def _in_shell(slot: Placeholder, value: str, command: Command) -> str:
    """A value quoted for its place in the line of a shell."""
    if _SAFE.fullmatch(value):
        return value
    if slot.context == "other":
        raise UsageError(
            f"the value {value!r} of {slot.name} cannot be put safely into the line {command.text!r}",
            "write the command as several words without quotes, or let it read STOKER_PARAMS",
        )
    quoted = "'" + value.replace("'", "'\"'\"'") + "'"
    around = {"plain": "", "single": "'", "double": '"'}[slot.context]
    return f"{around}{quoted}{around}"
