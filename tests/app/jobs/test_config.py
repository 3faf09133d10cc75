"""Configuration: files that count, defaults of job options, variables, and where a value comes from."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.app.jobs.config import (
    BUILT_IN,
    Config,
    Ignored,
    Settings,
    load_config,
    read_project,
    read_settings,
    user_file,
)
from stoker.app.jobs.config_tables import checked_defaults
from stoker.app.jobs.context import SubmitContext
from stoker.app.jobs.job_spec import spec_of
from stoker.app.jobs.options import JobOptions
from stoker.core.errors import UsageError
from stoker.core.settings import CLUSTER_KEYS, KEYS, ClusterSettings, EngineSettings
from support.config_programs import tell
from support.users import User, made_users, reachable_directory, run_as
from support.wait import PATIENCE_SECONDS


class Files:
    """A machine, a user and a project, each with a configuration file if it is given one."""

    def __init__(self, path: Path) -> None:
        self.system = path / "etc/config.toml"
        self.user = path / "home/.config/stoker/config.toml"
        self.project = path / "project/stoker.toml"
        self.environment = {"HOME": str(path / "home")}

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def load(self, variables: dict[str, str] | None = None, **flags: object) -> Config:
        environment = self.environment | (variables or {})
        return load_config(environment, self.project.parent, system=self.system, flags=flags)

    def complaint(self, variables: dict[str, str] | None = None) -> tuple[str, str]:
        with pytest.raises(UsageError) as refused:
            self.load(variables)
        return refused.value.message, refused.value.hint


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Nothing is configured."""
    return Files(tmp_path)


def origin_of(config: Config, key: str) -> tuple[str, str]:
    [found] = [(row.value, row.origin) for row in config.origins() if row.key == key]
    return found


class TestPrecedence:
    """Flag, variable, project, user, machine, built in."""

    def test_nothing(self, files: Files) -> None:
        """Without any file all is as built in, and everything is listed as such."""
        config = files.load()
        assert (config.engine, config.defaults, config.files, config.warnings) == (EngineSettings(), {}, (), ())
        assert {row.origin for row in config.origins()} == {"built in"}
        listed = {row.key for row in config.origins()}
        assert set(KEYS) - listed == {"groups"}
        assert origin_of(config, "reserve") == ("512M", "built in")
        assert origin_of(config, "defaults.vram") == ("all", "built in")

    def test_settings(self, files: Files) -> None:
        """Each goes before the next, and the origin is told every time."""
        ladder: list[tuple[str, str]] = []
        files.write(files.system, 'reserve = "1G"')
        ladder.append(origin_of(files.load(), "reserve"))
        files.write(files.user, 'reserve = "2G"')
        ladder.append(origin_of(files.load(), "reserve"))
        ladder.append(origin_of(files.load({"STOKER_RESERVE": "3G"}), "reserve"))
        ladder.append(origin_of(files.load({"STOKER_RESERVE": "3G"}, reserve="4G", keep=None), "reserve"))
        paths = [str(files.system), str(files.user), "STOKER_RESERVE", "--reserve"]
        assert ladder == list(zip(["1G", "2G", "3G", "4G"], paths, strict=True))
        assert files.load({"STOKER_RESERVE": "3G"}, reserve="4G").engine.reserve == 4 * 2**30
        assert files.load().engine == EngineSettings(reserve=2 * 2**30)

    def test_defaults(self, files: Files) -> None:
        """Job options of the project go before those of the user, key by key, and variable by variable in env."""
        files.write(files.system, '[defaults]\nvram = "1G"\ngrace = "5s"')
        files.write(files.user, '[defaults]\nvram = "2G"\nretries = 1\nenv = {A = "user", B = "user"}')
        files.write(files.project, '[defaults]\nvram = "3G"\nenv = {A = "project"}')
        config = files.load()
        env = {"A": "project", "B": "user"}
        assert config.defaults == {"vram": "3G", "grace": "5s", "retries": 1, "env": env}
        assert origin_of(config, "defaults.env.A") == ("project", str(files.project))
        assert origin_of(config, "defaults.env.B") == ("user", str(files.user))
        assert config.files == (files.system, files.user, files.project)

    def test_pyproject(self, files: Files) -> None:
        """A table in pyproject.toml does what stoker.toml does."""
        files.write(files.project.with_name("pyproject.toml"), "[tool.stoker.defaults]\ngpus = 2")
        assert files.load().defaults == {"gpus": 2}

    def test_groups(self, files: Files) -> None:
        """Limits of groups are set one by one; names may contain dots."""
        files.write(files.system, '[groups]\nbig = 1\n"a.b" = 3')
        files.write(files.user, "groups.big = 2")
        config = files.load({"STOKER_GROUPS": "eval=4"})
        assert config.engine.groups == {"big": 2, "a.b": 3, "eval": 4}
        assert origin_of(config, "groups.big") == ("2", str(files.user))
        assert origin_of(config, "groups.eval") == ("4", "STOKER_GROUPS")

    def test_lists_are_set_as_a_whole(self, files: Files) -> None:
        """The user's patterns of secrets are all that count."""
        files.write(files.user, 'secrets = ["*KEY*", "SEED"]')
        assert files.load().engine.secrets == ("*KEY*", "SEED")
        assert origin_of(files.load(), "secrets") == ("*KEY*,SEED", str(files.user))

    def test_job_options_from_variables(self, files: Files) -> None:
        """They are listed, but not among the defaults: the command line takes them itself, before its flags."""
        files.write(files.user, '[defaults]\nvram = "2G"')
        config = files.load({"STOKER_VRAM": "5G", "STOKER_GPUS": "", "STOKER_ENV": "x"})
        assert config.defaults == {"vram": "2G"}
        assert origin_of(config, "defaults.vram") == ("5G", "STOKER_VRAM")
        assert origin_of(config, "defaults.gpus") == ("1", "built in")
        assert "defaults.env" not in {row.key for row in config.origins()}

    def test_empty_variables(self, files: Files) -> None:
        """They count as not set; variables that are no settings are nobody's business."""
        assert files.load({"STOKER_MAX_USE": "", "STOKER_JOB_ID": "3", "STOKER_STATE": "/s"}).engine == EngineSettings()

    def test_no_directory(self, files: Files) -> None:
        """The engine stands in no project."""
        files.write(files.project, "[defaults]\ngpus = 2")
        config = load_config(files.environment, None, system=files.system)
        assert (config.defaults, config.files) == ({}, ())


class TestMistakes:
    """What cannot be understood is said in one sentence that names the file."""

    @pytest.mark.parametrize(
        ("name", "text", "message", "hint"),
        [
            ("user", "min_fre = 1", ": unknown key 'min_fre'", "did you mean min_free?"),
            ("user", "qqq = 1", ": unknown key 'qqq'", "known: devices, strangers"),
            ("user", 'vram = "8G"', ": unknown key 'vram'", "vram is a job option: put it under [defaults]"),
            ("user", "strangers: count", " is not TOML", "write lines such as"),
            ("project", 'defaults.gpus = "two"', ": gpus under [defaults] is 'two', not a whole number", "see stoker"),
            ("pyproject", "[tool.stoker]\ngpus = 1", ": unknown key 'gpus'", "put it under [tool.stoker.defaults]"),
        ],
    )
    def test_a_file(self, files: Files, name: str, text: str, message: str, hint: str) -> None:
        """It names the file, and the nearest known key or where it belongs."""
        path = files.project.with_name("pyproject.toml") if name == "pyproject" else getattr(files, name)
        files.write(path, text)
        complaint = files.complaint()
        assert complaint[0].startswith(f"{path}{message}")
        assert hint in complaint[1]

    def test_wrong_value(self, files: Files) -> None:
        """File, key, value and what would be right; also where a stronger file sets another."""
        files.write(files.system, 'patience = "long"')
        files.write(files.user, 'patience = "2m"')
        expected = f"{files.system}: patience is 'long', not a duration with a unit"
        assert files.complaint() == (expected, "for example 60s")

    def test_wrong_variable(self, files: Files) -> None:
        """A variable is named like a file."""
        complaint = files.complaint({"STOKER_STRANGERS": "kill"})
        assert complaint == ("STOKER_STRANGERS is 'kill', not avoid or count", "for example count")

    def test_wrong_flag(self, files: Files) -> None:
        """And so is a flag."""
        with pytest.raises(UsageError, match="--min-free is 'x', not a number of GPUs"):
            files.load(min_free="x")

    @pytest.mark.parametrize("key", KEYS)
    def test_engine_keys_in_a_project(self, files: Files, key: str) -> None:
        """They are refused with the reason: one engine serves all projects."""
        files.write(files.project, f"{key} = 1")
        message, hint = files.complaint()
        assert message.startswith(f"{files.project}: {key} cannot be set for one project")
        assert "one engine serves all" in message
        assert "config.toml" in hint


def test_untrusted_project_file(files: Files) -> None:
    """A file that every user may write to sets nothing, and the warning names it."""
    files.write(files.project, "[defaults]\nenv = {LD_PRELOAD = 'evil.so'}")
    files.project.chmod(0o666)
    config = files.load()
    assert config.defaults == {}
    assert [str(files.project) in warning for warning in config.warnings] == [True]


def test_secrets_are_not_listed(files: Files) -> None:
    """The value of a variable that looks like a secret is used, and not shown."""
    files.write(files.user, "[defaults.env]\nHF_TOKEN = 'hf_123'\nSEED = '1'")
    config = files.load()
    assert config.defaults["env"]["HF_TOKEN"] == "hf_123"
    assert origin_of(config, "defaults.env.HF_TOKEN") == ("********", str(files.user))
    assert origin_of(config, "defaults.env.SEED") == ("1", str(files.user))


def test_nothing_is_loaded_for_nothing(files: Files) -> None:
    """Where no file is about us, the TOML parser is not even imported."""
    files.write(files.project.with_name("pyproject.toml"), "[tool.ruff]")
    program = f"""
import sys
from pathlib import Path
from stoker.app.jobs.config import load_config
load_config({files.environment!r}, Path({str(files.project.parent)!r}), system=Path({str(files.system)!r}))
assert not {{"tomllib", "difflib", "click", "rich", "zoneinfo"}} & set(sys.modules), sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_SECONDS)


CONTEXT = SubmitContext(cwd="/w", umask=0o022, environment="", default_out="", resolve=str)


def test_what_is_built_in() -> None:
    """Options as shown by default mean the same as none at all."""
    shown = JobOptions(**checked_defaults(dict(BUILT_IN), "here"))
    assert spec_of(shown, CONTEXT) == spec_of(JobOptions(), CONTEXT)


def test_options() -> None:
    """They can be given to JobOptions; numbers may stand where the command line takes text."""
    table = {"gpus": 2, "vram": "8G", "on": 0, "time": 90, "grace": "0", "env": {"SEED": 1, "A": "b"}}
    checked = checked_defaults(table, "here")
    assert checked == {"gpus": 2, "vram": "8G", "on": "0", "time": "90", "grace": "0", "env": {"SEED": "1", "A": "b"}}
    assert JobOptions(**checked).env == {"SEED": "1", "A": "b"}


@pytest.mark.parametrize(
    ("table", "message", "hint"),
    [
        ({"vran": "8G"}, "here: vran under [defaults] is unknown", "did you mean vram?"),
        ({"qqq": 1}, "here: qqq under [defaults] is unknown", "known: gpus, vram"),
        ({"name": "x"}, "here: name under [defaults] would be the same for all jobs", "use --name"),
        ({"strangers": "count"}, "here: strangers under [defaults] is not a job option", "put it above [defaults]"),
        ({"gpus": "two"}, "here: gpus under [defaults] is 'two', not a whole number", "--help"),
        ({"gpus": True}, "here: gpus under [defaults] is 'true', not a whole number", "--help"),
        ({"gpus": -1}, "here: gpus under [defaults]: -1 must not be negative", "0 or more"),
        ({"vram": ["8G"]}, "here: vram under [defaults] is '8G', not text", "--help"),
        ({"vram": "lots"}, "here: vram under [defaults]: 'lots' is not a size", "6G, 512M or 1.5G, or as auto or all"),
        ({"vram": 8}, "here: vram under [defaults]: --vram 8 has no unit", "write 8G"),
        ({"time": "soon"}, "here: time under [defaults]: 'soon' is not a duration", "1h30m"),
        ({"env": "A=b"}, "here: env under [defaults] is 'A=b', not a table", "--help"),
        ({"mps": 500}, "here: mps under [defaults]: --mps=500 is not a percentage from 1 to 100", "--mps=50"),
        (["gpus"], "here: defaults is not a table", "[defaults]"),
    ],
)
def test_wrong_ones_are_refused(table: object, message: str, hint: str) -> None:
    """The error names file, key and value, and what to write instead."""
    with pytest.raises(UsageError) as refused:
        checked_defaults(table, "here")
    assert refused.value.message == message
    assert hint in refused.value.hint


DEFAULTS = '[defaults]\nvram = "8G"\n'
TABLE = {"defaults": {"vram": "8G"}}


@pytest.fixture(scope="session")
def user() -> Iterator[User]:
    """A user of this machine."""
    with made_users(1) as (made,):
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory of a directory of jobs."""
    inner = tmp_path / "vit/configs"
    inner.mkdir(parents=True)
    return inner


def found_in(directory: Path) -> list[Settings | Ignored]:
    """What was found from the directory upwards, below pytest's own."""
    return [each for each in read_project(directory) if directory.parents[1] in each.path.parents]


def why_ignored(path: Path) -> str:
    [found] = read_settings(path)
    assert isinstance(found, Ignored)
    assert str(path) in found.warning
    return found.why


class TestUserFile:
    """The user's own file."""

    def test_xdg(self) -> None:
        """It is in the XDG directory, by default in the home directory's .config."""
        assert user_file({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}) == Path("/c/stoker/config.toml")
        assert user_file({"HOME": "/h"}) == Path("/h/.config/stoker/config.toml")

    def test_relative(self) -> None:
        """A relative directory counts as none, as the XDG rules have it: it would depend on where one stands."""
        assert user_file({"XDG_CONFIG_HOME": "c", "HOME": "/h"}) == Path("/h/.config/stoker/config.toml")
        assert user_file({}) is None


class TestTrust:
    """Whoever can write a configuration file can run commands as its reader."""

    def test_own_file(self, tmp_path: Path) -> None:
        """One's own file counts, also one that the group may write to."""
        (tmp_path / "config.toml").write_text(DEFAULTS)
        (tmp_path / "config.toml").chmod(0o664)
        assert list(read_settings(tmp_path / "config.toml")) == [Settings(tmp_path / "config.toml", TABLE)]

    def test_no_file(self, tmp_path: Path) -> None:
        """A file that is not there is no error, and neither is a file in the place of its directory."""
        (tmp_path / "file").touch()
        assert list(read_settings(tmp_path / "config.toml")) == []
        assert list(read_settings(tmp_path / "file/config.toml")) == []

    def test_world_writable(self, tmp_path: Path) -> None:
        """A file that every user may write to is ignored, with a word why."""
        (tmp_path / "config.toml").write_text("not TOML")
        (tmp_path / "config.toml").chmod(0o666)
        assert why_ignored(tmp_path / "config.toml") == "every user can write to it (fix: chmod o-w)"

    def test_somebody_elses(self, tmp_path: Path, user: User) -> None:
        """A file of another user is ignored, and the warning names him; so is one of nobody in particular."""
        (tmp_path / "config.toml").write_text(DEFAULTS)
        os.chown(tmp_path / "config.toml", user.uid, user.gid)
        assert why_ignored(tmp_path / "config.toml").startswith(f"it belongs to user {user.name}")
        os.chown(tmp_path / "config.toml", 54321, 54321)
        assert why_ignored(tmp_path / "config.toml").startswith("it belongs to user 54321")

    def test_link_to_somebody_elses(self, tmp_path: Path, user: User) -> None:
        """What counts is the file that a link leads to."""
        (tmp_path / "theirs").write_text(DEFAULTS)
        os.chown(tmp_path / "theirs", user.uid, user.gid)
        (tmp_path / "config.toml").symlink_to(tmp_path / "theirs")
        assert "belongs to" in why_ignored(tmp_path / "config.toml")

    def test_pipe(self, tmp_path: Path) -> None:
        """A pipe in its place does not make anybody wait."""
        os.mkfifo(tmp_path / "config.toml")
        assert why_ignored(tmp_path / "config.toml") == "it is not a file"

    def test_directory(self, tmp_path: Path) -> None:
        """A directory in its place is no crash."""
        (tmp_path / "config.toml").mkdir()
        assert "Is a directory" in why_ignored(tmp_path / "config.toml")

    def test_roots_file_counts_for_all(self, user: User) -> None:
        """What root wrote is believed; what only root may read is told of; behind a closed door there is nothing."""
        with reachable_directory() as shared:
            (shared / "config.toml").write_text(DEFAULTS)
            (shared / "config.toml").chmod(0o644)
            (shared / "hidden.toml").write_text(DEFAULTS)
            (shared / "hidden.toml").chmod(0o600)
            (shared / "closed").mkdir(mode=0o700)
            (shared / "closed/config.toml").write_text(DEFAULTS)
            names = ("config.toml", "hidden.toml", "closed/config.toml")
            said = run_as(user, tell, *(shared / name for name in names)).splitlines()
        assert said == [str(TABLE), "it cannot be read (Permission denied)", "nothing"]


class TestProject:
    """The file of the directory that one stands in."""

    def test_above(self, project: Path) -> None:
        """The nearest stoker.toml from the directory upwards counts, and no other."""
        (project.parents[1] / "stoker.toml").write_text("far = 1")
        (project.parent / "stoker.toml").write_text(DEFAULTS)
        assert found_in(project) == [Settings(project.parent / "stoker.toml", TABLE, project=True)]

    def test_pyproject(self, project: Path) -> None:
        """So does a pyproject.toml with a table of ours, however that is written."""
        path = project.parent / "pyproject.toml"
        for text in ('[tool.stoker.defaults]\nvram = "8G"', '[tool]\nstoker = {defaults = {vram = "8G"}}'):
            path.write_text(text)
            assert found_in(project) == [Settings(path, TABLE, project=True)]

    def test_stoker_toml_first(self, project: Path) -> None:
        """In one directory stoker.toml goes first; a nearer pyproject.toml goes before a farther stoker.toml."""
        (project.parent / "stoker.toml").write_text(DEFAULTS)
        (project.parent / "pyproject.toml").write_text("[tool.stoker]\n")
        assert [each.path.name for each in found_in(project)] == ["stoker.toml"]
        (project / "pyproject.toml").write_text("[tool.stoker]\n")
        assert [each.path for each in found_in(project)] == [project / "pyproject.toml"]

    @pytest.mark.parametrize(
        "text", ["[tool.ruff]\n", 'dependencies = ["stoker"]\n', "broken [ stoker", "tool = 3 # stoker"]
    )
    def test_other_pyprojects(self, project: Path, text: str) -> None:
        """One that is not about us is passed by, broken or not."""
        (project / "pyproject.toml").write_text(text)
        (project.parent / "stoker.toml").write_text(DEFAULTS)
        assert [each.path for each in found_in(project)] == [project.parent / "stoker.toml"]

    def test_somebody_elses_is_passed_by(self, project: Path, user: User) -> None:
        """It is ignored with a warning, and the search goes on; of a pyproject.toml only if it is about us."""
        for name, text in (("stoker.toml", DEFAULTS), ("pyproject.toml", "[tool.stoker]")):
            (project / name).write_text(text)
            os.chown(project / name, user.uid, user.gid)
        (project.parent / "stoker.toml").write_text(DEFAULTS)
        kinds = [type(each) for each in found_in(project)]
        assert kinds == [Ignored, Ignored, Settings]
        (project / "pyproject.toml").write_text("[tool.ruff]")
        assert [type(each) for each in found_in(project)] == [Ignored, Settings]

    @pytest.mark.parametrize(
        ("name", "text", "complaint"),
        [
            ("stoker.toml", "vram 8G", "is not TOML"),
            ("stoker.toml", "a = " + "[" * 5000, "is not TOML"),
            ("stoker.toml", "a = '\udcff'", "is not TOML"),
            ("pyproject.toml", "[tool.stoker\n", "is not TOML"),
            ("pyproject.toml", "tool.stoker = 3\n", "tool.stoker is not a table"),
        ],
    )
    def test_malformed(self, project: Path, name: str, text: str, complaint: str) -> None:
        """A file that cannot be understood is an error that names it."""
        (project / name).write_bytes(os.fsencode(text))
        with pytest.raises(UsageError) as refused:
            found_in(project)
        assert refused.value.message.startswith(str(project / name))
        assert complaint in refused.value.message
        assert refused.value.hint


class TestClusters:
    """`[cluster.NAME]` tables."""

    def test_built_in(self, files: Files) -> None:
        """A table without keys is a cluster, with paths below the home."""
        files.write(files.user, "[cluster.lab]")
        config = files.load()
        shared = f"{files.environment['HOME']}/.stoker-shared"
        assert config.clusters == {"lab": ClusterSettings(shared=shared)}
        assert origin_of(config, "cluster.lab.poll") == ("30s", "built in")
        assert origin_of(config, "cluster.lab.kind") == ("slurm", str(files.user))

    def test_every_key(self, files: Files) -> None:
        """Every key is read, and listed with its origin."""
        given = (
            '[cluster.lab]\nkind = "slurm"\nshared = "/scratch/me"\npartition = "gpu"\naccount = "lab"\nqos = "high"\n'
            'options = ["--constraint=a100"]\npilots = "never"\npilot_time = "2h"\npilot_idle = "1m"\npilots_max = 3\n'
            'poll = "5s"\nqueued_max = 10\npython = "~/venv/bin/python"\nprivate = true\nconf = "/scratch/slurm.conf"\n'
            'prefix = "/scratch/slurm"\nssh = ["ssh", "-F", "~/ssh"]\n'
        )
        files.write(files.user, given)
        config, home = files.load(), files.environment["HOME"]
        assert config.cluster("lab") == ClusterSettings(
            shared="/scratch/me",
            partition="gpu",
            account="lab",
            qos="high",
            options=("--constraint=a100",),
            pilots="never",
            pilot_time=7200.0,
            pilot_idle=60.0,
            pilots_max=3,
            poll=5.0,
            queued_max=10,
            python=f"{home}/venv/bin/python",
            private=True,
            conf="/scratch/slurm.conf",
            prefix="/scratch/slurm",
            ssh=("ssh", "-F", f"{home}/ssh"),
        )
        shown = [row for row in config.origins() if row.key.startswith("cluster.lab.")]
        assert {row.key.rpartition(".")[2] for row in shown} == set(CLUSTER_KEYS)
        assert {row.origin for row in shown} == {str(files.user)}

    def test_files_overlay(self, files: Files) -> None:
        """The machine's file defines a cluster for all users; a user changes single keys."""
        files.write(files.system, '[cluster.lab]\npartition = "cpu"\naccount = "all"')
        files.write(files.user, '[cluster.lab]\npartition = "gpu"')
        config = files.load()
        assert (config.cluster("lab").partition, config.cluster("lab").account) == ("gpu", "all")
        assert origin_of(config, "cluster.lab.account") == ("all", str(files.system))

    @pytest.mark.parametrize(
        ("where", "text", "message", "hint"),
        [
            ("user", "[cluster.lab]\npartitions = 'a'", "unknown key 'partitions' under [cluster.lab]", "partition?"),
            ("user", "[cluster.lab]\nx = 1", "unknown key 'x' under [cluster.lab]", "known: kind, shared"),
            ("user", "[cluster.lab]\npoll = 30", "poll under [cluster.lab] is '30', not a duration", "30s"),
            ("user", "[cluster.lab]\nshared = 'here'", "shared under [cluster.lab] is 'here', not a path", "~/"),
            ("user", "[cluster.lab]\npilots = 'yes'", "is 'yes', not auto, never or always", "never"),
            ("user", "[cluster.lab]\nkind = 'pbs'", "is 'pbs', not slurm", "slurm"),
            ("user", "[cluster.lab]\npartition = 'a b'", "is 'a b', not the name of a partition", "gpu"),
            ("user", "[cluster.lab]\noptions = '\"'", "not a list of options for sbatch", "--constraint"),
            ("user", "[cluster.local]", "'local' means this machine", "letters, digits"),
            ("user", "[cluster.'../lab']", "'../lab' is not the name of a cluster", "letters, digits"),
            ("user", "cluster = 'lab'", "cluster is not a table", "under [defaults]"),
            ("user", "[cluster]\nlab = 1", "cluster.lab is not a table", "write [cluster.lab]"),
            ("project", "[cluster.lab]", "cluster cannot be set for one project", "config.toml"),
        ],
    )
    def test_refused(self, files: Files, where: str, text: str, message: str, hint: str) -> None:
        """An error names the file, the key and what to write."""
        path = getattr(files, where)
        files.write(path, text)
        said = files.complaint()
        assert message in said[0]
        assert hint in said[1]

    def test_unknown_name(self, files: Files) -> None:
        """A mistyped name gets the nearest one, or the command that adds it."""
        with pytest.raises(UsageError) as none:
            files.load().cluster("lab")
        assert none.value.hint == "add it: stoker cluster add lab --slurm"
        files.write(files.user, "[cluster.lab]")
        with pytest.raises(UsageError) as near:
            files.load().cluster("lap")
        assert (near.value.message, near.value.hint) == ("there is no cluster 'lap'", "did you mean lab?")
