"""Runs at the start of every Python of a job with frozen code: modules of the user's tree come from the snapshot.

Path entries inside the tree lead to the same directory of the snapshot, whoever adds them, and a script of the tree
is started again from there. This file is copied into each snapshot. It works with Python 3.6 and newer, imports next
to nothing, and in the end runs the sitecustomize that it hides.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.abc import PathEntryFinder

FAILED = 97
"""Exit code of a Python that cannot use the snapshot: other code must not run in its place."""


class FrozenTree:
    """The checked-out snapshot of a tree."""

    def __init__(self, top: str, root: str) -> None:
        self.top = top
        self.real_top = os.path.realpath(top)
        self.roots = [root, os.path.realpath(root)]

    def place_of(self, path: str) -> str:
        """The place of a path in the snapshot; empty if it is not in the tree, or no part of the snapshot."""
        full = os.path.abspath(path or ".")
        if not full.startswith(self.roots[1] + "/") and full != self.roots[1]:
            full = os.path.realpath(full)  # a work tree has several paths if a link leads to it
        for root in self.roots:
            if full == root or full.startswith(root + "/"):
                place = self.top + full[len(root) :]
                real = os.path.realpath(place)  # what git ignores is linked, as an environment in the tree
                return place if os.path.exists(real) and (real + "/").startswith(self.real_top + "/") else ""
        return ""

    def start_again(self, words: "list[str]") -> None:
        """Replace this process, if it runs a script of the tree, by one that runs the script of the snapshot."""
        position = script_position(words)
        place = self.place_of(words[position]) if position else ""
        if place and os.path.isfile(place) and sys.executable:
            os.execv(sys.executable, words[:position] + [place] + words[position + 1 :])  # noqa: RUF005, S606

    def forbid_writing(self) -> None:
        """Refuse root what permissions refuse all others: results in the snapshot would be gone with it."""

        def check(event: str, arguments: "tuple[object, ...]") -> None:
            if event in ("open", "os.mkdir", "os.rename"):
                path = arguments[1 if event == "os.rename" else 0]
                writes = event != "open" or (
                    isinstance(arguments[2], int) and arguments[2] & (os.O_ACCMODE | os.O_CREAT)
                )
                if writes and isinstance(path, (str, bytes)):
                    text = os.path.abspath(os.fsdecode(path))
                    if text.startswith(self.top + "/") and "/__pycache__" not in text and self.place_of_real(text):
                        raise PermissionError(13, "The frozen code of this job is read-only", text)

        if hasattr(sys, "addaudithook"):
            sys.addaudithook(check)

    def place_of_real(self, path: str) -> bool:
        """Whether a path is really in the snapshot, and does not lead to what git ignores."""
        return (os.path.realpath(path) + "/").startswith(self.real_top + "/")

    def install(self) -> None:
        """Let every search path lead here, and the mappings of editable installs."""
        import _frozen_importlib_external as external

        find = external.FileFinder.path_hook(*external._get_supported_file_loaders())  # type: ignore[attr-defined]

        def finder_of(path: str) -> "PathEntryFinder":
            place = self.place_of(path) if isinstance(path, str) else ""
            if not place or not os.path.isdir(place):
                raise ImportError(path)
            return find(place)

        sys.path_hooks.insert(0, finder_of)
        sys.path_importer_cache.clear()
        for finder in sys.meta_path:
            mapping = getattr(sys.modules.get(getattr(finder, "__module__", "")), "MAPPING", {})
            for name, path in list(mapping.items()):
                mapping[name] = self.place_of(path) or path


def looks_for_tests(words: "list[str]") -> bool:
    """Whether a Python looks for tests in a directory: it refuses modules that come from another one."""
    names = words[: script_position(words) + 1][-1:]
    if "-m" in words[:-1]:
        names.append(words[words.index("-m") + 1])
    return any(os.path.basename(name) in ("pytest", "py.test", "unittest", "nose2") for name in names)


def script_position(words: "list[str]") -> int:
    """Where the words of a Python have a script; 0 if they have none."""
    position = 1
    while position < len(words) and words[position].startswith("-"):
        word = words[position]
        flags = "" if word.startswith("--") else word[1:]
        value = min([at for at in map(flags.find, "WX") if at >= 0] or [len(flags)])
        if word == "-" or set("cm") & set(flags[:value]):
            return 0
        position += 2 if word == "--check-hash-based-pycs" or value == len(flags) - 1 else 1
    return position if position < len(words) else 0


def words_of_process() -> "list[str]":
    """The command line of this process."""
    if hasattr(sys, "orig_argv"):
        return list(sys.orig_argv)
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


def run_hidden() -> None:
    """Run the sitecustomize that would have been found without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = (folder for folder in sys.path if folder and os.path.abspath(folder) != here)
    path = next(filter(os.path.isfile, (os.path.join(folder, "sitecustomize.py") for folder in others)), None)
    if path is not None:
        with open(path, "rb") as file:
            exec(compile(file.read(), path, "exec"), {"__name__": "sitecustomize", "__file__": path})  # noqa: S102


if os.environ.get("STOKER_CODE") and os.environ.get("STOKER_CODE_ROOT"):
    try:
        snapshot = FrozenTree(os.environ["STOKER_CODE"], os.environ["STOKER_CODE_ROOT"])
        if not os.path.isdir(snapshot.top):
            raise OSError("%s is not there" % snapshot.top)  # noqa: UP031
        words = words_of_process()
        if not looks_for_tests(words) or any(word.startswith(snapshot.top) for word in words):
            snapshot.start_again(words)
            snapshot.install()
        if os.geteuid() == 0:
            snapshot.forbid_writing()
    except Exception as error:
        sys.stderr.write("stoker: this Python cannot run the frozen code of the job: %s\n" % error)  # noqa: UP031
        sys.stderr.flush()
        os._exit(FAILED)
run_hidden()
