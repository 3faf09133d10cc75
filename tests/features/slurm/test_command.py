"""`stoker cluster` with programs that stand in for Slurm's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from features.slurm.fake_slurm import write_program
from stoker.cli.main import run_cli
from stoker.features.slurm.private import PrivateSlurm
from stoker.features.slurm.private_servers import folder
from support.cli import Outcome

Type = Callable[..., Outcome]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with a sinfo that shows one partition."""
    directory = tmp_path / "bin"
    directory.mkdir()
    write_program(directory, "sinfo", "echo 'gpu*|up|infinite|3|idle|gpu:4'")
    return directory


@pytest.fixture
def cluster(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Type:
    """Types `stoker cluster ...` in this process."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("STOKER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def typed(*words: str) -> Outcome:
        code = run_cli(["cluster", *words])
        return Outcome(code, *capfd.readouterr())

    return typed


@pytest.fixture
def own(cluster: Type, tmp_path: Path) -> PrivateSlurm:
    """A private cluster without servers, whose files are there and whose daemons never ran."""
    shared = tmp_path / "shared"
    place = folder(shared, "own")
    place.mkdir(parents=True)
    private = PrivateSlurm(
        name="own",
        user="me",
        hostname="here",
        address="127.0.0.1",
        port=26817,
        conf=str(place / "slurm.conf"),
        local=str(tmp_path / "local"),
        prefix="",
        ssh=("ssh",),
        version="slurm 22.05.8",
        servers=(),
    )
    (place / "cluster.json").write_bytes(msgspec.json.encode(private))
    path = config(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(f'[cluster.own]\nkind = "slurm"\nprivate = true\nshared = "{shared}"\n')
    return private


def config(directory: Path) -> Path:
    return directory / "config/stoker/config.toml"


def test_add_writes_the_options_that_were_given(cluster: Type, tmp_path: Path) -> None:
    """And no others; the partition is one that Slurm has."""
    added = cluster("add", "lab", "--slurm", "--shared", "/shared", "--partition", "gpu", "--option=--mem=50")
    assert (added.code, added.out) == (0, "")
    assert added.err == f"stoker: lab is in {config(tmp_path)}; check it: stoker cluster check lab\n"
    assert config(tmp_path).read_text() == (
        '[cluster.lab]\nkind = "slurm"\nshared = "/shared"\npartition = "gpu"\noptions = ["--mem=50"]\n'
    )


def test_add_warns_of_a_controller_that_is_silent(cluster: Type, programs: Path) -> None:
    """It may be down only now."""
    write_program(programs, "sinfo", "echo 'sinfo: error: connection refused' >&2; exit 1")
    added = cluster("add", "lab", "--slurm")
    assert (added.code, "warning: Slurm does not answer: connection refused" in added.err) == (0, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "lab"], "type stoker cluster add lab --slurm"),
        (["add", "local", "--slurm"], "'local' means this machine"),
        (["add", "lab", "--slurm", "--partition", "gpus"], "did you mean gpu?"),
        (["check", "lab"], "there is no cluster 'lab'"),
    ],
)
def test_bad_input_writes_nothing(cluster: Type, tmp_path: Path, words: list[str], said: str) -> None:
    """The message says what to type."""
    refused = cluster(*words)
    assert (refused.code, said in refused.err) == (2, True), refused.err
    assert not config(tmp_path).exists()


def test_status_as_text_and_json(cluster: Type, programs: Path) -> None:
    """Exit code 3 if a controller does not answer."""
    cluster("add", "lab", "--slurm", "--shared", "/shared")
    assert cluster("status").out.splitlines() == [
        "lab: Slurm, answers; 0 of your jobs in Slurm, 0 waiting here",
        "  shared directory /shared",
        "  gpu*         3 nodes   idle, 4 GPUs each, limit infinite",
    ]
    [status] = json.loads(cluster("status", "lab", "--json").out)["clusters"]
    assert (status["answers"], status["nodes"][0]["default"]) == (True, True)
    write_program(programs, "sinfo", "exit 1")
    assert cluster("status").code == 3


def test_status_without_a_cluster(cluster: Type) -> None:
    """It says how to add one."""
    status = cluster("status")
    assert (status.code, "stoker cluster add NAME --slurm" in status.out + status.err) == (0, True)


def test_remove_takes_it_out_of_the_configuration(cluster: Type, tmp_path: Path) -> None:
    """And asks nothing if it has no jobs."""
    cluster("add", "lab", "--slurm")
    assert cluster("remove", "lab").code == 0
    assert config(tmp_path).read_text().strip() == ""


def test_only_private_clusters_are_started_and_stopped(cluster: Type) -> None:
    """Others belong to administrators."""
    cluster("add", "lab", "--slurm")
    for verb in ("up", "down"):
        refused = cluster(verb, "lab")
        assert (refused.code, "lab is not a private cluster" in refused.err) == (2, True)


def test_down_refuses_while_jobs_run(cluster: Type, own: PrivateSlurm, programs: Path) -> None:
    """--force leaves them running."""
    write_program(programs, "squeue", "echo 17")
    refused = cluster("down", "own")
    assert (refused.code, "own has 1 job in Slurm" in refused.err) == (125, True), refused.err
    assert cluster("down", "own", "--force").code == 0


def test_remove_deletes_the_files_of_a_private_cluster(cluster: Type, own: PrivateSlurm) -> None:
    """Its configuration and its key."""
    removed = cluster("remove", "own")
    assert (removed.code, os.path.exists(os.path.dirname(own.conf))) == (0, False), removed.err


def test_a_private_cluster_whose_description_is_missing(cluster: Type, own: PrivateSlurm) -> None:
    """`make` writes it again; --force removes the rest."""
    Path(own.conf).with_name("cluster.json").unlink()
    refused = cluster("remove", "own")
    assert (refused.code, "make the cluster again: stoker cluster make own SERVERS" in refused.err) == (125, True)
    assert cluster("remove", "own", "--force").code == 0


def test_make_keeps_a_cluster_that_is_not_private(cluster: Type) -> None:
    """Its table would be lost."""
    cluster("add", "lab", "--slurm")
    refused = cluster("make", "lab", "localhost")
    assert (refused.code, "is not a private cluster" in refused.err) == (2, True)
