"""`stoker cluster add`, `status`, `check` and `remove`, under a real Slurm and without one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from features.slurm.cluster import NAME, ClusterQueue
from support.cli import Stoker
from support.slurm import Slurm, running_slurm
from support.users import reachable_directory, require_root


@pytest.fixture
def user(stoker: Stoker, slurm: Slurm) -> Stoker:
    """A user of the cluster, with nothing configured."""
    join(stoker, slurm)
    return stoker


def join(stoker: Stoker, slurm: Slurm) -> None:
    """Let the user find a Slurm, and nothing configured."""
    stoker.environment |= {"XDG_CONFIG_HOME": str(stoker.home / "config"), **slurm.environment}
    stoker.environment["PATH"] = f"{Path(sys.executable).parent}:{slurm.environment['PATH']}"


def config(user: Stoker) -> str:
    path = user.home / "config/stoker/config.toml"
    return path.read_text() if path.exists() else ""


def test_add_check_status_remove(user: Stoker) -> None:
    """A cluster is added by one line, found well, shown, and removed without a trace."""
    shared = str(user.home / "shared")
    added = user("cluster", "add", "lab", "--slurm", "--shared", shared, "--partition", "all", "--option=--mem=50")
    assert (added.code, "check it: stoker cluster check lab" in added.err) == (0, True)
    assert "warning" not in added.err
    assert config(user) == (
        f'[cluster.lab]\nkind = "slurm"\nshared = "{shared}"\npartition = "all"\noptions = ["--mem=50"]\n'
    )
    checked = user("cluster", "check", "lab", "--json")
    found = json.loads(checked.out)
    assert (checked.code, found["schema"], found["problems"]) == (0, "stoker.cluster-check/1", 0), found
    texts = [(each["topic"], each["text"]) for each in found["findings"] if each["level"] == "ok"]
    assert ("slurm", "arrays of up to 1000 tasks; longer ones become several") in texts
    assert any(topic == "node" and f"sees {shared}" in text for topic, text in texts)
    assert os.listdir(shared) == []

    [cluster] = json.loads(user("cluster", "status", "--json").out)["clusters"]
    assert (cluster["answers"], cluster["jobs"]) == (True, 0)
    assert {(nodes["partition"], nodes["nodes"], nodes["gpus"]) for nodes in cluster["nodes"]} >= {("all", 3, 4)}

    assert user("cluster", "remove", "lab").code == 0
    assert config(user).strip() == ""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["add", "lab"], 2, "type stoker cluster add lab --slurm"),
        (["add", "local", "--slurm"], 2, "'local' means this machine"),
        (["add", "lab", "--slurm", "--partition", "al"], 2, "did you mean all?"),
        (["add", "lab", "--slurm", "--poll", "30"], 2, "poll under [cluster.lab] is '30', not a duration"),
        (["add", "lab", "--slurm", "--shared", "here"], 2, "is 'here', not a path"),
        (["check", "lab"], 2, "there is no cluster 'lab'"),
        (["down", "lab"], 2, "there is no cluster 'lab'"),
    ],
)
def test_bad_input(user: Stoker, words: list[str], code: int, said: str) -> None:
    """Nothing is written, and the message says what to type."""
    found = user("cluster", *words)
    assert (found.code, said in found.err) == (code, True), found.err
    assert config(user) == ""


def test_without_slurm(stoker: Stoker, tmp_path: Path) -> None:
    """A cluster can be added where sbatch is missing, with a warning; the check and the status say so."""
    stoker.environment |= {"XDG_CONFIG_HOME": str(tmp_path / "config"), "PATH": "/nowhere"}
    added = stoker("cluster", "add", "lab", "--slurm", "--conf", str(tmp_path / "slurm.conf"))
    assert (added.code, "warning: Slurm does not answer: " in added.err) == (0, True)
    checked = stoker("cluster", "check", "lab")
    assert (checked.code, "problem  slurm      sbatch does not work" in checked.out) == (1, True)
    assert stoker("cluster", "status").code == 3


def test_a_controller_that_is_down(stoker: Stoker) -> None:
    """The check names it, and asks nothing more."""
    with running_slurm(nodes=1, lines=("MessageTimeout=2",)) as slurm:
        join(stoker, slurm)
        stoker("cluster", "add", "lab", "--slurm")
        slurm.stop_controller()
        checked = stoker("cluster", "check", "lab")
        assert (checked.code, "the controller does not answer" in checked.out) == (1, True)
        assert checked.out.count("\n") <= 3


@pytest.mark.parametrize(
    ("world", "said"),
    [("true", "has no {shared}"), ("mkdir {shared}", "{shared} on n1 is another directory than here")],
)
def test_nodes_without_the_shared_directory(stoker: Stoker, world: str, said: str) -> None:
    """A node that sees no directory there, or another one, is named."""
    require_root()
    with reachable_directory() as place, running_slurm(nodes=1) as slurm:
        shared = place / "outer/shared"
        shared.mkdir(parents=True)
        slurm.stop_node("n1")
        hide = f'mount -t tmpfs none {shared.parent} && {world.format(shared=shared)} && exec "$@"'
        slurm.start_node("n1", "unshare", "-m", "sh", "-c", hide, "sh")
        slurm.wait_idle()
        join(stoker, slurm)
        stoker("cluster", "add", "lab", "--slurm", "--shared", str(shared))
        checked = stoker("cluster", "check", "lab")
        assert (checked.code, said.format(shared=shared) in checked.out) == (1, True), checked.out


def test_a_cluster_with_jobs_is_not_removed(lab: ClusterQueue) -> None:
    """Unless the user insists; then the jobs wait for the cluster."""
    job = lab.submit("--begin", "now+1hour", "true")
    refused = lab("cluster", "remove", NAME)
    assert (refused.code, "lab has 1 job that is not over" in refused.err) == (125, True), refused.err
    forced = lab("cluster", "remove", NAME, "--force")
    assert (forced.code, "1 job stays in the queue" in forced.err) == (0, True), forced.err
    assert lab("cancel", str(job)).code == 0
