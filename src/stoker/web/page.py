"""The built pages: files of the package, of which all but those of HTML have a digest in their names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Route

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
BUILD = "in a copy of the source, type: make web (it needs node 20 or newer)"
"""How to get the page if it is missing."""
_FOREVER = "private, max-age=31536000, immutable"
_MISSING = f"""<!doctype html><meta charset="utf-8"><title>Stoker</title>
<h1>This installation of Stoker has no page</h1><p>It was installed without it: {BUILD}.</p>
<p>The API works: <a href="api/v1/status">api/v1/status</a></p>
"""


def is_built(index: str = INDEX) -> bool:
    return (FOLDER / index).is_file()


def routes(index: str = INDEX) -> list[BaseRoute]:
    """A route for each file: no part of a request becomes a path. The root is the file that is named."""
    files = [Route(f"/{name}", _asset(path)) for name, path in _files() if name != INDEX]
    return [Route("/", _first(index)), *files]


def _files() -> Iterator[tuple[str, Path]]:
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file():
            yield path.relative_to(FOLDER).as_posix(), path


def _first(index: str) -> Callable[[Request], Awaitable[Response]]:
    async def send(_request: Request) -> Response:
        if not is_built(index):
            return HTMLResponse(_MISSING)
        return FileResponse(FOLDER / index, headers={"Cache-Control": "no-cache"})

    return send


def _asset(path: Path) -> Callable[[Request], Awaitable[Response]]:
    hashed = path.parent.name == "assets"

    async def send(_request: Request) -> Response:
        return FileResponse(path, headers={"Cache-Control": _FOREVER if hashed else "no-cache"})

    return send
