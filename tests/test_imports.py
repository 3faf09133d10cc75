"""The direction of imports: the architecture of the program, as a table that is checked."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

ADAPTERS = {"store", "ledger", "devices", "runner"}
"""Packages that reach outside; none of them knows another."""

MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "store": {"core"},
    "ledger": {"core"},
    "devices": {"core"},
    "runner": {"core"},
    "sites": {"core", *ADAPTERS},
    "engine": {"core", "store", "sites.interface"},
    "app.jobs": {"core", "store", "ledger", "devices"},
    "app.control": {"core", "store", "app.jobs"},
    "app.views": {"core", "store", "ledger", "devices", "app.jobs", "app.control"},
    "app.service": {"core", "store", "ledger", "devices", "app.jobs", "app.control", "app.views"},
    "python": {"core", "store", "app"},
    "web": {"core", "store", "app"},
    "cli": {"core", "store", "ledger", "devices", "app", "web"},
    "features": {"core", "store", "app", "sites.interface", "cli", "web", "python"},
    "__main__": {"cli"},
}
"""What each package may import, besides itself. The order is the order of this table.

A feature is built on the parts of the front ends: its commands on those of the command line, its routes on the server.
"""

ON_NODES = {*ADAPTERS, "engine", "sites"}
FEATURES_MAY_IMPORT: dict[str, set[str]] = {"slurm": ON_NODES, "compat": ON_NODES, "lab": {"ledger"}}
"""What these features may import besides: pilots and older tools run engines of their own, and those of a lab tell each
other what they do."""

NAMES_OF_FEATURES = {"stoker.features"}
"""The only module of features that others may import."""

RUNS_AN_ENGINE = {
    *("cli.commands.run", "cli.commands.demo", "cli.commands.engine", "cli.foreground", "cli.session"),
    "app.jobs.run",
}
"""Parts that run an engine in their own process, and may import it."""

PURE = {
    "__future__",
    "array",
    "bisect",
    "collections",
    "csv",
    "dataclasses",
    "difflib",
    *("datetime.date", "datetime.datetime", "datetime.time", "datetime.timedelta", "datetime.tzinfo"),  # the calendar
    "enum",
    "fnmatch.fnmatchcase",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "json",
    "math",
    "msgspec",
    "operator",
    "random.Random",  # the type of an argument
    "re",
    "shlex",
    "statistics",
    "struct",
    "string",
    "types",
    "typing",
}
"""All that the core may use: nothing with a clock, a file, a process, an environment or a log."""

FORKED = {"forkserver", "inherited", "journal", "processes", "spawn", "worker"}
"""Modules of the runner that workers consist of; they must stay small, so they use only the standard library."""

THIRD_PARTY: dict[str, str | tuple[str, ...]] = {
    "msgspec": "stoker",
    "platformdirs": "stoker.store.paths",
    "pynvml": "stoker.devices",
    "click": ("stoker.cli", "stoker.features"),
    "rich": ("stoker.cli.screens.run", "stoker.cli.top"),
    "textual": "stoker.cli.top",
    "apprise": ("stoker.app.service.notify", "stoker.app.jobs.option_values"),
    "cloudpickle": "stoker.python",
    "hydra": "stoker.python.hydra",
    "joblib": "stoker.python.joblib_backend",
    "omegaconf": "stoker.python.hydra",
    "optuna": "stoker.features.sweep.tuner.study",
    "resvg_py": "stoker.cli.charts.chart",
    "tensorboard": "stoker.features.sweep.tuner.values",
    "tqdm": "stoker.python.api",
    "starlette": ("stoker.web", "stoker.features.sweep.api", "stoker.features.freeze.api", "stoker.features.lab.page"),
    **dict.fromkeys(["anyio", "prometheus_client", "sse_starlette", "uvicorn"], "stoker.web"),
    "yaml": "stoker.features.sweep.files",
}
"""Libraries, and the part or parts that may import each."""

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
        """The distribution's package it is in."""
        return self.name.split(".")[0]

    @property
    def package(self) -> str:
        """The package of Stoker it belongs to; app has several."""
        parts = f"{self.name}.".split(".")
        return ".".join(parts[1:3]) if parts[1] == "app" and parts[2] else parts[1]

    @property
    def feature(self) -> str:
        """The feature that it is a part of."""
        return self.name.split(".")[2] if self.name.startswith("stoker.features.") else ""

    @property
    def ours(self) -> set[str]:
        """The imported modules of this project."""
        return {found for name in self.imports if (found := module_named(name))} - {self.name}


@cache
def modules() -> dict[str, Module]:
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
    return next((candidate for candidate in candidates if candidate in modules()), None)


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def stoker_modules() -> list[Module]:
    """All but the files of packages that only hold packages; the first has the version, for all to import."""
    return [
        module for name, module in modules().items() if is_within(name, "stoker") and module.package not in ("", "app")
    ]


def test_every_package_is_in_the_table() -> None:
    """A new package is put into the table before anything is built on it."""
    assert {module.package for module in stoker_modules()} <= set(MAY_IMPORT)


def test_packages_are_ordered() -> None:
    """A package imports only packages that stand before it in the table."""
    order = list(MAY_IMPORT)
    for package, allowed in MAY_IMPORT.items():
        assert all(_place(order, other) < order.index(package) for other in allowed), package


def _place(order: list[str], name: str) -> int:
    """The last place of a package in the table; `app` stands for its packages."""
    return max(place for place, package in enumerate(order) if is_within(package, name) or is_within(name, package))


def test_imports_follow_the_table() -> None:
    """A module imports its own package and those that the table allows."""
    wrong = [
        f"{module.name} imports {name}" for module in stoker_modules() for name in module.ours if not _may(module, name)
    ]
    assert not wrong, "\n".join(sorted(wrong))


def _may(module: Module, imported_name: str) -> bool:
    target = imported_name.removeprefix("stoker").removeprefix(".")
    if module.package == "features" and module.feature:
        return _feature_may(module, target)
    allowed = MAY_IMPORT[module.package] | {module.package}
    if any(
        is_within(module.name, f"stoker.{part}") or module.name.startswith(f"stoker.{part}_") for part in RUNS_AN_ENGINE
    ):
        allowed = allowed | {"engine", "sites", "runner"}
    return not target or target == "features" or any(is_within(target, part) for part in allowed)


def _feature_may(module: Module, target: str) -> bool:
    allowed = MAY_IMPORT["features"] | FEATURES_MAY_IMPORT.get(module.feature, set()) | {f"features.{module.feature}"}
    return not target or any(is_within(target, part) for part in allowed)


def test_only_the_list_of_features_names_one() -> None:
    """No other part of Stoker imports a feature, and no feature imports another."""
    wrong = [
        f"{module.name} imports {name}"
        for module in stoker_modules()
        for name in module.ours - NAMES_OF_FEATURES
        if is_within(name, "stoker.features") and not is_within(name, f"stoker.features.{module.feature or '-'}")
    ]
    assert not wrong, "\n".join(sorted(wrong))


def test_core_is_pure() -> None:
    """The core imports itself, and nothing that could tell it of the outside."""
    wrong = [
        f"{module.name} imports {name}"
        for module in stoker_modules()
        if module.package == "core"
        for name in module.imports
        if not (name in PURE or name.split(".")[0] in PURE or is_within(name, "stoker.core"))
    ]
    assert not wrong, "\n".join(wrong)


def test_workers_stay_small() -> None:
    """What workers consist of imports the standard library and each other."""
    family = {f"stoker.runner.{member}" for member in FORKED}
    for name in family:
        module = modules()[name]
        assert module.ours <= family, name
        assert {each.split(".")[0] for each in module.imports} <= sys.stdlib_module_names | {"stoker"}, name


def test_libraries_have_one_place() -> None:
    """A library is imported only by the part that needs it, and none but those in the table is."""
    known = sys.stdlib_module_names | {name.split(".")[0] for name in modules()}
    for module in modules().values():
        for library in {name.split(".")[0] for name in module.imports} - known - PLUGINS.get(module.top, set()):
            allowed = THIRD_PARTY.get(library, ())
            places = (allowed,) if isinstance(allowed, str) else allowed
            assert any(is_within(module.name, place) for place in places), f"{module.name} imports {library}"


def test_no_cycles() -> None:
    """No module imports itself by way of others, not even from inside a function."""
    TopologicalSorter({name: module.ours for name, module in modules().items()}).prepare()


def test_names_have_a_meaning() -> None:
    """No module has a name under which anything could be put."""
    for name in modules():
        assert NAMES_WITHOUT_MEANING.isdisjoint(name.split(".")), name


def test_the_root_holds_only_packages() -> None:
    """A module belongs to a package; the root has the version and the entry point."""
    assert {path.name for path in (SOURCE / "stoker").glob("*.py")} == {"__init__.py", "__main__.py"}


def test_plugins_share_their_package() -> None:
    """Others put theirs into the same package, which therefore has no file of its own."""
    for package in PLUGINS:
        assert package not in modules()
        assert not (SOURCE / package / "__init__.py").exists()


def test_older_names_only_lead_on() -> None:
    """The import names of older tools define nothing: they import from the front ends, and start them."""
    for name in (name for name in modules() if name.split(".")[0] not in {"stoker", *PLUGINS}):
        module = modules()[name]
        assert all(is_within(target, "stoker.features.compat") for target in module.ours), name
        for statement in module.tree.body:
            _check_leads_on(statement)


def _check_leads_on(statement: ast.stmt) -> None:
    assert isinstance(statement, ast.Import | ast.ImportFrom | ast.Assign | ast.Expr | ast.If), statement
    if isinstance(statement, ast.Assign):
        assert ast.unparse(statement.targets[0]) == "__all__"
    if isinstance(statement, ast.Expr):
        assert isinstance(statement.value, ast.Constant), "only the docstring may stand alone"
    if isinstance(statement, ast.If):
        assert ast.unparse(statement.test) == "__name__ == '__main__'"
