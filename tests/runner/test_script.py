"""Scripts that were forked from a template: the same output, exit code and signal as in a new Python."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from stoker.runner.journal import AttemptExited
from support.local import Yard

SHOWN = """
import sys, os
print(__name__, __file__, sys.argv, sys.orig_argv, __spec__ and __spec__.name, __package__, __cached__ is None)
print(type(__loader__).__name__, sorted(globals()), sys.modules["__main__"].__dict__ is globals())
print(sys.path, sys.flags, sys.warnoptions, sys._xoptions, sys.executable, sys.prefix)
print(sys.stdout.line_buffering, sys.stdout.write_through, sys.stdout.encoding, sys.stdin.read())
print(sys._getframe().f_code.co_filename, os.environ.get("LC_CTYPE"))
"""
POOL = """
import multiprocessing, sys
def square(number):
    return number * number
if __name__ == "__main__":
    print(multiprocessing.current_process().name, multiprocessing.parent_process())
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        print(pool.map(square, range(4)))
"""
FAILING = """
def inner():
    raise ValueError("no")
try:
    {}["missing"]
except KeyError:
    inner()
"""
PROGRAMS: dict[str, tuple[str, Sequence[str]]] = {
    "shown": (SHOWN, ()),
    "fork pool": (POOL, ("fork",)),
    "spawn pool": (POOL, ("spawn",)),
    "traceback": (FAILING, ()),
    "syntax error": ("x = = 1", ()),
    "exit 3": ("import sys; print('a', end=''); sys.exit(3)", ()),
    "exit with a text": ("raise SystemExit('over')", ()),
    "interrupt": ("import atexit; atexit.register(print, 'bye'); raise KeyboardInterrupt", ()),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", ()),
    "atexit": ("import atexit; atexit.register(print, 'late'); print('early')", ()),
    "thread": (
        "import threading, time\ndef late():\n    time.sleep(0.2)\n    print('late')\n"
        "threading.Thread(target=late).start()",
        (),
    ),
    "own hook": ("import sys; sys.excepthook = lambda *error: print('mine', error[0].__name__); 1 / 0", ()),
    "deleted object": ("class A:\n    def __del__(self):\n        print('deleted')\na = A()\nb = [a]\nb.append(b)", ()),
    "exit with an odd code": ("raise SystemExit(-1)", ()),
    "exit in a hook": ("import atexit, os; atexit.register(os._exit, 9)", ()),
    "error in a hook": (
        "import atexit\nclass Hook:\n    def __call__(self):\n        1 / 0\n"
        "    def __repr__(self):\n        return 'hook'\natexit.register(Hook()); print('on')",
        (),
    ),
    "output before an error": ("print('first'); raise ValueError", ()),
    "output before a text": ("print('first'); raise SystemExit('over')", ()),
    "error in a thread": ("import threading; threading.Thread(target=lambda: 1 / 0, name='t').start()", ()),
    "output of a library": ("import ctypes; ctypes.CDLL(None).puts(b'from C')", ()),
    "closed output": ("import sys; sys.stdout.close(); sys.exit(4)", ()),
    "warning": ("import warnings; warnings.warn('careful'); int.__doc__ is 'x'", ()),
    "no exit": ("import os; print('lost', end=''); os._exit(0)", ()),
    "reference of itself": (
        "import __main__, pickle\nclass A: pass\nprint(pickle.loads(pickle.dumps(A())).__class__)",
        (),
    ),
    "deep recursion": (
        "import sys\ndef down(number):\n    return number and down(number - 1)\n"
        "print(down(sys.getrecursionlimit() - 12))",
        (),
    ),
    "signals": (
        "import signal\nprint([str(signal.getsignal(number)) for number in sorted(signal.valid_signals())])",
        (),
    ),
}


def test_an_unclosed_file_is_written(works: Yard) -> None:
    """What the script leaves open is written at its end."""
    (works.directory / "program.py").write_text("file = open('left', 'w')\nfile.write('text')")
    works.fork("1.1", works.template("json"), "program.py")
    works.wait_over()
    assert (works.directory / "left").read_text() == "text"


def ends(works: Yard, options: Sequence[str], kind: str, *words: str) -> list[tuple[AttemptExited, str]]:
    """The end and the log of a command in a new Python, and in one that was forked."""
    start = (sys.executable, *options)
    cold = works.runner.start_worker()
    works.start(cold, "1.1", *start, *(["-m"] if kind == "module" else []), *words)
    works.fork("2.1", works.template("json", start=start), *words, kind=kind)
    return [(works.wait_over(attempt), works.log(attempt).read_text()) for attempt in ("1.1", "2.1")]


def assert_same(works: Yard, options: Sequence[str], kind: str, *words: str) -> str:
    (cold, cold_log), (warm, warm_log) = ends(works, options, kind, *words)
    assert warm_log == cold_log
    assert (warm.code, warm.signal, warm.why) == (cold.code, cold.signal, cold.why)
    assert "started cold" not in warm_log
    return warm_log


@pytest.mark.parametrize("name", PROGRAMS)
def test_file(works: Yard, name: str) -> None:
    """A file, by its relative path."""
    text, arguments = PROGRAMS[name]
    (works.directory / "program.py").write_text(text)
    assert_same(works, (), "file", "program.py", *arguments)


@pytest.mark.parametrize("options", [("-u",), ("-X", "dev"), ("-W", "error"), ("-O",), ("-P",), ("-I",), ("-B", "-s")])
def test_options_of_python(works: Yard, options: Sequence[str]) -> None:
    """The template has the options of the command."""
    (works.directory / "program.py").write_text(SHOWN)
    assert_same(works, options, "file", "./program.py", "--flag")


@pytest.mark.parametrize("name", ["shown", "spawn pool", "traceback", "exit 3"])
def test_module(works: Yard, name: str) -> None:
    """A module of a package, as after -m; `python -m package` runs its `__main__`."""
    text, arguments = PROGRAMS[name]
    package = works.directory / "package"
    package.mkdir()
    for file in ("__init__", "part", "__main__"):
        (package / f"{file}.py").write_text(text if file != "__init__" else "")
    assert_same(works, (), "module", "package.part", *arguments)


def test_other_places(works: Yard, tmp_path: Path) -> None:
    """A script in another directory, through a symbolic link, looks for modules beside its real file."""
    place = tmp_path / "real"
    place.mkdir()
    (place / "beside.py").write_text("print('found')")
    (place / "program.py").write_text(f"import beside\n{SHOWN}")
    (works.directory / "link.py").symlink_to(place / "program.py")
    assert "found" in assert_same(works, (), "file", "link.py")


@pytest.mark.parametrize("target", ["missing.py", "directory", "cached.pyc"])
def test_left_to_python(works: Yard, target: str) -> None:
    """Python itself starts, or refuses, all that is no readable text."""
    if target == "directory":
        (works.directory / target).mkdir()
        (works.directory / target / "__main__.py").write_text("print('of the directory')")
    (cold, cold_log), (warm, warm_log) = ends(works, (), "file", target)
    assert warm.code == cold.code
    assert warm_log == f"stoker: started cold: {target} is not a readable script\n{cold_log}"
