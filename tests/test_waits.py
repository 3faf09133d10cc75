"""No test waits without end: what could is found in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent

PROGRAMS = {"support/mps/client.py", "support/mps/scripted.py", "support/training_job.py"}
"""Programs that a test starts, and ends; support/wait.py is what the others use."""

RUNS = {f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output")}
ENDLESS_WITHOUT_ARGUMENT = {"wait", "join", "result", "acquire"}
ENDLESS = {"os.wait", "os.waitpid", "signal.pause"}


def endless(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines, and what could wait there for ever."""
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            started = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
            for call in started:
                if ast.unparse(call.func) == "subprocess.Popen":
                    yield call.lineno, "a block with a process waits for its end: use ending()"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and (why := endless_call(node)):
            yield node.lineno, why


def endless_call(call: ast.Call) -> str:
    """What is wrong with a call of a method, empty if nothing is."""
    assert isinstance(call.func, ast.Attribute)
    name, method = ast.unparse(call.func), call.func.attr
    limited = any(keyword.arg in {"timeout", None} for keyword in call.keywords)
    if name in ENDLESS and "WNOHANG" not in ast.unparse(call):
        return f"{name} has no limit: use wait_until()"
    if (name in RUNS or method == "communicate") and not limited:
        return f"{name} needs a timeout"
    if method in ENDLESS_WITHOUT_ARGUMENT and not call.args and not limited:
        return f"{name} needs a timeout"
    if method == "readline" and ast.unparse(call.func.value).endswith(("stdout", "stderr")):
        return f"{name} has no limit: use line_from()"
    if name == "select.select" and len(call.args) < 4:
        return f"{name} needs a timeout"
    return ""


def test_every_wait_has_a_limit() -> None:
    """A test that is stuck says where, instead of holding up all others."""
    found = [
        f"{path.relative_to(TESTS)}:{line}: {why}"
        for path in sorted(TESTS.rglob("*.py"))
        if str(path.relative_to(TESTS)) not in PROGRAMS
        for line, why in endless(ast.parse(path.read_text()))
    ]
    assert found == []
