"""Where the server listens: on the loopback interface only, or on a socket that only this user can reach."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from stoker.core.errors import StokerError
from stoker.store.paths import Paths
from stoker.store.web_server import WebLock, WebServer, running_web_server, web_token
from stoker.web.server import listening
from support.ports import reserved_port


def test_a_port(tmp_path: Path) -> None:
    """The one that was asked for, on 127.0.0.1; one that is in use is refused with a hint."""
    with reserved_port() as port, listening(Paths(tmp_path), port, None) as (listener, address):
        assert (listener.getsockname(), address) == (("127.0.0.1", port), f"http://127.0.0.1:{port}")
        with (
            pytest.raises(StokerError, match="another program uses it") as raised,
            listening(Paths(tmp_path), port, None),
        ):
            pass
        assert "--port" in raised.value.hint


def test_tunnels_stay_valid(tmp_path: Path) -> None:
    """The port and the token of the last server are used again, unless the port is taken by now."""
    paths = Paths(tmp_path)
    with reserved_port() as port:
        lock = WebLock(paths)
        lock.announce(WebServer(1, f"http://127.0.0.1:{port}"))
        lock.close()
        with listening(paths, None, None) as (_, address):
            assert address == f"http://127.0.0.1:{port}"
            with listening(paths, None, None) as (_, other):
                assert other != address
    assert web_token(paths) == web_token(paths) != web_token(paths, new=True)
    assert stat.S_IMODE(paths.web_token.stat().st_mode) == 0o600


def test_a_short_token_is_replaced(tmp_path: Path) -> None:
    """As one that a full disk cut off."""
    paths = Paths(tmp_path)
    paths.web_token.write_text("abc")
    assert len(web_token(paths)) >= 32


def test_a_socket(tmp_path: Path) -> None:
    """Only its owner can connect; what a killed server left is replaced, and it is removed at the end."""
    path = tmp_path / "web.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with listening(Paths(tmp_path), None, str(path)) as (_, address):
        assert (address, stat.S_IMODE(path.stat().st_mode)) == (str(path), 0o600)
        with pytest.raises(StokerError, match="another program listens"), listening(Paths(tmp_path), None, str(path)):
            pass
    assert not path.exists()


@pytest.mark.parametrize("name", ["file", "missing/web.sock", "x" * 200])
def test_a_path_that_cannot_be_a_socket(tmp_path: Path, name: str) -> None:
    """A file is kept, and the error says what to do."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StokerError) as raised, listening(Paths(tmp_path), None, str(tmp_path / name)):
        pass
    assert raised.value.hint == "give another path"
    assert (tmp_path / "file").read_text() == "mine"


def test_one_server_for_a_queue(tmp_path: Path) -> None:
    """Its lock tells that it lives, and its file where it is; the file of a dead one tells nothing."""
    paths = Paths(tmp_path)
    assert running_web_server(paths) is None
    lock = WebLock(paths)
    assert running_web_server(paths) is None  # it has not said where it listens
    lock.announce(WebServer(os.getpid(), "http://127.0.0.1:7717"))
    found = running_web_server(paths)
    assert found is not None
    assert found.address == "http://127.0.0.1:7717"
    with pytest.raises(StokerError, match="runs already"):
        WebLock(paths)
    lock.close()
    assert running_web_server(paths) is None
