"""Objectives of a sweep: what a user wants of the trials, and the values of a trial over its steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import inf, isfinite, isnan
from typing import Literal, get_args

from msgspec import Struct

from stoker.core.errors import UsageError, did_you_mean

Goal = Literal["min", "max"]
Source = Literal["report", "regex", "jsonl", "csv", "tensorboard", "wandb"]
Take = Literal["last", "best"]
Point = tuple[float, float]
"""A step and the value there."""
Curve = tuple[Point, ...]
"""Points by step, one for each."""

STORED_POINTS = 200
"""Most points of a curve that are kept after the trial has ended."""
MOST_POINTS = 100_000
"""Most points of a running trial; then every second is dropped."""

_HINT = "write it as val_loss:min, acc:max, 'regex:val_loss=([0-9.]+)', acc=jsonl:metrics.jsonl or acc=csv:metrics.csv"
_FILES: dict[str, Source] = {"jsonl": "jsonl", "csv": "csv", "tensorboard": "tensorboard"}
WANDB_FOLDER = "wandb/job-{id}"
"""Directory of what a trial gives to wandb, in its working directory."""
_NAME = r"[^\s:=]+"
_RISING = (
    r"(?i)(?<![a-z])(acc|accuracy|auc|auroc|bleu|dice|f1|iou|map|precision|psnr|r2|recall|reward|rouge|score|ssim)"
)
"""Names of values that users want to be large: for these a default of min would be a trap."""
_FALLING = r"(?i)loss|err|perplexity|ppl|mse|mae|nll"
_STEPS = ("step", "global_step", "epoch", "iter", "iteration")
_GROUP = re.compile(r"\\.|\[\^?\]?[^\]]*\]|(?P<group>\(\?P<\w+>|\((?!\?))")
"""A group whose content counts; escaped signs and sets of signs are passed over."""
_BLANK = r"\\s[*+?]?|\[ \]"
_CONSTRUCT = r"\[\^?\]?[^\]]*\]|\\[A-Za-z]|\\(?=\W)|\(\?P<\w+>|\(\?[a-zA-Z-]*[:)=!]|[()|^$*+?{}]|(?<!\\)\."
"""Parts of a pattern that are no text."""
_WORD = r"[A-Za-z](?:[\w/.-]*\w)?"


class Objective(Struct, frozen=True):
    """One value that the sweep makes small or large, and where a trial writes it."""

    name: str
    goal: Goal = "min"
    source: Source = "report"
    where: str = ""
    """The pattern of a regex, or the path of a file."""
    take: Take = "last"
    """Which value of its steps is the value of a trial."""

    @property
    def source_text(self) -> str:
        """Where its values come from, for messages."""
        if self.source == "report":
            return f"stoker.report({self.name}=...)"
        if self.source == "wandb":
            return f"wandb.log({{{self.name!r}: ...}})"
        return f"the pattern '{self.where}' in the log" if self.source == "regex" else f"{self.name!r} in {self.where}"


def parse_objectives(texts: Sequence[str], goal: str | None = None) -> tuple[Objective, ...]:
    """All objectives of a sweep, each with a name of its own."""
    objectives = tuple(parse_objective(text, goal) for text in texts)
    names = [objective.name for objective in objectives]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two objectives are called {name}", f"name them: --objective {name}2=regex:...")
    return objectives


def parse_objective(text: str, goal: str | None = None) -> Objective:
    """`acc:max`, `val_loss:min:best`, `regex:PATTERN`, `acc=jsonl:PATH:max`, `acc=tensorboard:DIR`, `acc=wandb`."""
    rest, suffixes = _without_suffixes(text.strip())
    name, source, where = _source_of(rest, text)
    own = next((word for word in suffixes if word in get_args(Goal)), None)
    take: Take = "best" if "best" in suffixes else "last"
    said = f"{name} {where}" if source == "regex" and not re.search(_FALLING, name) else name
    return Objective(name, _goal_of(name, own or goal, text, said), source, where, take)


def _without_suffixes(text: str) -> tuple[str, list[str]]:
    """The text without `:min`, `:max`, `:last` and `:best` at its end, and these words."""
    suffixes: list[str] = []
    while (parts := text.rpartition(":"))[0] and parts[2] in (*get_args(Goal), *get_args(Take)):
        text, _, word = parts
        suffixes.append(word)
    return text, suffixes


def _source_of(text: str, given: str) -> tuple[str, Source, str]:
    if (logged := re.fullmatch(r"(?s)(\S.*)=wandb", text)) is not None:  # its names may have blanks
        return logged[1], "wandb", WANDB_FOLDER
    match = re.fullmatch(rf"(?s)(?:({_NAME})=)?(regex|jsonl|csv|tensorboard):(.+)", text)
    if match is None:
        return _reported(text, given)
    name, source, where = match.groups()
    if source == "regex":
        pattern = _checked_pattern(where)
        return name or _checked_name(_name_in(where), given), "regex", pattern
    if not name:
        raise UsageError(f"--objective {given!r} does not name the value", f"write it as val_loss={text}")
    return name, _FILES[source], where


def _reported(text: str, given: str) -> tuple[str, Source, str]:
    if re.fullmatch(_NAME, text):
        return text, "report", ""
    word = text.partition(":")[0].rpartition("=")[2]
    raise UsageError(f"--objective {given!r} is not understood", did_you_mean(word, get_args(Source)[1:], _HINT))


def _name_in(pattern: str) -> str:
    """The words before the value in a pattern, such as val_loss, else those after it."""
    group = next((match for match in _GROUP.finditer(pattern) if match["group"] in _value_group(pattern)), None)
    parts = (pattern[: group.start()], pattern[group.end() :]) if group else (pattern, "")
    before, after = (re.sub(_CONSTRUCT, _gap, re.sub(_BLANK, " ", part)) for part in parts)
    words = re.search(rf"({_WORD}(?: {_WORD}){{0,2}})\W*$", before) or re.search(rf"({_WORD}(?: {_WORD})?)", after)
    return words[1].replace(" ", "_") if words else "objective"


def _gap(construct: re.Match[str]) -> str:
    """Leave a gap where a part of a pattern is no text; the sign that escapes the next one leaves none."""
    return "" if construct[0] == "\\" else "\0"


def _checked_name(name: str, given: str) -> str:
    if name.lower() in _STEPS:
        raise UsageError(
            f"--objective {given!r} takes the {name} for the value",
            "mark both: 'regex:epoch (?P<step>\\d+).*loss=(?P<value>\\S+)', or give the value a name: x=regex:...",
        )
    return name


def _value_group(pattern: str) -> tuple[str, ...]:
    """How the group of the value begins."""
    return ("(?P<value>",) if "(?P<value>" in pattern else ("(", *re.findall(r"\(\?P<(?!step>)\w+>", pattern))


def _checked_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(
            f"{pattern!r} is not a regular expression: {error}", "quote it for the shell: 'regex:loss=([0-9.]+)'"
        ) from None
    return pattern


def _goal_of(name: str, goal: str | None, text: str, said: str) -> Goal:
    """The goal; one has to be given if a word of what was said is the name of a value that should be large."""
    if goal in ("minimize", "maximize"):  # W&B's and Optuna's words
        return "min" if goal == "minimize" else "max"
    if goal is None and re.search(_RISING, said):
        raise UsageError(
            f"--objective {text!r} does not say whether a larger {name} is better",
            "add :max or :min to it, or --goal max",
        )
    if goal not in (None, *get_args(Goal)):
        raise UsageError(f"{goal!r} is not a goal", "write --goal min or --goal max")
    return "max" if goal == "max" else "min"


def is_better(goal: Goal, value: float, other: float) -> bool:
    """Whether a value is strictly better; NaN is worse than any number."""
    return score(goal, value) < score(goal, other)


def score(goal: Goal, value: float) -> float:
    """The value as a number that is better the smaller it is; NaN is the worst."""
    if isnan(value):
        return inf
    return value if goal == "min" else -value


def best_of(goal: Goal, values: Iterable[float]) -> float | None:
    """The best number; None if there is none."""
    return min((value for value in values if not isnan(value)), key=lambda value: score(goal, value), default=None)


class ValueSeries:
    """Values of one objective as they arrive. A later value of the same step replaces the earlier one."""

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self._values: dict[float, float] = dict(points)
        self.arrived = len(self._values)
        """How many values came, also those that were replaced."""

    def add(self, value: float, step: float | None = None) -> None:
        """Add a value; without a step it is the next one."""
        self.arrived += 1
        self._values[float(self.arrived) if step is None or not isfinite(step) else float(step)] = value
        if len(self._values) > MOST_POINTS:
            self._values = dict(thinned(self.curve, MOST_POINTS // 2))

    @property
    def curve(self) -> Curve:
        return tuple(sorted(self._values.items()))


def value_of(objective: Objective, curve: Curve) -> float | None:
    """The value of a trial with this curve; None if it has none."""
    if not curve:
        return None
    if objective.take == "last":
        return curve[-1][1]
    best = best_of(objective.goal, (value for _, value in curve))
    return curve[-1][1] if best is None else best


def problem_of(objective: Objective, value: float | None) -> str:
    """Why the end of a trial without a usable value is a failure; empty if the value is usable."""
    if value is None:
        return f"it wrote no value of {objective.name}: nothing came from {objective.source_text}"
    return "" if isfinite(value) else f"the value of {objective.name} is nan or infinite"


def thinned(curve: Curve, most: int = STORED_POINTS) -> Curve:
    """At most `most` points, with the first and the last."""
    if len(curve) <= most:
        return curve
    gap = (len(curve) - 1) / (most - 1)
    return tuple(curve[round(index * gap)] for index in range(most))
