"""Find the modules that calls of a function need, so that a template can import them once for all."""

from __future__ import annotations

import dis
import pickletools
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any

from stoker.app.jobs.imports import imported_by, is_installed
from stoker.app.jobs.option_values import parse_warm
from stoker.core.warm import AUTO
from stoker.python.calls import Call, pickled

_ALWAYS = ("cloudpickle", "faulthandler")
"""Modules that the program of every call imports."""


def modules_of(function: Callable[..., Any], call: Call, wish: object) -> list[str]:
    """The modules that the user names, or those that the function and the arguments refer to; none if not wanted."""
    wanted = parse_warm(",".join(wish) if isinstance(wish, list) else str(wish))
    if not wanted:
        return []
    named = _referred_to(function, call) if wanted == (AUTO,) else wanted
    return list(dict.fromkeys([*_ALWAYS, *named]))


def _referred_to(function: Callable[..., Any], call: Call) -> Iterator[str]:
    """Installed modules, and for modules of the user's own the installed ones that these import."""
    names = {name for part in (function, (call.arguments, dict(call.keywords))) for name in _names_in(part)}
    names |= set(_imports_in(getattr(getattr(function, "func", function), "__code__", None)))
    own = []
    for name in sorted(names):
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in {*sys.stdlib_module_names, "stoker", "__main__", "__mp_main__"}:
            continue
        if module is None or is_installed(file or ""):
            yield name
        elif file:
            own.append(file)
    yield from (
        name.partition(":")[0]
        for name in imported_by(own, [entry for entry in sys.path if not is_installed(f"{entry}/")])
    )


def _names_in(value: object) -> Iterator[str]:
    """Texts in a pickled value that are names of modules in this process."""
    for _, argument, _ in pickletools.genops(pickled(value)):
        if isinstance(argument, str) and argument in sys.modules:
            yield argument


def _imports_in(code: CodeType | None) -> Iterable[str]:
    """Modules that a function imports when it is called."""
    if code is None:
        return []
    inner = [name for part in code.co_consts if isinstance(part, CodeType) for name in _imports_in(part)]
    return [*inner, *(step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME")]
