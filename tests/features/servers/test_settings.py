"""Servers are read from the configuration and from that of ssh; what cannot be meant is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.errors import UsageError
from stoker.features.servers.settings import checked_servers, server_named, server_of, ssh_names


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def test_words_of_ssh() -> None:
    """A server is reached by its name, by the words that are given, or is this machine."""
    assert server_of("gpu2", {}).ssh == ("ssh", "gpu2")
    assert server_of("gpu3", {"ssh": "ssh -J 'a gate' gpu3"}).ssh == ("ssh", "-J", "a gate", "gpu3")
    assert server_of("here", {"local": True}).ssh == ()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("ssh gpu2", "not a table"),
        ({"gpu2": "x"}, "is not a table"),
        ({"gpu2": {"port": 22}}, "unknown key 'port'"),
        ({"gpu2": {"ssh": 3}}, "ssh is 3"),
        ({"gpu2": {"ssh": "ssh"}}, "names no host"),
        ({"gpu2": {"ssh": "ssh -v"}}, "names no host"),
        ({"gpu2": {"ssh": "ssh 'gpu2"}}, "No closing quotation"),
        ({"gpu2": {"local": "yes"}}, "local is 'yes'"),
        ({"any": {}}, "means whichever"),
        ({"-oProxyCommand=x": {}}, "is not a name"),
    ],
)
def test_bad_tables(table: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        checked_servers(table, "config.toml")


def test_names_of_ssh(home: Path) -> None:
    """A host of ssh's configuration can be named at once; patterns are no hosts."""
    (home / ".ssh").mkdir()
    (home / ".ssh/config").write_text("Host gpu5 gpu6 *.lab !gpu7 # mine\n  Port 22\nHost *\n  user me\n")
    assert ssh_names() == ["gpu5", "gpu6"]
    assert server_named("gpu6").ssh == ("ssh", "gpu6")
    with pytest.raises(UsageError, match="no server 'gpu55'"):
        server_named("gpu55")


def test_configured_servers(home: Path) -> None:
    """The table of the configuration wins over a name of ssh."""
    (home / "config/stoker").mkdir(parents=True)
    (home / "config/stoker/config.toml").write_text('[servers.gpu5]\nssh = "ssh -p 7 five"\nbefore = "cd /"\n')
    server = server_named("gpu5")
    assert (server.ssh, server.before, server.host) == (("ssh", "-p", "7", "five"), "cd /", "-p 7 five")
