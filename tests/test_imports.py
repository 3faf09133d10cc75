"""The direction of imports: the architecture of the program, as a table that is checked."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

LAYERS = [
    {"core"},
    {"devices", "ledger", "store", "backends", "logtail", "mps", "places", "zone"},
    {
        "presence",
        "machine",
        "published",
        "equipment",
        "experience",
        "autopsy",
        "dispatch",
        "lessons",
        "measuring",
        "answers",
        "book",
        "hearing",
        "orders",
        "mail",
        "parked",
        "posts",
        "sight",
        "sharing",
        "tending",
        "tenure",
        "usage",
        "changes",
        "roster",
        "engine",
        "queue",
    },
    {
        "tally",
        "busytime",
        "finding",
        "after",
        "checkout",
        "clientele",
        "capping",
        "interpreter",
        "kernel_limits",
        "signals",
        "streams",
        "resume",
        "workplace",
        "foreground",
        "service",
        "pruner",
        "enginelog",
        "unit",
        "checkup",
        "starting",
        "reports",
        "options",
        "joblist",
        "trace",
        "runlogs",
        "sheet",
        "tasklist",
        "sources",
        "words",
        "complaints",
        "config",
        "configfile",
        "rereading",
        "defaults",
    },
    {"cli", "compat", "hydra", "python", "__main__"},
]
"""Parts of the package from the inside to the outside; imports point inward or stay within a layer."""

ADAPTERS = LAYERS[1]
"""Parts that reach outside; each knows the core and itself, and none knows another."""

APART = {"simjob": {"core", "devices.simulator", "devices.simulator_presence"}}
"""Programs of their own, and all that each of them needs."""

PURE = {
    "__future__",
    "array",
    "bisect",
    "collections",
    "dataclasses",
    *("datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.tzinfo"),  # the calendar
    "enum",
    "fnmatch.fnmatchcase",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "math",
    "msgspec",
    "operator",
    "random.Random",  # the type of an argument
    "re",
    "shlex",
    "statistics",
    "string",
    "types",
    "typing",
}
"""All that the core may use: nothing with a clock, a file, a process, an environment or a log."""

FORKED = {"journal", "processes", "launch", "keeper", "forkserver"}
"""Modules of the backends that keepers consist of; they must stay small, so the standard library is enough for them."""

THIRD_PARTY = {
    "msgspec": "stoker",
    "platformdirs": "stoker.places",
    "pynvml": "stoker.devices",
    "click": "stoker.cli",
    "rich": "stoker.cli.foreground.live",
    "cloudpickle": "stoker.python",
    "hydra": "stoker.hydra",
    "joblib": "stoker.python",
    "omegaconf": "stoker.hydra",
}
"""Libraries, and the one part that may import each."""

PLUGINS = {"hydra_plugins": {"hydra", "omegaconf"}}
"""Packages in which other programs look for plugins, and the libraries of those programs."""

NAMES_WITHOUT_MEANING = {"utils", "util", "helpers", "helper", "manager", "managers", "base", "common", "misc"}


@dataclass(frozen=True)
class Module:
    """A module of ours and the full names of all that it imports, at its top or anywhere inside."""

    name: str
    tree: ast.Module
    imports: frozenset[str]

    @property
    def top(self) -> str:
        """The package it is in."""
        return self.name.split(".")[0]

    @property
    def part(self) -> str:
        """The part of the package that it belongs to."""
        return f"{self.name}.".split(".")[1]

    @property
    def ours(self) -> set[str]:
        """The imported modules of this project."""
        return {found for name in self.imports if (found := module_named(name))} - {self.name}


def read_modules() -> dict[str, Module]:
    """Every module below the source directory by its name."""
    paths = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}
    trees = {name: ast.parse(path.read_text()) for name, path in paths.items()}
    return {name: Module(name, tree, frozenset(imported(tree))) for name, tree in trees.items()}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imported(tree: ast.Module) -> Iterator[str]:
    """`import a.b` gives a.b, `from a import b` gives a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they lead"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_named(name: str) -> str | None:
    """The module that an imported name is, or is a part of, if it is ours."""
    candidates = (name, name.rpartition(".")[0])
    return next((candidate for candidate in candidates if candidate in MODULES), None)


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


MODULES = read_modules()
STOKER = [module for name, module in MODULES.items() if is_within(name, "stoker") and module.part]
"""All but the package's own file, which holds the version and may be imported by everybody."""
LAYER_OF = {part: height for height, layer in enumerate(LAYERS) for part in layer}

each_module = pytest.mark.parametrize("module", STOKER, ids=lambda module: module.name)


def parts_imported(module: Module) -> set[str]:
    """The parts of the package that a module imports from."""
    return {MODULES[name].part for name in module.ours if is_within(name, "stoker")} - {""}


@each_module
def test_every_part_has_its_layer(module: Module) -> None:
    """A new part is put into the table before anything is built on it."""
    assert module.part in LAYER_OF or module.part in APART


@each_module
def test_imports_point_inward(module: Module) -> None:
    """No module imports from a layer further out than its own, and nobody imports a program that stands apart."""
    if module.part in LAYER_OF:
        allowed = {part for part, height in LAYER_OF.items() if height <= LAYER_OF[module.part]}
        assert parts_imported(module) <= allowed


@pytest.mark.parametrize("part", sorted(ADAPTERS))
def test_adapters_do_not_know_each_other(part: str) -> None:
    """An adapter imports the core and itself."""
    for module in STOKER:
        if module.part == part:
            assert parts_imported(module) <= {"core", part}, module.name


@pytest.mark.parametrize("program", sorted(APART))
def test_programs_apart_need_little(program: str) -> None:
    """A program of its own imports only what the table says."""
    allowed = {f"stoker.{part}" for part in APART[program] | {program}}
    for module in (module for module in STOKER if module.part == program):
        for name in module.ours:
            assert any(is_within(name, part) for part in allowed), name


@pytest.mark.parametrize("module", [module for module in STOKER if module.part == "core"], ids=lambda each: each.name)
def test_core_is_pure(module: Module) -> None:
    """The core imports itself, and nothing that could tell it of the outside."""
    for name in module.imports:
        assert name in PURE or name.split(".")[0] in PURE or is_within(name, "stoker.core"), name


@pytest.mark.parametrize("name", sorted(FORKED))
def test_keepers_stay_small(name: str) -> None:
    """What keepers consist of imports the standard library and each other."""
    family = {f"stoker.backends.{member}" for member in FORKED}
    module = MODULES[f"stoker.backends.{name}"]
    assert module.ours <= family
    assert {each.split(".")[0] for each in module.imports} <= sys.stdlib_module_names | {"stoker"}


@pytest.mark.parametrize("module", MODULES.values(), ids=lambda module: module.name)
def test_libraries_have_one_place(module: Module) -> None:
    """A library is imported only by the part that needs it, and none but those in the table is."""
    known = sys.stdlib_module_names | {name.split(".")[0] for name in MODULES}
    for library in {name.split(".")[0] for name in module.imports} - known - PLUGINS.get(module.top, set()):
        assert is_within(module.name, THIRD_PARTY.get(library, "nowhere")), library


def test_no_cycles() -> None:
    """No module imports itself by way of others, not even from inside a function."""
    TopologicalSorter({name: module.ours for name, module in MODULES.items()}).prepare()


@pytest.mark.parametrize("name", MODULES)
def test_names_have_a_meaning(name: str) -> None:
    """No module has a name under which anything could be put."""
    assert NAMES_WITHOUT_MEANING.isdisjoint(name.split("."))


@pytest.mark.parametrize("package", PLUGINS)
def test_plugins_share_their_package(package: str) -> None:
    """Others put theirs into the same package, which therefore has no file of its own."""
    assert package not in MODULES
    assert not (SOURCE / package / "__init__.py").exists()


@pytest.mark.parametrize("name", [name for name in MODULES if name.split(".")[0] not in {"stoker", *PLUGINS}])
def test_older_names_only_lead_on(name: str) -> None:
    """The import names of older tools define nothing: they import from the doors, and start them."""
    module = MODULES[name]
    assert all(is_within(target, "stoker.compat") for target in module.ours)
    for statement in module.tree.body:
        assert isinstance(statement, ast.Import | ast.ImportFrom | ast.Assign | ast.Expr | ast.If), statement
        if isinstance(statement, ast.Assign):
            assert ast.unparse(statement.targets[0]) == "__all__"
        if isinstance(statement, ast.Expr):
            assert isinstance(statement.value, ast.Constant), "only the docstring may stand alone"
        if isinstance(statement, ast.If):
            assert ast.unparse(statement.test) == "__name__ == '__main__'"
