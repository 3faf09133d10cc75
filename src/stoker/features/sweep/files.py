"""Sweep files in TOML or YAML, with Stoker's keys or those of Weights & Biases."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.app.jobs.installation import how_to_add_extra
from stoker.app.jobs.job_files import read_toml
from stoker.app.jobs.script import python_here
from stoker.core.errors import StokerError, UsageError, did_you_mean
from stoker.core.spec import Command
from stoker.features.sweep.model.grammar import NAME, check_space, choices_of, domain_of, range_of, scalar_of, typed
from stoker.features.sweep.model.space import Choices, Condition, Domain, Parameter, Product, Scalar, Space, value_text
from stoker.features.sweep.model.template import Style
from stoker.features.sweep.submit import SweepRequest

_KEYS = (
    *("parameters", "union", "method", "count", "seed", "repeat", "max_parallel", "style", "results"),
    *("objective", "goal", "pruner", "command"),
    *("metric", "run_cap", "early_terminate", "program"),
    *("name", "project", "entity", "description"),  # of W&B: where it shows results
)
_WANDB_KEYS = ("metric", "run_cap", "early_terminate", "program", "project", "entity")
"""Keys that only files of W&B have."""
_METHODS = {"bayes": "tpe"}
_STYLES: Mapping[str, Style] = {"args": "args", "hydra": "hydra", "env": "env", "none": "none"}
_DISTRIBUTIONS: Mapping[str, Mapping[str, bool]] = {
    "uniform": {},
    "q_uniform": {},
    "int_uniform": {"integer": True},
    "log_uniform_values": {"log": True},
    "q_log_uniform_values": {"log": True},
}
_FIELDS = ("values", "value", "min", "max", "distribution", "q", "log", "if", "parameters")
_WANDB_FIELDS = ("probabilities", "desc", "description", "mu", "sigma")
"""Fields of W&B: the first three are not used, the others are refused together with their distribution."""


def read_sweep_file(path: Path, shell: str) -> SweepRequest:
    """The sweep that a file describes; its suffix says the format."""
    table = _loaded(path)
    try:
        return asked_of(table, shell)
    except UsageError as error:
        raise UsageError(f"{path.name}: {error.message}", error.hint) from None


def _loaded(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the sweep file {path}: {error.strerror}", "give a file: @sweep.toml") from error
    table = _toml(data, path) if path.suffix.lower() == ".toml" else _yaml(data, path)
    if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
        raise UsageError(f"{path.name} is not a table with names", "write method: random, parameters: ...")
    return table


def _toml(data: bytes, path: Path) -> Any:
    try:
        return read_toml(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path.name} is not TOML: {error}", "a file in YAML must end in .yaml") from None


def _yaml(data: bytes, path: Path) -> Any:
    try:
        import yaml
    except ImportError as error:
        text = "sweep files in YAML need PyYAML, which is not installed"
        raise StokerError(text, f"{how_to_add_extra('sweep')}, or write TOML") from error
    try:
        return yaml.safe_load(data.decode())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path.name} is not YAML: {_what(error)}", "check indentation, brackets and quotes") from None


def _what(error: Exception) -> str:
    """An error of PyYAML in one line."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def asked_of(table: Mapping[str, Any], shell: str) -> SweepRequest:
    """The sweep of a table as a file has it."""
    wandb = is_wandb(table)
    unknown = [key for key in table if key not in _KEYS]
    if unknown and not wandb:
        raise UsageError(f"unknown key {unknown[0]!r}", did_you_mean(unknown[0], _KEYS, f"known: {', '.join(_KEYS)}"))
    objectives, goal = _objectives(table)
    method = table.get("method")
    return SweepRequest(
        space=_space({**table, "parameters": _wandb_parameters(table.get("parameters", {}))} if wandb else table),
        command=_command(table, shell),
        wandb=True if wandb else None,
        nested=tuple(name for name, given in table.get("parameters", {}).items() if _is_nested(given)) if wandb else (),
        notes=tuple(f"{key} of the file is not used" for key in unknown),
        method=_METHODS.get(str(method), str(method)) if method is not None else None,
        count=_whole(table, "count", _whole(table, "run_cap", None)),
        seed=_whole(table, "seed", None),
        repeat=_whole(table, "repeat", None),
        max_parallel=_whole(table, "max_parallel", None),
        style=_style(table),
        results=str(table["results"]) if "results" in table else None,
        objectives=objectives,
        goal=goal,
        pruners=_pruners(table),
    )


def is_wandb(table: Mapping[str, Any]) -> bool:
    """Whether a table is one for the agent of Weights & Biases."""
    command = table.get("command")
    words = command if isinstance(command, list) else []
    return any(key in table for key in _WANDB_KEYS) or any(str(word).startswith("${") for word in words)


def _whole(table: Mapping[str, Any], key: str, default: int | None) -> int | None:
    value = table.get(key, default)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise UsageError(f"{key} is {value!r}", f"write a whole number: {key}: 20")
    return value


def _style(table: Mapping[str, Any]) -> Style | None:
    if "style" not in table:
        return None
    if table["style"] not in _STYLES:
        raise UsageError(f"there is no style {table['style']!r}", f"known: {', '.join(_STYLES)}")
    return _STYLES[table["style"]]


# -- parameters ----------------------------------------------------------------------------------


def _space(table: Mapping[str, Any]) -> Space:
    shared = _table(table.get("parameters", {}), "parameters")
    union = table.get("union", [{}])
    if not isinstance(union, list) or not union:
        raise UsageError("union is not a list of tables", "write [[union]] once for each product")
    products = [{**shared, **_table(product, "union")} for product in union]
    if not all(products):
        raise UsageError("there are no parameters", "write parameters: lr: [0.1, 0.01]")
    return check_space(Space(tuple(Product(tuple(_parameters(product, ""))) for product in products)))


def _is_nested(given: Any) -> bool:
    return isinstance(given, dict) and "parameters" in given


def _wandb_parameters(table: Any) -> Any:
    """Parameters whose values have the texts that W&B's agent gives them on a command line: those of Python."""
    return {name: _wandb_parameter(given) for name, given in table.items()} if isinstance(table, dict) else table


def _wandb_parameter(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    if _is_nested(given):
        return {**given, "parameters": _wandb_parameters(given["parameters"])}
    values = [given["value"]] if "value" in given else given.get("values")
    if not isinstance(values, list) or not values:
        return given
    once = {(isinstance(value, bool), value): (value, text) for value, text in map(_as_python, values)}
    return {**given, "values": choices_of(list(once.values()))}


def _as_python(value: Any) -> tuple[Scalar, str]:
    """A value and its text; a list or a table is text of JSON."""
    if isinstance(value, list | dict):
        return json.dumps(value), str(value)
    scalar = scalar_of(_number(value))
    return scalar, value if isinstance(value, str) else str(scalar)


def space_of(given: Mapping[str, Any]) -> Space:
    """The space of a Python program or a table: names, and values, ranges or texts as on the command line."""
    return check_space(Space((Product(tuple(_parameters(given, ""))),)))


def _table(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{what} is not a table", f"write {what}: with a line for each parameter")
    return value


def _parameters(table: Mapping[str, Any], prefix: str) -> list[Parameter]:
    parameters: list[Parameter] = []
    for key, value in table.items():
        name = f"{prefix}{key}"
        if not isinstance(key, str) or not re.fullmatch(NAME, name):
            raise UsageError(f"{name!r} cannot be the name of a parameter", "use letters, digits and . _ - / @")
        if _is_nested(value):
            parameters += _parameters(_table(value["parameters"], name), f"{name}.")
            continue
        try:
            parameters.append(_parameter(name, value))
        except UsageError as error:
            raise UsageError(f"{name}: {error.message}", error.hint) from None
    return parameters


def _parameter(name: str, value: Any) -> Parameter:
    if not isinstance(value, dict):
        return Parameter(name, domain_of(_typed(value)))
    for key in value:
        if key not in (*_FIELDS, *_WANDB_FIELDS):
            raise UsageError(f"unknown key {key!r}", did_you_mean(key, _FIELDS, f"known: {', '.join(_FIELDS)}"))
    when = tuple(_condition(other, wanted) for other, wanted in _table(value.get("if", {}), "if").items())
    return Parameter(name, _domain(value), when)


def _condition(name: str, wanted: Any) -> Condition:
    values = wanted if isinstance(wanted, list) else [wanted]
    return Condition(name, tuple(scalar_of(_number(value)) for value in values))


def _domain(table: Mapping[str, Any]) -> Domain:
    if "values" in table:
        if isinstance(table["values"], Choices):
            return table["values"]
        if not isinstance(table["values"], list):
            raise UsageError("values is not a list", "write values: [0.1, 0.01]")
        return domain_of(_typed(table["values"]))
    if "value" in table:
        return _constant(table["value"])
    if not {"min", "max"} <= table.keys() and not {"mu", "sigma"} & table.keys():
        raise UsageError("it has neither values nor min and max", "write values: [1, 2], or min: 1 and max: 8")
    return _range(table)


def _constant(value: Any) -> Choices:
    scalar = scalar_of(_number(value))
    return choices_of([(scalar, value if isinstance(value, str) else value_text(scalar))])


def _range(table: Mapping[str, Any]) -> Domain:
    distribution = table.get("distribution")
    distributions = (*_DISTRIBUTIONS, "log_uniform")
    if distribution is not None and distribution not in distributions:
        hint = did_you_mean(str(distribution), distributions, f"known: {', '.join(distributions)}")
        raise UsageError(f"the distribution {distribution!r} is not supported", hint)
    low, high = _number(table.get("min")), _number(table.get("max"))
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        raise UsageError(f"min {low!r} or max {high!r} is not a number", "write min: 1 and max: 8")
    quantized = str(distribution).startswith("q_")
    step = _number(table["q"]) if "q" in table else 1 if quantized else None
    if distribution == "log_uniform":  # W&B: the exponents of e
        low, high = math.exp(low), math.exp(high)
        kind: Mapping[str, bool] = {"log": True}
    elif distribution is None:
        whole = isinstance(low, int) and isinstance(high, int)
        kind = {"integer": whole and step is None, "log": bool(table.get("log"))}
    else:
        whole = quantized and all(float(number).is_integer() for number in (low, high, step or 1))
        kind = {"integer": whole, **_DISTRIBUTIONS[distribution]}
    if kind.get("log") and (not quantized or (step == 1 and kind["integer"])):
        step = None
    return range_of(low, high, step=step, **kind)


def _typed(value: Any) -> Any:
    """Values of a list with numbers in place of texts such as 1e-5, which YAML takes for text."""
    return [_number(item) for item in value] if isinstance(value, list) else value


def _number(value: Any) -> Any:
    number: Scalar = typed(value) if isinstance(value, str) else None
    return number if isinstance(number, int | float) and not isinstance(number, bool) else value


# -- objective and command -----------------------------------------------------------------------


def _objectives(table: Mapping[str, Any]) -> tuple[tuple[str, ...], str | None]:
    given = table.get("objective", [])
    texts = [given] if isinstance(given, str) else list(given)
    goal = table.get("goal")
    if "metric" in table:
        metric = _table(table["metric"], "metric")
        if not metric.get("name"):
            raise UsageError("the metric has no name", "write metric: {name: val_loss, goal: minimize}")
        texts.append(f"{metric['name']}=wandb")
        goal = metric.get("goal", goal)
    return tuple(map(str, texts)), None if goal is None else _goal(goal)


def _goal(given: Any) -> str:
    """min or max, also of minimize, Maximise or maximum."""
    goal_word = next((goal for goal in ("min", "max") if str(given).lower().startswith(goal)), None)
    if goal_word is None:
        raise UsageError(f"there is no goal {given!r}", "write minimize or maximize")
    return goal_word


def _pruners(table: Mapping[str, Any]) -> tuple[str, ...]:
    given = table.get("pruner", [])
    texts = [given] if isinstance(given, str) else list(given)
    if "early_terminate" in table:
        early = _table(table["early_terminate"], "early_terminate")
        if early.get("type") != "hyperband":
            raise UsageError(f"early_terminate has the type {early.get('type')!r}", "write type: hyperband")
        names = {"min_iter": "min", "max_iter": "max", "eta": "eta"}
        settings = ",".join(f"{names[key]}={early[key]}" for key in names if key in early)
        texts.append(f"hyperband:{settings}" if settings else "hyperband")
    return tuple(map(str, texts))


def _command(table: Mapping[str, Any], shell: str) -> Command | None:
    """The command; W&B's macros for arguments and variables stay in it."""
    given = table.get("command")
    program = table.get("program")
    if given is None:
        return None if program is None else Command((*_interpreted([str(program)]), "${args}"))
    if isinstance(given, str):
        return Command((given,), shell)
    if not isinstance(given, list) or not given:
        raise UsageError("command is neither a text nor a list of words", 'write command: "python3 train.py --lr {lr}"')
    words = [word for words_given in given for word in _expanded(str(words_given), program)]
    if not words:
        raise UsageError("the command is empty", 'write command: "python3 train.py --lr {lr}"')
    return Command(tuple(words))


def _expanded(word: str, program: Any) -> Sequence[str]:
    """A word of W&B's command with the macros filled that do not depend on the trial."""
    if word in ("${env}", "${interpreter}"):
        return ["/usr/bin/env" if word == "${env}" else python_here()]
    if word == "${program}":
        if program is None:
            raise UsageError("the command has ${program}, but there is no program", "write program: train.py")
        return [str(program)]
    return [word]


def _interpreted(words: Sequence[str]) -> tuple[str, ...]:
    return (python_here(), *words) if words[0].endswith(".py") and not os.access(words[0], os.X_OK) else tuple(words)
