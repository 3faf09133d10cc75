"""Files of a hostile user: whatever they contain, the reader, screens and grants stay right."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.app.views.engines import EngineStatuses
from stoker.app.views.facts import QueueFacts
from stoker.app.views.gpus import _status, gpus_of
from stoker.app.views.status import status_of
from stoker.cli.screens.gpus import render_gpus
from stoker.cli.screens.plain import DEVICE_COLUMNS, plain_lines
from stoker.cli.screens.status import render_status
from stoker.core.device import Device
from stoker.core.lease import Claim, Lease, fits
from stoker.core.planner.fairshare import Demand, demands_ahead, yield_devices, yield_reason
from stoker.core.planner.plan import plan
from stoker.core.planner.reasons import sentence
from stoker.core.settings import Policy
from stoker.ledger import HeldLease, Ledger, prepare_ledger
from stoker.store.paths import Paths
from stoker.store.writer import Store, open_store
from support.build import GIB, a_job, a_need, a_queue, a_snapshot
from support.hostile import hostile, mutated
from support.ledger_files import lease_name, planted
from support.views import texts

NOW = 1_800_000_000.0
GPUS = tuple(Device(name, name, name, (name,), "nvidia", memory=24 * GIB) for name in "AB")
LEASE = (
    b'{"version":1,"claims":[{"name":"A","memory":6442450944,"share":4,"load":40},{"name":"C","mps":true}],'
    b'"pid":4711,"what":"train.py","since":1799999000.25}'
)
WHOLE = b'{"version":1,"claims":[{"name":"A"}],"pid":4711,"what":"","since":1799999000.0}'
DEMAND = (
    b'{"version":1,"usage":12.5,"since":1799999000.25,"gpus":1,"pid":4711,"what":"sweep","claims":["A","B"],"least":1}'
)
_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
_json = _values | st.lists(_values, max_size=3) | st.dictionaries(st.text(max_size=8), _values, max_size=3)


def _of_fields(valid: bytes) -> st.SearchStrategy[bytes]:
    """JSON with the names of the valid object, and any values."""
    fields = {name: _json | st.just(value) for name, value in msgspec.json.decode(valid).items()}
    return st.fixed_dictionaries({}, optional=fields).map(_encoded)


def _encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return repr(value).encode(errors="surrogatepass")


class Ground:
    """A ledger in which device B is held, and a queue whose screens show it."""

    def __init__(self, directory: Path) -> None:
        self.ledger = Ledger(prepare_ledger(directory / "ledger"))
        paths = Paths(directory / "state")
        paths.state.mkdir()
        self.store: Store = open_store(paths)
        held = self.ledger.claim((Claim("B"),), "honest", NOW)
        assert held
        self.held: HeldLease = held

    def close(self) -> None:
        self.ledger.release(self.held)
        self.store.close()

    @contextmanager
    def knowing(self, leases: tuple[Lease, ...]) -> Iterator[QueueFacts]:
        status = _status(a_snapshot(GPUS), leases, NOW)
        with self.store.reading():
            yield QueueFacts(self.store, EngineStatuses(status, lives=False), NOW, simulated=False)


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    directory = Path(tempfile.mkdtemp(prefix="stoker-test-"))
    made = Ground(directory)
    yield made
    made.close()
    shutil.rmtree(directory)


@contextmanager
def dropped(ledger: Ledger, name: str, contents: bytes) -> Iterator[None]:
    """A locked file that is removed at the end."""
    with planted(ledger, name, contents) as path:
        try:
            yield
        finally:
            path.unlink()


def shown(ground: Ground, leases: tuple[Lease, ...]) -> str:
    """All forms of `stoker gpus` and `stoker status` with these leases of others."""
    with ground.knowing(leases) as facts:
        gpus, status = gpus_of(facts), status_of(facts, "lab7", 10)
        screens = texts([*render_gpus(gpus, 100), *render_status(status, 100, 40)])
        data = [msgspec.json.encode(each).decode() for each in (gpus, status)]
        return "".join([*screens, *plain_lines(gpus.devices, DEVICE_COLUMNS), *data]).replace("\t", "")


@hostile
@given(mutated(LEASE) | mutated(WHOLE) | _of_fields(LEASE))
@example(LEASE.replace(b"1799999000.25", b"1e300"))
@example(LEASE.replace(b"1799999000.25", b"253402300900"))
@example(LEASE.replace(b"4711", b"9" * 4000))
@example(LEASE.replace(b"6442450944", b"1180591620717411303424"))
def test_mutated_leases(ground: Ground, contents: bytes) -> None:
    """A mutated lease counts or gets a warning; screens show it; no device is planned or granted beside it."""
    ledger = ground.ledger
    with dropped(ledger, lease_name(), contents):
        view = ledger.live()
        others = tuple(lease for name, lease in view.leases.items() if name != ground.held.name)
        assert view.leases[ground.held.name] == ground.held.lease
        assert len(others) + len(view.warnings) == 1
        assert all(warning.isprintable() for warning in view.warnings)
        assert not others or shown(ground, others).isprintable()
        decided = plan(a_queue(a_job(1, a_need(1))), [], a_snapshot(GPUS), others, Policy(), NOW)
        taken = {claim.name for lease in others for claim in lease.claims}
        assert not any(taken & set(start.devices) for start in decided.starts)
        assert all(sentence(reason).isprintable() for _, reason in decided.waits.items())
        claim = Claim("A", GIB, 2)
        granted = ledger.claim((claim,), "mine", NOW, {"A": 24 * GIB})
        assert bool(granted) == fits((claim,), others, {"A": 24 * GIB})
        if granted:
            ledger.release(granted)
        assert ledger.claim((Claim("B", GIB, 64),), "mine", NOW) is None


@hostile
@given(mutated(DEMAND) | _of_fields(DEMAND))
@example(DEMAND.replace(b"1799999000.25", b"-1e300"))
@example(DEMAND.replace(b"12.5", b"1e308"))
def test_mutated_demands(ground: Ground, contents: bytes) -> None:
    """A mutated demand counts or gets a warning, and an engine can decide whether to yield to it."""
    ledger = ground.ledger
    with dropped(ledger, lease_name().replace(".lease", ".demand"), contents):
        view = ledger.live()
        assert len(view.demands) + len(view.warnings) == 1
        assert list(view.leases) == [ground.held.name]
        mine = Demand(77, "me", 1.0, NOW - 5)
        ahead = demands_ahead(view.demands, "mine", mine)
        step = yield_devices(ahead, ["A", "B"], {}, NOW)
        assert set(step.left) <= {"A", "B"}
        assert all(sentence(yield_reason(demand, mine)).isprintable() for demand in step.left.values())
        assert ledger.claim((Claim("B"),), "mine", NOW) is None
