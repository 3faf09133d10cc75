"""Opens the store and looks at the engines for one screen."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from stoker.cli.screens.engine_views import Views, look
from stoker.cli.screens.knowledge import Knowledge
from stoker.devices.owners import user_name
from stoker.places import Places
from stoker.queue import open_store


@contextlib.contextmanager
def known(places: Places, *, simulated: bool, views: Views | None = None) -> Iterator[Knowledge]:
    """All that is known now; the engines are asked before the store, which then stands still for a moment."""
    now = time.time()
    seen = views or look(places, now)
    with contextlib.closing(open_store(places)) as store, store.glance():
        yield Knowledge(store, seen, now, user_name(os.geteuid()), simulated=simulated)
