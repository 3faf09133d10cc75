"""The configuration: what files and variables set, which of them wins, and where each value came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from stoker.configfile import Ignored, Settings, read_project, read_settings, user_file
from stoker.core.errors import UsageError
from stoker.core.secrets import shown_value
from stoker.core.settings import KEYS, EngineSettings, read_setting, setting_text
from stoker.defaults import BUILT_IN, NAMES, checked_defaults

SYSTEM_FILE = Path("/etc/stoker/config.toml")
_BUILT_IN = "built in"

Name = tuple[str, ...]
"""The parts of a dotted key: ("reserve",), ("groups", "big"), ("defaults", "env", "SEED")."""


class Value(Struct, frozen=True):
    """What was written for a key, and where: a path, a variable, a flag, or built in."""

    raw: object
    origin: str


class Row(Struct, frozen=True):
    """A value as `stoker engine config` shows it."""

    key: str
    value: str
    origin: str


class Config(Struct, frozen=True):
    """All that was configured."""

    engine: EngineSettings
    defaults: dict[str, Any]
    """Job options from files, for JobOptions; those of STOKER_* variables come with the command line's own."""
    values: dict[Name, Value]
    files: tuple[Path, ...] = ()
    """The files that were read, the weakest first."""
    warnings: tuple[str, ...] = ()

    def origins(self) -> list[Row]:
        """Every value with its origin, those of the engine first; secrets are not shown."""
        order = {name: place for place, name in enumerate([*KEYS, "defaults"])}
        names = sorted(self.values, key=lambda name: order[name[0]])
        return [Row(".".join(name), self._shown(name), self.values[name].origin) for name in names]

    def _shown(self, name: Name) -> str:
        text = setting_text(self.values[name].raw)
        is_variable = name[:2] == ("defaults", "env")
        return shown_value(name[-1], text, self.engine.secrets) if is_variable else text


def load_config(
    environment: Mapping[str, str],
    cwd: Path | None,
    *,
    system: Path = SYSTEM_FILE,
    flags: Mapping[str, object] | None = None,
) -> Config:
    """The configuration that holds in a directory; with None the one that holds in none, as for the engine itself."""
    found = list(_found(environment, cwd, system))
    files = [each for each in found if isinstance(each, Settings)]
    written = _overlaid([_built_in(), *map(_of_file, files)])
    values = _overlaid([written, _of_environment(environment), _of_flags(flags or {})])
    return Config(
        engine=_engine_settings(values),
        defaults=_nested(written).get("defaults", {}),
        values=_with_built_in_options(values),
        files=tuple(each.path for each in files),
        warnings=tuple(each.warning for each in found if isinstance(each, Ignored)),
    )


def _found(environment: Mapping[str, str], cwd: Path | None, system: Path) -> Iterator[Settings | Ignored]:
    """All files, the weakest first."""
    yield from read_settings(system)
    user = user_file(environment)
    if user is not None:
        yield from read_settings(user)
    if cwd is not None:
        yield from read_project(cwd)


def _overlaid(layers: Iterable[dict[Name, Value]]) -> dict[Name, Value]:
    return {name: value for layer in layers for name, value in layer.items()}


def _built_in() -> dict[Name, Value]:
    return _flat({name: key.built_in for name, key in KEYS.items()}, _BUILT_IN)


def _of_file(settings: Settings) -> dict[Name, Value]:
    """The values of a file, each of them checked, also where a stronger file sets another."""
    place = str(settings.path)
    for key, value in settings.table.items():
        if key not in KEYS and key != "defaults":
            _refuse_unknown(key, settings)
        if key in KEYS and settings.project:
            _refuse_in_project(key, settings)
        if key in KEYS:
            read_setting(key, value, f"{place}: {key}")
    defaults = checked_defaults(settings.table.get("defaults", {}), place)
    return _flat({**settings.table, "defaults": defaults}, place)


def _of_environment(environment: Mapping[str, str]) -> dict[Name, Value]:
    """STOKER_<KEY> of every setting and job option; an empty one counts as not set."""
    found: dict[Name, Value] = {}
    for name in KEYS:
        variable = f"STOKER_{name.upper()}"
        if raw := environment.get(variable):
            found |= _flat({name: _plain(name, raw, variable)}, variable)
    for name in NAMES:
        variable = f"STOKER_{name.upper()}"
        if name != "env" and (raw := environment.get(variable)):
            found[("defaults", name)] = Value(raw, variable)
    return found


def _of_flags(flags: Mapping[str, object]) -> dict[Name, Value]:
    """Settings given on the command line; None is not given."""
    found: dict[Name, Value] = {}
    for name, raw in flags.items():
        if raw is not None:
            flag = f"--{name.replace('_', '-')}"
            found |= _flat({name: _plain(name, raw, flag)}, flag)
    return found


def _plain(name: str, raw: object, place: str) -> object:
    """The text, if it can be read; of a table its entries, so that each can be overlaid by itself."""
    value = read_setting(name, raw, place)
    return value if isinstance(value, dict) else raw


def _flat(table: Mapping[str, Any], origin: str) -> dict[Name, Value]:
    found: dict[Name, Value] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= {(key, *rest): each for rest, each in _flat(value, origin).items()}
        else:
            found[(key,)] = Value(value, origin)
    return found


def _nested(values: Mapping[Name, Value]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, value in values.items():
        inner = table
        for part in name[:-1]:
            inner = inner.setdefault(part, {})
        inner[name[-1]] = value.raw
    return table


def _engine_settings(values: Mapping[Name, Value]) -> EngineSettings:
    """From values that were checked one by one."""
    table = _nested(values)
    return EngineSettings(**{name: read_setting(name, table.get(name, {}), name) for name in KEYS})


def _with_built_in_options(values: dict[Name, Value]) -> dict[Name, Value]:
    """For the eye only: an option that nobody set is not given to JobOptions, which knows what that means."""
    return _flat({"defaults": BUILT_IN}, _BUILT_IN) | values


def _refuse_unknown(key: str, settings: Settings) -> NoReturn:
    import difflib

    known = ["defaults"] if settings.project else [*KEYS, "defaults"]
    near = difflib.get_close_matches(key, known, 1)
    if key in NAMES:
        hint = f"{key} is a job option: put it under {_defaults_header(settings)}"
    else:
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
    raise UsageError(f"{settings.path}: unknown key {key!r}", hint)


def _refuse_in_project(key: str, settings: Settings) -> NoReturn:
    raise UsageError(
        f"{settings.path}: {key} cannot be set for one project, because one engine serves all of yours",
        f"set it in ~/.config/stoker/config.toml; here only job options under {_defaults_header(settings)} count",
    )


def _defaults_header(settings: Settings) -> str:
    return "[tool.stoker.defaults]" if settings.path.name == "pyproject.toml" else "[defaults]"
