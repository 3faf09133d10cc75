"""What `engine check` finds: every matter in the states it can be in, made for the test."""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from stoker.app.service.doctor import (
    Subject,
    Verdict,
    check_config,
    check_disk,
    check_engine,
    check_install,
    check_ledger,
    check_leftovers,
    check_limits,
    check_logout,
    check_queue,
    check_state,
    check_unit,
    check_variables,
    diagnose,
    judge_absence,
    judge_processes,
    nvidia_cards,
)
from stoker.app.service.systemd_unit import unit_path, unit_text, write_unit
from stoker.core.lease import Claim
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.ledger import Ledger, prepare_ledger
from stoker.store.engine_lock import QUEUE, EngineLock
from stoker.store.paths import Paths
from stoker.store.schema import VERSION
from stoker.store.status_file import EngineStatus
from stoker.store.writer import Store
from support.nvml import DRIVER_NOT_LOADED, GPU_IS_LOST, VERSION_MISMATCH, Bench, FakeGpu, FakeMachine, compiled

_CHECK_GPUS = """
import pathlib
import msgspec
from stoker.app.service.doctor import Subject, check_gpus
from stoker.store.paths import Paths
subject = Subject(Paths(pathlib.Path("/")), {}, simulated=False)
print(msgspec.json.encode(list(check_gpus(subject))).decode())
"""


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    """A queue of its own, with a ledger of its own."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "engines").mkdir()
    environment = {"STOKER_LEDGER": str(tmp_path / "ledger"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    return Subject(Paths(state), environment, simulated=False, known_variables=frozenset({"STOKER_GPUS"}))


@contextlib.contextmanager
def queue_of(subject: Subject, engine: str = QUEUE) -> Iterator[Store]:
    """The queue, with one job that waits for an engine."""
    with contextlib.closing(Store(subject.paths.database)) as store:
        spec = JobSpec(environment=store.add_environment({}))
        store.add_jobs(store.add_batch("test", 0.0), engine, [NewJob(Command(("true",), ""), spec)], 0.0)
        yield store


def only(verdicts: Iterable[Verdict]) -> Verdict:
    """The only verdict."""
    (verdict,) = verdicts
    return verdict


def levels(verdicts: Iterable[Verdict]) -> list[str]:
    """How bad each of them is."""
    return [verdict.level for verdict in verdicts]


def test_a_well_machine_has_no_problem(subject: Subject) -> None:
    """Every check runs, and a machine without problems has none."""
    simulated = msgspec.structs.replace(subject, simulated=True)
    found = list(diagnose(simulated))
    topics = {verdict.topic for verdict in found}
    assert {"state", "disk", "queue", "engine", "ledger", "gpus", "config", "variables", "logout", "limits"} <= topics
    assert [verdict for verdict in found if verdict.level == "problem"] == []


def test_one_matter_that_cannot_be_seen_hides_no_other(subject: Subject) -> None:
    """Without its state directory the other checks still run."""
    gone = msgspec.structs.replace(subject, simulated=True, paths=Paths(subject.paths.state / "gone"))
    found = list(diagnose(gone))
    assert "cannot check this" in next(each.text for each in found if each.topic == "disk")
    assert "limits" in {verdict.topic for verdict in found}


class TestPlace:
    """The state directory."""

    def test_a_local_one_is_well(self, subject: Subject) -> None:
        """Its file system is named, and how much is free."""
        assert only(check_state(subject)).level == "ok"
        assert "free for" in only(check_disk(subject)).text

    def test_one_that_was_moved_off_a_network(self, subject: Subject) -> None:
        """Where it is now is said."""
        moved = msgspec.structs.replace(subject, paths=Paths(subject.paths.state, "/home/x is on nfs4"))
        verdict = only(check_state(moved))
        assert (verdict.level, verdict.text) == ("note", "/home/x is on nfs4")

    def test_one_that_was_chosen_on_a_network(self, subject: Subject, tmp_path: Path) -> None:
        """STOKER_STATE wins, and is a problem."""
        mounts = tmp_path / "mountinfo"
        mounts.write_text("20 1 0:20 / / rw - nfs4 server:/ rw\n")
        verdict = only(check_state(subject, str(mounts)))
        assert (verdict.level, "STOKER_STATE" in verdict.advice) == ("problem", True)


class TestQueue:
    """The file of the queue."""

    def test_none_and_a_whole_one(self, subject: Subject) -> None:
        """Both are well."""
        assert only(check_queue(subject)).level == "ok"
        with queue_of(subject):
            assert only(check_queue(subject)).level == "ok"

    def test_a_damaged_one(self, subject: Subject) -> None:
        """What SQLite finds is a problem, and the file is left as it is."""
        with queue_of(subject):
            pass
        body = bytearray(subject.paths.database.read_bytes())
        body[4096 * 2 : 4096 * 4] = b"\xaa" * 8192
        subject.paths.database.write_bytes(body)
        assert only(check_queue(subject)).level == "problem"
        assert subject.paths.database.read_bytes() == bytes(body)

    def test_one_that_is_none(self, subject: Subject) -> None:
        """Something else lies under its name."""
        subject.paths.database.write_text("no database " * 1000)
        assert only(check_queue(subject)).level == "problem"

    def test_one_of_a_newer_version(self, subject: Subject) -> None:
        """It is left to the newer program."""
        with contextlib.closing(sqlite3.connect(subject.paths.database)) as database:
            database.execute(f"PRAGMA user_version = {VERSION + 1}")
        verdict = only(check_queue(subject))
        assert (verdict.level, "upgrade Stoker" in verdict.advice) == ("problem", True)


class TestEngine:
    """Whether an engine serves the queue."""

    def test_none_is_needed(self, subject: Subject) -> None:
        """An empty queue needs no engine."""
        assert only(check_engine(subject)).level == "ok"

    def test_jobs_without_an_engine(self, subject: Subject) -> None:
        """They wait for an engine that is missing."""
        with queue_of(subject):
            verdict = only(check_engine(subject))
        assert (verdict.level, verdict.advice) == ("problem", "stoker engine start")

    def test_one_that_lives(self, subject: Subject) -> None:
        """It answers or not, and has trouble or none."""
        answering = msgspec.structs.replace(subject, answers=True)
        with contextlib.closing(EngineLock(subject.paths, QUEUE)):
            assert levels(check_engine(answering)) == ["ok"]
            assert levels(check_engine(subject)) == ["problem"]
            show(subject, trouble="the disk is full")
            assert "the disk is full" in list(check_engine(answering))[-1].text

    def test_leftovers(self, subject: Subject) -> None:
        """Jobs of a dead run, and leases of ours that no job has, while no engine lives."""
        ledger = Ledger(prepare_ledger(Path(subject.environment["STOKER_LEDGER"])))
        with queue_of(subject):
            assert levels(check_leftovers(subject)) == ["ok"]
        held = ledger.claim((Claim("GPU-1"),), "test", time.time())
        assert held is not None
        with queue_of(subject, engine="4711-dead"):
            texts = [verdict.text for verdict in check_leftovers(subject)]
        ledger.release(held)
        assert texts[0] == "1 job of an interrupted run, not started"
        assert "GPU-1" in texts[1]


def show(subject: Subject, **changes: object) -> None:
    """Write what an engine would show of itself."""
    view = EngineStatus(
        engine=QUEUE,
        label="stoker",
        pid=os.getpid(),
        version="",
        since=0.0,
        at=time.time(),
        waiting=0,
        blocked=0,
        devices=(),
        readings={},
        note="",
        trouble="",
        draining=False,
        leases=(),
        waits=(),
    )
    changed = msgspec.structs.replace(view, **changes)
    subject.paths.status_file(QUEUE).write_bytes(msgspec.json.encode(changed))


class TestLedger:
    """The leases of all users."""

    def test_one_of_its_own_for_simulated_gpus(self, subject: Subject) -> None:
        """Other users cannot have them."""
        exclusive = msgspec.structs.replace(subject, environment={}, simulated=True)
        assert only(check_ledger(exclusive, [])).level == "ok"

    def test_one_that_is_open_to_all(self, subject: Subject) -> None:
        """It is made where there is none."""
        assert only(check_ledger(subject, [])).level == "ok"

    def test_none_can_be_made(self, subject: Subject, tmp_path: Path) -> None:
        """A file is in the way, or a directory without the sticky bit."""
        (tmp_path / "ledger").touch()
        assert only(check_ledger(subject, [])).level == "problem"
        (tmp_path / "ledger").unlink()
        (tmp_path / "ledger").mkdir()
        (tmp_path / "ledger").chmod(0o777)
        verdict = only(check_ledger(subject, []))
        assert (verdict.level, "chmod 1777" in verdict.advice) == ("problem", True)

    def test_one_that_is_not_shared(self, subject: Subject, tmp_path: Path) -> None:
        """Only its owner can write there."""
        (tmp_path / "ledger").mkdir(mode=0o755)
        verdict = only(check_ledger(subject, []))
        assert (verdict.level, "other users cannot register" in verdict.text) == ("problem", True)

    def test_others_use_another_one(self, subject: Subject, tmp_path: Path) -> None:
        """Their leases are not seen by us, nor ours by them."""
        other = Ledger(prepare_ledger(tmp_path / "other"))
        assert levels(check_ledger(subject, [other.path])) == ["ok"]
        held = other.claim((Claim("GPU-1"),), "test", time.time())
        assert held is not None
        assert levels(check_ledger(subject, [other.path])) == ["ok", "problem"]
        other.release(held)


class TestSettings:
    """Files and variables."""

    def test_files(self, subject: Subject, tmp_path: Path) -> None:
        """Files that were read are named; one that cannot be read is a problem."""
        assert only(check_config(subject)).text == "all defaults"
        folder = tmp_path / "config/stoker"
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text('patience = "10s"\n')
        assert str(folder / "config.toml") in only(check_config(subject)).text
        (folder / "config.toml").write_text("patiense = 10\n")
        verdict = only(check_config(subject))
        assert (verdict.level, "did you mean patience" in verdict.advice) == ("problem", True)

    @pytest.mark.parametrize(
        ("variables", "expected"),
        [
            ({}, [("ok", "")]),
            ({"STOKER_GPUS": "1"}, [("ok", "")]),
            ({"STOKER_GPU": "1"}, [("note", "did you mean STOKER_GPUS?")]),
            ({"STOKER_ZZZ": "1"}, [("note", "")]),
            ({"STOKER_JOB_ID": "7", "STOKER_ATTEMPT": "1"}, [("note", ""), ("ok", "")]),
        ],
    )
    def test_variables(self, subject: Subject, variables: dict[str, str], expected: list[tuple[str, str]]) -> None:
        """Unknown ones are noted with a near one; those of a job say that the check runs inside one."""
        given = msgspec.structs.replace(subject, environment=variables)
        assert [(each.level, each.advice) for each in check_variables(given)] == expected


class TestSession:
    """What happens at logout."""

    def test_without_systemd(self, subject: Subject, tmp_path: Path) -> None:
        """Without systemd no process ends at logout."""
        assert only(check_logout(subject, tmp_path)).level == "ok"

    @pytest.mark.parametrize(
        ("answer", "lingers", "unit", "expected"),
        [
            ("b true\n", False, False, ("problem", "loginctl enable-linger && stoker engine install")),
            ("b true\n", True, False, ("problem", "stoker engine install")),
            ("b true\n", True, True, ("ok", "")),
            ("b false\n", False, True, ("problem", "loginctl enable-linger")),
            ("b false\n", False, False, ("note", "if that matters: stoker engine install, and loginctl enable-linger")),
            (None, False, False, ("note", "if that matters: stoker engine install, and loginctl enable-linger")),
        ],
    )
    def test_what_to_type(
        self,
        subject: Subject,
        tmp_path: Path,
        *,
        answer: str | None,
        lingers: bool,
        unit: bool,
        expected: tuple[str, str],
    ) -> None:
        """By what the login manager answers, whether the user lingers, and whether there is a unit."""
        (tmp_path / "run/systemd/system").mkdir(parents=True)
        linger = tmp_path / "var/lib/systemd/linger" / pwd.getpwuid(os.getuid()).pw_name
        for path, exists in ((linger, lingers), (unit_path(subject.environment), unit)):
            path.parent.mkdir(parents=True)
            if exists:
                path.touch()
        verdict = only(check_logout(subject, tmp_path, lambda _command: answer))
        assert (verdict.level, verdict.advice) == expected

    def test_a_unit_whose_program_is_gone(self, subject: Subject, tmp_path: Path) -> None:
        """It is to be written again; without a unit there is nothing to say."""
        assert list(check_unit(subject)) == []
        path = unit_path(subject.environment)
        write_unit(path, unit_text(["/bin/sh"], {}))
        assert only(check_unit(subject)).level == "ok"
        write_unit(path, unit_text([str(tmp_path / "gone")], {}))
        verdict = only(check_unit(subject))
        assert (verdict.level, verdict.advice) == ("problem", "stoker engine install")


@pytest.mark.parametrize(("limit", "running", "level"), [(10_000, 100, "ok"), (300, 290, "problem")])
def test_limit_of_processes(limit: int, running: int, level: str) -> None:
    """What counts is how many more there may be."""
    assert judge_processes(limit, running).level == level


def test_limit_of_files(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few are a problem."""
    monkeypatch.setattr(resource, "getrlimit", lambda _limit: (64, 64))
    assert "only 64 files" in next(iter(check_limits(subject))).text


class TestGpus:
    """The driver."""

    @pytest.fixture
    def bench(self, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Bench:
        """A machine with the stand-in driver."""
        return Bench(compiled(tmp_path_factory.getbasetemp()), tmp_path / "nvml")

    def found(self, bench: Bench, machine: FakeMachine) -> list[Verdict]:
        """What is found on a machine."""
        bench.write(machine)
        command = [sys.executable, "-c", _CHECK_GPUS]
        done = subprocess.run(command, env=bench.environment, capture_output=True, check=True, timeout=60)
        return msgspec.json.decode(done.stdout, type=list[Verdict])

    def test_two_that_are_well(self, bench: Bench) -> None:
        """They are counted."""
        found = self.found(bench, FakeMachine((FakeGpu("GPU-a"), FakeGpu("GPU-b"))))
        assert [(each.level, each.text) for each in found] == [("ok", "the NVIDIA driver shows 2 GPUs")]

    def test_one_that_is_lost(self, bench: Bench) -> None:
        """It is named, with what to do."""
        lost = FakeGpu(
            "GPU-b", faults={"nvmlDeviceGetMemoryInfo_v2": GPU_IS_LOST, "nvmlDeviceGetMemoryInfo": GPU_IS_LOST}
        )
        found = self.found(bench, FakeMachine((FakeGpu("GPU-a"), lost)))
        assert levels(found)[:2] == ["ok", "problem"]
        assert "lost" in found[1].text

    @pytest.mark.parametrize("code", [DRIVER_NOT_LOADED, VERSION_MISMATCH])
    def test_a_driver_that_cannot_be_asked(self, bench: Bench, code: int) -> None:
        """A library without a driver, or of another version, is to be mended."""
        assert only(self.found(bench, FakeMachine(init=code))).level == "problem"

    def test_no_driver_at_all(self, tmp_path: Path) -> None:
        """Without a card that is as it may be; with one, the driver is missing."""
        reason = "no NVIDIA driver is installed: libnvidia-ml.so.1 was not found"
        assert judge_absence(reason, 0).level == "note"
        assert judge_absence(reason, 2).level == "problem"
        for name, vendor, kind in (
            ("a", "0x10de", "0x030200"),
            ("b", "0x10de", "0x040300"),
            ("c", "0x8086", "0x030000"),
        ):
            (tmp_path / name).mkdir()
            (tmp_path / name / "vendor").write_text(f"{vendor}\n")
            (tmp_path / name / "class").write_text(f"{kind}\n")
        (tmp_path / "d").mkdir()
        assert nvidia_cards(tmp_path) == 1
        assert nvidia_cards(tmp_path / "none") == 0


class TestInstallation:
    """Packages of older tools that install the same import names."""

    def install(self, site: Path, name: str, *files: str) -> None:
        """Put a package there, as pip does it."""
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        for file in files:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).touch()
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))

    def found(self, site: Path) -> list[Verdict]:
        return list(check_install(Subject(Paths(site), {}, simulated=False), [str(site)]))

    def test_before_and_after(self, tmp_path: Path) -> None:
        """Alone all is well; a package with our import name is reported, and so is what its removal took along."""
        ours = ("simple_gpu_scheduler/scheduler.py", "stoker/__init__.py")
        self.install(tmp_path, "stoker", *ours)
        self.install(tmp_path, "simple-hypersearch", "simple_hypersearch/__init__.py")
        assert [verdict.level for verdict in self.found(tmp_path)] == ["ok"]
        self.install(tmp_path, "simple-gpu-scheduler", ours[0])
        (verdict,) = self.found(tmp_path)
        assert verdict.level == "problem"
        assert verdict.text.startswith("the package simple-gpu-scheduler has the same import names")
        shutil.rmtree(tmp_path / "simple_gpu_scheduler")
        shutil.rmtree(tmp_path / "simple_gpu_scheduler-1.0.dist-info")
        (verdict,) = self.found(tmp_path)
        assert (verdict.level, verdict.text) == ("problem", "missing files of Stoker: scheduler.py")
