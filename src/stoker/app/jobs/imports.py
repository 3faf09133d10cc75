"""Find the installed packages that a script imports, and that a warm start may therefore import before it."""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from stoker.core.spec import Command, JobSpec
from stoker.core.warm import read_python

NOTHING = ("sys",)
"""For a script that imports no packages: its Python has started already."""
MOST_FILES = 200
"""Files of the user's own that are read for their imports."""


def with_modules(command: Command, spec: JobSpec) -> JobSpec:
    """The spec with the names of the modules, if those of the script are wanted. They are looked for beside it."""
    python = read_python(command)
    if isinstance(python, str):
        return spec  # the engine says why the job starts cold
    is_file = python.kind == "file"
    start = os.path.join(spec.cwd, python.target if is_file else f"{python.target.replace('.', '/')}.py")
    main = os.path.join(os.path.splitext(start)[0], "__main__.py")
    files = [start if is_file or os.path.exists(start) else main]
    return replace(spec, warm=tuple(imported_by(files, () if is_file else (spec.cwd,))) or NOTHING)


def imported_by(files: Iterable[str], roots: Sequence[str] = ()) -> list[str]:
    """What files import when they are imported themselves, with the files beside them: `module` or `module:name,name`.

    Those of the standard library are left out: they take no time. `roots` are more directories with own modules.
    """
    waiting, seen = list(files), set[str]()
    wanted: dict[str, set[str]] = {}
    while waiting and len(seen) < MOST_FILES:
        file = waiting.pop(0)
        if file in seen:
            continue
        seen.add(file)
        with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError):
            for module, names in _imports(ast.parse(Path(file).read_bytes())):
                if module.partition(".")[0] in sys.stdlib_module_names:
                    continue
                if beside := _own_files(module, names, file, roots):
                    waiting += beside
                else:
                    wanted.setdefault(module, set()).update(names)
    return [module + (f":{','.join(sorted(names))}" if names else "") for module, names in wanted.items()]


def is_installed(file: str) -> bool:
    """Whether a module's file is that of an installed package."""
    return "/site-packages/" in file or "/dist-packages/" in file


def _imports(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    for node in _run_at_once(tree.body):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield "." * node.level + (node.module or ""), [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            yield node.module, [alias.name for alias in node.names if alias.name != "*"]


def _run_at_once(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that surely run: none of functions and branches."""
    for node in body:
        yield node
        if isinstance(node, ast.With):
            yield from _run_at_once(node.body)


def _own_files(module: str, names: list[str], file: str, roots: Sequence[str]) -> list[str]:
    """Files of the user's own that an import reads; none if the module is an installed one."""
    here = os.path.dirname(os.path.realpath(file))
    dots = len(module) - len(module.lstrip("."))
    parts = [part for part in module.lstrip(".").split(".") if part]
    for directory in [os.path.join(here, *[".."] * (dots - 1))] if dots else [_root_of(here), *roots]:
        place = Path(directory, *parts)
        candidates = [place.parent / f"{place.name}.py", place / "__init__.py"] if parts else []
        candidates += [place / f"{name}.py" for name in names]
        files = [os.fspath(path) for path in candidates if path.is_file()]
        if files or place.is_dir() or dots:
            return files or [os.fspath(place)]
    return []


def _root_of(directory: str) -> str:
    """The directory in which the package is looked for that a directory belongs to."""
    while os.path.exists(os.path.join(directory, "__init__.py")) and os.path.dirname(directory) != directory:
        directory = os.path.dirname(directory)
    return directory
