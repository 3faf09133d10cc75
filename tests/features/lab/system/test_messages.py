"""A message to all users: every command shows it, but not to programs."""

from __future__ import annotations

from support.background import Background
from support.users import require_root


def test_every_command_shows_it(background: Background) -> None:
    """On standard error, once, escaped, until it is cleared."""
    require_root()
    ledger = background.paths.state / "ledger"
    background.environment["STOKER_LEDGER"] = str(ledger)
    assert background("message", "maintenance \x1b[31m at 18:00").code == 0
    for words in (["status"], ["history"], ["gpus", "--table"], ["submit", "-G", "0", "--", "true"]):
        said = background(*words).err
        assert said.count(r"maintenance \x1b[31m at 18:00") == 1, words
    for words in (["status", "--json"], ["gpus", "--plain"], ["submit", "--parsable", "-G", "0", "--", "true"]):
        outcome = background(*words)
        assert (outcome.code, "maintenance" in outcome.err + outcome.out) == (0, False), words
    assert "maintenance" in background("message").out
    for words in (["message", "x" * 201], ["message", "x", "--for", "400d"], ["message", "x", "--clear"]):
        assert background(*words).code == 2
    assert background("message", "--clear").code == 0
    assert "maintenance" not in background("status").err
