"""Configuration files, defaults and STOKER_* variables."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from stoker.app.jobs.config_tables import checked_clusters, checked_defaults, checked_groups
from stoker.app.jobs.context import current_user, working_directory
from stoker.app.jobs.limits import checked_locked, limits_here
from stoker.app.jobs.options import BY_NAME, OPTIONS, JobOptions, merged
from stoker.core import places
from stoker.core.errors import StokerError, UsageError, did_you_mean
from stoker.core.settings import (
    CLUSTER_KEYS,
    KEYS,
    ClusterSettings,
    EngineSettings,
    read_setting,
    setting_text,
)
from stoker.core.text import shown_value
from stoker.features import FEATURES, feature_tables, load

_MENTIONED = re.compile(rb"""tool['"\s]*\.[\s'"]*stoker""")


class Settings(Struct, frozen=True):
    """The content of one file."""

    path: Path
    table: dict[str, Any]
    project: bool = False
    """Whether it belongs to a project directory rather than to a user or a machine."""


class Ignored(Struct, frozen=True):
    """A file that cannot be trusted or read."""

    path: Path
    why: str

    @property
    def warning(self) -> str:
        return f"{self.path} is ignored: {self.why}"


def user_file(environment: Mapping[str, str]) -> Path | None:
    """The user's own file; by the XDG rules a relative path does not count."""
    chosen, home = (Path(environment.get(name, "")) for name in ("XDG_CONFIG_HOME", "HOME"))
    if chosen.is_absolute():
        return chosen / "stoker/config.toml"
    return home / ".config/stoker/config.toml" if home.is_absolute() else None


def read_settings(path: Path) -> Iterator[Settings | Ignored]:
    """The file's settings, or why it is ignored; nothing where there is no file."""
    data = _read_trusted(path)
    if isinstance(data, Ignored):
        yield data
    elif data is not None:
        yield Settings(path, _parsed(data, path))


def read_project(directory: Path) -> Iterator[Settings | Ignored]:
    """The nearest stoker.toml or [tool.stoker] from the directory upwards, and files ignored on the way."""
    start = directory.absolute()
    for above in (start, *start.parents):
        own = (
            msgspec.structs.replace(settings, project=True) if isinstance(settings, Settings) else settings
            for settings in read_settings(above / "stoker.toml")
        )
        for settings in (*own, *_pyproject(above / "pyproject.toml")):
            yield settings
            if isinstance(settings, Settings):
                return


def _pyproject(path: Path) -> Iterator[Settings | Ignored]:
    """Most of these files do not mention Stoker; their errors and owners do not matter."""
    data = _read_trusted(path, _MENTIONED)
    if isinstance(data, Ignored):
        yield data
    elif data is not None and b"stoker" in data:
        table = _tool_table(data, path)
        if table is not None:
            yield Settings(path, table, project=True)


def _tool_table(data: bytes, path: Path) -> dict[str, Any] | None:
    try:
        tools = _parsed(data, path).get("tool")
    except UsageError:
        if _MENTIONED.search(data):
            raise
        return None
    table = tools.get("stoker") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{path}: tool.stoker is not a table", "write [tool.stoker.defaults] above the options")
    return table


def _parsed(data: bytes, path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(data.removeprefix(codecs.BOM_UTF8).decode())
    except (ValueError, RecursionError) as error:
        hint = 'write lines such as reserve = "512M", and job options under [defaults]'
        raise UsageError(f"{path} is not TOML: {error}", hint) from None


def _read_trusted(path: Path, only_with: re.Pattern[bytes] | None = None) -> bytes | Ignored | None:
    """The content, if only this user and root can write it; None where there is no file.

    With a pattern, an untrusted file is reported only if its content matches.
    """
    try:
        # Without blocking: another user may have put a FIFO there.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            data = file.read() if stat.S_ISREG(status.st_mode) else b""
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        there = os.path.lexists(path)  # False also in a directory that cannot be entered
        return Ignored(path, f"it cannot be read ({error.strerror})") if there and not only_with else None
    why = _distrust(status)
    if not why:
        return data
    return Ignored(path, why) if only_with is None or only_with.search(data) else None


def _distrust(found: os.stat_result) -> str:
    """Why another user may control the file; empty where none does."""
    if not stat.S_ISREG(found.st_mode):
        return "it is not a file"
    if found.st_uid not in (0, os.geteuid()):
        from stoker.devices.interface import user_name

        return f"it belongs to user {user_name(found.st_uid)}, who could make your jobs run anything"
    if found.st_mode & stat.S_IWOTH:
        return "every user can write to it (fix: chmod o-w)"
    return ""


BUILT_IN: Mapping[str, object] = {option.name: option.built_in for option in OPTIONS if option.built_in is not None}


def checked_tables(section: str, tables: object, place: str) -> dict[str, dict[str, Any]]:
    """The tables `[section.NAME]` of a file, every value checked, for clusters or by the feature that has them."""
    check = checked_clusters if section == _CLUSTER else load(feature_tables()[section])
    checked: dict[str, dict[str, Any]] = check(tables, place)
    return checked


def _sections() -> list[str]:
    """The names of all tables of tables, but for job options."""
    return [_CLUSTER, *feature_tables()]


def _cluster_settings(table: Mapping[str, object], environment: Mapping[str, str]) -> ClusterSettings:
    read = {key: read_setting(key, raw, key, CLUSTER_KEYS) for key, raw in {**_CLUSTER_BUILT_IN, **table}.items()}
    home = environment.get("HOME") or os.path.expanduser("~")

    def expanded(text: str) -> str:
        return home + text[1:] if text.startswith("~/") else text

    paths = {key: expanded(read[key]) for key in ("shared", "python", "conf", "prefix")}
    return ClusterSettings(**{**read, **paths, "ssh": tuple(map(expanded, read["ssh"]))})


_CLUSTER_BUILT_IN = {name: key.built_in for name, key in CLUSTER_KEYS.items()}
SYSTEM_FILE = Path(places.SYSTEM_FILE)
_BUILT_IN = "built in"
_CLUSTER = "cluster"
_LOCKED = "locked"
_GROUP = "group"
_DEFAULTS = "defaults"
_OF_JOBS = (_DEFAULTS, _GROUP)
"""Tables of job options."""
_ADD = "stoker cluster add {} --slurm"
Name = tuple[str, ...]
"""Parts of a dotted key: ("reserve",), ("groups", "big"), ("defaults", "env", "SEED")."""


class Value(Struct, frozen=True):
    """The value of a key and its origin: a path, a variable, a flag, or built in."""

    raw: object
    origin: str


class SettingRow(Struct, frozen=True):
    """A value as `stoker engine config` shows it."""

    key: str
    value: str
    origin: str


class Config(Struct, frozen=True):
    """The configuration in effect."""

    engine: EngineSettings
    defaults: dict[str, Any]
    """Job options from files; STOKER_* variables come with the options of the command line."""
    values: dict[Name, Value]
    groups: Mapping[str, dict[str, Any]] = {}
    """Job options from files for the jobs of a group, by its name."""
    locked: Mapping[str, Any] = {}
    """The table [locked] of the system's file."""
    clusters: Mapping[str, ClusterSettings] = {}
    """By name, in the order of the files."""
    tables: Mapping[str, Mapping[str, Any]] = {}
    """Those of features, by their names."""
    files: tuple[Path, ...] = ()
    """The files that were read, weakest first."""
    warnings: tuple[str, ...] = ()

    def completed(self, options: JobOptions) -> JobOptions:
        """The options, and where they are not given those of the job's group, then the defaults."""
        defaults = JobOptions(**self.defaults)
        group = defaults.group if options.group is None else options.group
        return merged(merged(defaults, JobOptions(**self.groups.get(group or "", {}))), options)

    def cluster(self, name: str) -> ClusterSettings:
        """The settings of a cluster that a user named."""
        if name not in self.clusters:
            clusters = f"known: {', '.join(self.clusters)}" if self.clusters else f"add it: {_ADD.format(name)}"
            raise UsageError(f"there is no cluster {name!r}", did_you_mean(name, self.clusters, clusters))
        return self.clusters[name]

    def origins(self) -> list[SettingRow]:
        """Every value with its origin, engine settings first; secrets are hidden."""
        order = {name: place for place, name in enumerate([*KEYS, _LOCKED, *_sections(), _GROUP, _DEFAULTS])}
        names = sorted(self.values, key=lambda name: order[name[0]])
        return [SettingRow(".".join(name), self._shown(name), self.values[name].origin) for name in names]

    def _shown(self, name: Name) -> str:
        text = setting_text(self.values[name].raw)
        is_variable = name[-2:-1] == ("env",)
        return shown_value(name[-1], text, self.engine.secrets) if is_variable else text


def load_config(
    environment: Mapping[str, str],
    cwd: Path | None,
    *,
    system: Path = SYSTEM_FILE,
    flags: Mapping[str, object] | None = None,
) -> Config:
    """The configuration for a directory; with None that of the engine, which ignores project files."""
    parts = list(_found(environment, cwd, system))
    files = [part for part in parts if isinstance(part, Settings)]
    written = _overlaid([_flat({name: key.built_in for name, key in KEYS.items()}, _BUILT_IN), *map(_of_file, files)])
    typed = {name: f"--{name.replace('_', '-')}" for name in flags or ()}
    values = _overlaid([written, _of_environment(environment), _given(flags or {}, typed)])
    table = _nested(values)
    named = table.get(_CLUSTER, {})
    shown = _flat({_CLUSTER: dict.fromkeys(named, _CLUSTER_BUILT_IN), _DEFAULTS: BUILT_IN}, _BUILT_IN)
    options = _nested(written)
    return Config(
        engine=EngineSettings(
            **{name: read_setting(name, table.get(name, {}), name) for name in KEYS},
            locked=limits_here(table.get(_LOCKED, {})),
        ),
        defaults=options.get(_DEFAULTS, {}),
        groups=options.get(_GROUP, {}),
        values=shown | values,  # for display only: JobOptions has None for them
        locked=table.get(_LOCKED, {}),
        clusters={name: _cluster_settings(cluster, environment) for name, cluster in named.items()},
        tables={section: table.get(section, {}) for section in feature_tables()},
        files=tuple(file.path for file in files),
        warnings=tuple(part.warning for part in parts if isinstance(part, Ignored)),
    )


def read_cluster(environment: Mapping[str, str], name: str, table: Mapping[str, object]) -> ClusterSettings:
    """The settings of a cluster as they would be with this table in the user's file, in place of one there."""
    checked = checked_clusters({name: dict(table)}, "here")[name]
    system = [_of_file(settings) for settings in read_settings(SYSTEM_FILE) if isinstance(settings, Settings)]
    below = _nested(_overlaid(system)).get(_CLUSTER, {}).get(name, {})
    return _cluster_settings({**below, **checked}, environment)


def config_here(say: Callable[[str], None]) -> Config:
    """The configuration for jobs of the current directory; `say` gets its warnings."""
    config = load_config(os.environ, Path(working_directory()))
    for warning in config.warnings:
        say(warning)
    return config


def _found(environment: Mapping[str, str], cwd: Path | None, system: Path) -> Iterator[Settings | Ignored]:
    """All files, weakest first."""
    yield from read_settings(system)
    user = user_file(environment)
    for settings in read_settings(user) if user is not None else ():
        if isinstance(settings, Settings) and _LOCKED in settings.table:
            raise UsageError(f"{settings.path}: [{_LOCKED}] counts only in {system}", "the administrator sets it there")
        yield settings
    if cwd is not None:
        yield from read_project(cwd)


def _overlaid(layers: Iterable[dict[Name, Value]]) -> dict[Name, Value]:
    return {name: value for layer in layers for name, value in layer.items()}


def _of_file(settings: Settings) -> dict[Name, Value]:
    """The values of a file, each checked even where a stronger file overrides it."""
    place = str(settings.path)
    for key, value in settings.table.items():
        if key not in KEYS and key not in (*_sections(), _LOCKED, *_OF_JOBS):
            _refuse_unknown(key, settings)
        if key not in _OF_JOBS and settings.project:
            header = _defaults_header(settings)
            raise UsageError(
                f"{place}: {key} cannot be set for one project, because one engine serves all your projects",
                f"set it in ~/.config/stoker/config.toml; here only job options under {header} count",
            )
        if key in KEYS:
            read_setting(key, value, f"{place}: {key}")
    named = {name: checked_tables(name, settings.table[name], place) for name in _sections() if name in settings.table}
    checked = {
        _DEFAULTS: checked_defaults(settings.table.get(_DEFAULTS, {}), place),
        _GROUP: checked_groups(settings.table.get(_GROUP, {}), place),
        **named,
        _LOCKED: checked_locked(settings.table.get(_LOCKED, {}), place),
    }
    return _flat({**settings.table, **checked}, place)


def _of_environment(environment: Mapping[str, str]) -> dict[Name, Value]:
    """STOKER_<KEY> of every setting and job option; empty counts as not set."""
    variables = {name: f"STOKER_{name.upper()}" for name in KEYS}
    given = _given({name: environment.get(variable) or None for name, variable in variables.items()}, variables)
    for option in OPTIONS:
        if option.variable and (raw := environment.get(option.variable)):
            given[(_DEFAULTS, option.name)] = Value(raw, option.variable)
    return given


def _given(settings: Mapping[str, object], places: Mapping[str, str]) -> dict[Name, Value]:
    """Settings of variables or flags, checked; None is not given. Each entry of a table can be overridden alone."""
    values: dict[Name, Value] = {}
    for name, raw in settings.items():
        if raw is not None:
            value = read_setting(name, raw, places[name])
            values |= _flat({name: value if isinstance(value, dict) else raw}, places[name])
    return values


def _flat(table: Mapping[str, Any], origin: str) -> dict[Name, Value]:
    values: dict[Name, Value] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            values |= {(key, *rest): inner for rest, inner in _flat(value, origin).items()}
        else:
            values[(key,)] = Value(value, origin)
    return values


def _nested(values: Mapping[Name, Value]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, value in values.items():
        inner = table
        for part in name[:-1]:
            inner = inner.setdefault(part, {})
        inner[name[-1]] = value.raw
    return table


def _refuse_unknown(key: str, settings: Settings) -> NoReturn:
    keys = _OF_JOBS if settings.project else (*KEYS, *_sections(), *_OF_JOBS)
    hint = did_you_mean(key, keys, f"known: {', '.join(keys)}")
    if key in BY_NAME:
        hint = f"{key} is a job option: put it under {_defaults_header(settings)}"
    raise UsageError(f"{settings.path}: unknown key {key!r}", hint)


def _defaults_header(settings: Settings) -> str:
    return "[tool.stoker.defaults]" if settings.path.name == "pyproject.toml" else "[defaults]"


class Rereading:
    """Reads the configuration again when one of its files changes; on an error the old one stays."""

    def __init__(self, environment: Mapping[str, str], load: Callable[[], Config], say: Callable[[str], None]) -> None:
        own = user_file(environment)
        self._files = [SYSTEM_FILE, *([own] if own else [])]
        self._load = load
        self._say = say
        self._stamps = [_stamp(path) for path in self._files]

    def news(self) -> Config | None:
        """The new configuration, if a file has changed and all can be read."""
        stamps = [_stamp(path) for path in self._files]
        if stamps == self._stamps:
            return None
        self._stamps = stamps  # also where it cannot be read: warn once
        try:
            config = self._load()
        except StokerError as error:
            self._say(f"{error}; the settings were not changed")
            return None
        for warning in config.warnings:
            self._say(warning)
        return config


def _stamp(path: Path) -> tuple[int, ...]:
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size
    return ()


def cluster_site(name: str, settings: ClusterSettings) -> Any:
    """The configuration of the site of a cluster, for an engine of this process."""
    return cluster_part("site", settings)(name, settings, current_user(), os.environ)


def cluster_part(what: str, settings: ClusterSettings) -> Any:
    """A function of the feature that has clusters of this kind."""
    path = getattr(FEATURES.get(settings.kind), what, "")
    if not path:
        raise UsageError("this installation has no clusters", f"the feature {settings.kind} was removed from it")
    return load(path)
