"""Which words of a command line go to which server."""

from __future__ import annotations

import pytest

from stoker.cli.options import CommandElsewhere
from stoker.core.errors import UsageError
from stoker.features.servers import forward
from stoker.features.servers.settings import SshServer

SERVERS = {name: SshServer(name, ("ssh", name)) for name in ("gpu2", "gpu3")}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that would run on servers, each after the name of its server."""
    lines: list[list[str]] = []

    def run(server: SshServer, words: list[str], *, terminal: bool) -> int:
        lines.append([server.name, *words])
        return 7

    monkeypatch.setattr(forward, "run_attached", run)
    monkeypatch.setattr(forward, "servers", lambda: SERVERS)
    monkeypatch.setattr(forward, "ssh_names", list)
    monkeypatch.setattr(forward, "server_named", SERVERS.__getitem__)
    return lines


def line(text: str, *ids: str, server: str = "") -> CommandElsewhere:
    command, *words = text.split()
    return CommandElsewhere(command, tuple(words), ids, server)


@pytest.mark.parametrize(
    ("typed", "there"),
    [
        (line("wait gpu2:12", "gpu2:12"), "gpu2 wait 12"),
        (line("logs -f gpu2:12.3 -n 5", "gpu2:12.3"), "gpu2 logs -f 12.3 -n 5"),
        (line("cancel gpu2:3,gpu2:7-9 gpu2:last", "gpu2:3,gpu2:7-9", "gpu2:last"), "gpu2 cancel 3,7-9 last"),
        (line("status -S gpu3", server="gpu3"), "gpu3 status"),
        (line("status --server=gpu3 -a", server="gpu3"), "gpu3 status -a"),
        (line("cancel -Sgpu3 4 gpu3:5", "4", "gpu3:5", server="gpu3"), "gpu3 cancel 4 5"),
        (line("shell -S gpu3 -G 1 python -S gpu2", server="gpu3"), None),
    ],
)
def test_words(sent: list[list[str]], typed: CommandElsewhere, there: str | None) -> None:
    """The name of the server goes, all else stays; the exit code is that of the command there."""
    if there is None:
        with pytest.raises(UsageError, match="needs a terminal"):
            forward.forward(typed)
    else:
        assert forward.forward(typed) == 7
        assert sent == [there.split()]


def test_first_option_only() -> None:
    """The same word in the command of a session stays."""
    words = forward._without_server(["-S", "gpu3", "-G", "1", "python", "-S", "gpu2"])
    assert words == ["-G", "1", "python", "-S", "gpu2"]


def test_names_with_colons(sent: list[list[str]]) -> None:
    """A job's name that begins with no server is a name of this machine."""
    assert forward.forward(line("wait lr:0.1", "lr:0.1")) is None
    assert not sent


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (line("wait gpu2:1 gpu3:2", "gpu2:1", "gpu3:2"), "several machines"),
        (line("wait gpu2:1 4", "gpu2:1", "4"), "several machines"),
        (line("wait -S gpu3 gpu2:1", "gpu2:1", server="gpu3"), "several machines"),
        (line("status -S any", server="any"), "for new jobs"),
    ],
)
def test_refused(sent: list[list[str]], typed: CommandElsewhere, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        forward.forward(typed)
    assert not sent
