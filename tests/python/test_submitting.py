"""A submission of a Python program is complete or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.app.control.engine_process import Background
from stoker.app.jobs.options import JobOptions
from stoker.python.calls import Call
from stoker.python.connection import find_link
from stoker.python.submitting import submit_calls


def test_an_interruption_after_the_commit_leaves_the_call_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the commit does not remove the job from the queue."""
    monkeypatch.setenv("STOKER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def interrupted(self: Background) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Background, "wake", interrupted)
    link = find_link()
    with pytest.raises(KeyboardInterrupt):
        submit_calls(link, len, [Call(([1, 2],))], JobOptions(gpus=0))
    with link.opened() as store:
        assert store.last_job() == 1
    assert link.paths.function(1).is_dir()
