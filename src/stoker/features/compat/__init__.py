"""The older tools: their commands, and the import names under which scripts know them."""

from __future__ import annotations

import signal


def run_program(module: str, function: str = "main") -> int:
    """Import a program and run it. Ctrl-C during the import ends the process by the signal, without a traceback."""
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from importlib import import_module

    program = getattr(import_module(module), function)
    try:
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code: int = program()
    except KeyboardInterrupt:  # outside of the part that handles it
        code = 128 + signal.SIGINT
    return code


def run_simple_gpu_scheduler() -> int:
    """The console script simple_gpu_scheduler."""
    return run_program("stoker.features.compat.simple_gpu_scheduler")


def run_simple_hypersearch() -> int:
    """The console script simple_hypersearch."""
    return run_program("stoker.features.compat.simple_hypersearch", "generate_commands")
