"""Options of the jobs of a group in the configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.app.jobs.config import Config, load_config
from stoker.app.jobs.context import SubmitContext
from stoker.app.jobs.job_files import ParsedJob
from stoker.app.jobs.options import JobOptions
from stoker.app.jobs.script import completed_options
from stoker.app.jobs.submit import JobBuilder
from stoker.core.errors import UsageError
from stoker.core.settings import Policy
from stoker.core.spec import Command

LONG = """
[defaults]
retries = 1
grace = "5s"
env = { A = "default", B = "default" }

[group.long]
preemptible = "save"
save_time = "5m"
idle = "1h:preempt"
retries = 2
env = { B = "group" }
"""
Load = Callable[[str, str], Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Reads the files of a user and of a project."""

    def loaded(user: str, project: str = "") -> Config:
        directory = tmp_path / "project"
        directory.mkdir()
        file = tmp_path / ".config/stoker/config.toml"
        file.parent.mkdir(parents=True)
        file.write_text(user)
        (directory / "stoker.toml").write_text(project)
        return load_config({"HOME": str(tmp_path)}, directory, system=tmp_path / "none")

    return loaded


def test_an_option_wins_over_the_group_and_the_group_over_the_defaults(load: Load) -> None:
    """Jobs of other groups, and of none, have the defaults alone."""
    config = load(LONG, "")
    long = config.completed(JobOptions(group="long", save_time="1m", env={"C": "given"}))
    assert (long.preemptible, long.save_time, long.idle, long.retries) == ("save", "1m", "1h:preempt", 2)
    assert (long.grace, long.env) == ("5s", {"A": "default", "B": "group", "C": "given"})
    for other in (JobOptions(), JobOptions(group="short"), JobOptions(group="")):
        assert (config.completed(other).preemptible, config.completed(other).retries) == (None, 1)


def test_the_project_chooses_the_group_and_adds_to_it(load: Load) -> None:
    """A project file may have both tables, and its keys override those of the user one by one."""
    config = load(LONG, '[defaults]\ngroup = "long"\nretries = 7\n[group.long]\nidle = 0')
    options = config.completed(JobOptions())
    assert (options.preemptible, options.retries, options.idle) == ("save", 2, "0")
    assert config.completed(JobOptions(group="")).preemptible is None
    origins = {row.key: Path(row.origin).name for row in config.origins()}
    assert (origins["group.long.idle"], origins["group.long.retries"]) == ("stoker.toml", "config.toml")


def test_each_job_of_a_list_gets_the_options_of_its_own_group(load: Load) -> None:
    """What the user gives for the whole list wins over the group of a job."""
    options, of_job, _ = completed_options(JobOptions(grace="9s"), None, load(LONG, ""))
    context = SubmitContext(cwd="/w", umask=0o022, environment="abc", default_out="/logs/%j.log", resolve=str)
    builder = JobBuilder(options, context, os.environ, pytest.fail, policy=Policy(), options_of=of_job)
    items = [ParsedJob(Command(("true",)), "line", own) for own in (JobOptions(group="long"), JobOptions(gpus=2))]
    long, plain = map(builder.make, items)
    assert (long.spec.preemptible, long.spec.save_time, long.spec.grace) == ("save", 300.0, 9.0)
    assert (plain.spec.preemptible, plain.spec.resources.gpus, plain.spec.grace) == ("", 2, 9.0)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[group.long]\npreemtible = true", "preemtible under [group.long] is unknown", "did you mean preemptible?"),
        ("[group.long]\npreemptible = 'maybe'", "--preemptible=maybe is neither save nor restart", ""),
        ("[group.long]\nname = 'x'", "name under [group.long] would be the same for all jobs", "--name"),
        ("[group.long]\ngroup = 'x'", "group under [group.long] has no meaning", "leave it out"),
        ("[group]\nlong = 2", "group.long is not a table", "write long = 2 under [groups]"),
        ("group = 'long'", "group is not a table", 'write group = "long" under [defaults]'),
    ],
)
def test_refused(load: Load, text: str, message: str, hint: str) -> None:
    """An error names the table and the key."""
    with pytest.raises(UsageError) as refused:
        load(text, "")
    assert message in refused.value.message
    assert hint in refused.value.hint
