"""Freeze the code of jobs at submit."""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from msgspec.structs import replace

from stoker.app.jobs.preparation import PreparationContext, PreparedJob
from stoker.core.errors import StokerError
from stoker.core.spec import Command, JobSpec
from stoker.features.freeze.code import FrozenCode, code_of, field_of
from stoker.features.freeze.command import StartedCode, started_by
from stoker.features.freeze.listing import MOST, USUAL, NotFreezable, work_tree_of
from stoker.features.freeze.snapshots import SnapshotStore
from stoker.features.freeze.take import Taken, forget, take


class _Wish(NamedTuple):
    """The facts that decide on the code of a job; equal for most jobs of a batch."""

    started: StartedCode
    cwd: str
    freeze: str
    cluster: str
    asked: bool


class CodeFreezer:
    """Takes one snapshot of each tree that the jobs of a submit run code of; a `Preparation`."""

    def __init__(self, context: PreparationContext) -> None:
        self._context = context
        self._codes: dict[_Wish, FrozenCode] = {}
        self._specs: dict[tuple[JobSpec, str], JobSpec] = {}
        self._taken: dict[tuple[str, str], Taken | NotFreezable] = {}
        self._files: dict[tuple[str, str], frozenset[str]] = {}
        self._last: tuple[JobSpec, StartedCode, PreparedJob] | None = None

    def prepare(self, command: Command, spec: JobSpec) -> PreparedJob:
        if spec.freeze == "no" or spec.role != "job" or (self._context.starts_now and not spec.freeze):
            return PreparedJob(spec)
        started = started_by(command)
        if self._context.arrived:
            return self._with_arrived(started, spec)
        # Most lines of a list start what the line before started.
        if self._last is None or self._last[0] is not spec or self._last[1] != started:
            self._last = spec, started, self._prepared(started, spec)
        return self._last[2]

    def _prepared(self, started: StartedCode, spec: JobSpec) -> PreparedJob:
        wish = _Wish(started, spec.cwd, spec.freeze, spec.cluster, bool(spec.freeze))
        if wish not in self._codes:
            self._codes[wish] = self._decide(wish)
        code = self._codes[wish]
        field = field_of(code)
        if not field:
            return PreparedJob(spec)
        if (spec, field) not in self._specs:
            self._specs[spec, field] = replace(spec, code=field)
        return PreparedJob(self._specs[spec, field], bool(code.snapshot) and self._holds(wish))

    def _with_arrived(self, started: StartedCode, spec: JobSpec) -> PreparedJob:
        """The job with code that came from another machine."""
        code = self._context.arrived
        if (spec, code) not in self._specs:
            self._specs[spec, code] = replace(spec, code=code)
        snapshot = self._store("").snapshot(code_of(code).snapshot)
        path = os.path.relpath(os.path.join(spec.cwd, started.name), snapshot.root)
        holds = started.kind == "file" and any(file.path == path for file in snapshot.files)
        return PreparedJob(self._specs[spec, code], holds)

    def keep(self) -> None:
        """Make the trees again that were removed meanwhile."""
        for (cluster, root), taken in list(self._taken.items()):
            if isinstance(taken, Taken):
                self._keep(cluster, root, taken)

    def _decide(self, wish: _Wish) -> FrozenCode:
        """Take the snapshot, unless there is none to take or it cannot be taken."""
        kind = wish.started.kind
        if not wish.asked and kind not in ("file", "module", "alone", "call"):
            return FrozenCode()
        if kind == "alone":
            text = f"python -m {wish.started.name} is started with -E, -I or -S"
            return self._refused(wish, NotFreezable(text, "leave that out, or add --no-freeze"))
        root = self._root(wish)
        if not root or (_is_home(root) and not wish.asked):  # as one that holds a user's configuration files
            return FrozenCode(reason="its code is in no git work tree")
        taken = self._take(wish.cluster, root, asked=wish.asked)
        if isinstance(taken, NotFreezable):
            return self._refused(wish, taken)
        return FrozenCode(taken.snapshot.id, wish.freeze == "tree")

    def _refused(self, wish: _Wish, why: NotFreezable) -> FrozenCode:
        """Say why code is not frozen; an error if the user asked for it."""
        if wish.asked:
            raise why
        self._context.say(f"the code is not frozen: {why.message}; {why.hint}")
        return FrozenCode(reason=why.message)

    def _root(self, wish: _Wish) -> str:
        """The tree of what a command starts, else of its directory; empty if there is none."""
        kind, name = wish.started
        places = [wish.cwd]
        if kind == "file":
            path = os.path.join(wish.cwd, name)
            if not os.path.isfile(path):
                if not wish.asked:
                    return ""
            else:
                places = [os.path.dirname(os.path.realpath(path)), wish.cwd]
        elif kind == "call":
            places = [*filter(None, [_folder_of_function(name)]), wish.cwd]
        for place in places:
            if root := work_tree_of(os.path.realpath(place)):
                return root
        if not wish.asked:
            return ""
        return os.path.realpath(places[0] if kind == "file" and not _is_in(places[0], wish.cwd) else wish.cwd)

    def _take(self, cluster: str, root: str, *, asked: bool) -> Taken | NotFreezable:
        key = (cluster, root)
        if key not in self._taken:
            self._taken[key] = self._taken_now(cluster, root, asked=asked)
        return self._taken[key]

    def _taken_now(self, cluster: str, root: str, *, asked: bool) -> Taken | NotFreezable:
        if root == "/" or _is_home(root):
            return NotFreezable(f"{root} is no project", "submit from the directory of one, or add --no-freeze")
        try:
            taken = take(root, self._store(cluster), self._context.environment, MOST if asked else USUAL)
        except NotFreezable as error:
            return error
        return self._keep(cluster, root, taken)

    def _keep(self, cluster: str, root: str, taken: Taken) -> Taken:
        """Make the tree; if contents were removed meanwhile, read the files again."""
        store = self._store(cluster)
        try:
            if not store.keep(taken.snapshot):
                forget(root, store)
                again = take(root, store, self._context.environment, MOST)
                if again.snapshot.id != taken.snapshot.id or not store.keep(again.snapshot):
                    raise StokerError(f"the code of {root} changed while it was being frozen", "submit again")
            store.link(taken.snapshot, taken.others)
        except OSError as error:
            raise StokerError(
                f"cannot freeze the code of {root} in {store.folder}: {error.strerror}",
                "nothing was submitted; free some space there, or add --no-freeze",
            ) from error
        return taken

    def _store(self, cluster: str) -> SnapshotStore:
        return SnapshotStore(self._context.place_of(cluster).code)

    def _holds(self, wish: _Wish) -> bool:
        """Whether the file that a command starts is in the snapshot."""
        if wish.started.kind != "file":
            return False
        path = os.path.realpath(os.path.join(wish.cwd, wish.started.name))
        root = self._root(wish)
        taken = self._taken.get((wish.cluster, root))
        if not isinstance(taken, Taken):
            return False
        key = (wish.cluster, root)
        if key not in self._files:
            self._files[key] = frozenset(file.path for file in taken.snapshot.files)
        return os.path.relpath(path, root) in self._files[key]


def _folder_of_function(name: str) -> str:
    """The directory of the module, or of the script, that defines a function of this process; empty if it has none."""
    parts = name.split(".")
    names = (".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))
    module = next((sys.modules[name] for name in names if name in sys.modules), None)
    file = getattr(module, "__file__", None)
    return os.path.dirname(os.path.abspath(file)) if file else ""


def _is_home(root: str) -> bool:
    return root == os.path.realpath(os.path.expanduser("~"))


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")
