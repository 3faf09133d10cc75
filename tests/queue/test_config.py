"""Which file or variable wins, and that every value knows where it came from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.core.errors import UsageError
from stoker.core.settings import KEYS, EngineSettings
from stoker.queue.config import Config, load_config
from support.wait import PATIENCE_SECONDS


class JobBuilder:
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
def builder(tmp_path: Path) -> JobBuilder:
    """Nothing is configured."""
    return JobBuilder(tmp_path)


def origin_of(config: Config, key: str) -> tuple[str, str]:
    [found] = [(row.value, row.origin) for row in config.origins() if row.key == key]
    return found


class TestPrecedence:
    """Flag, variable, project, user, machine, built in."""

    def test_nothing(self, builder: JobBuilder) -> None:
        """Without any file all is as built in, and everything is listed as such."""
        config = builder.load()
        assert (config.engine, config.defaults, config.files, config.warnings) == (EngineSettings(), {}, (), ())
        assert {row.origin for row in config.origins()} == {"built in"}
        listed = {row.key for row in config.origins()}
        assert set(KEYS) - listed == {"groups"}
        assert origin_of(config, "reserve") == ("512M", "built in")
        assert origin_of(config, "defaults.vram") == ("all", "built in")

    def test_settings(self, builder: JobBuilder) -> None:
        """Each goes before the next, and the origin is told every time."""
        ladder: list[tuple[str, str]] = []
        builder.write(builder.system, 'reserve = "1G"')
        ladder.append(origin_of(builder.load(), "reserve"))
        builder.write(builder.user, 'reserve = "2G"')
        ladder.append(origin_of(builder.load(), "reserve"))
        ladder.append(origin_of(builder.load({"STOKER_RESERVE": "3G"}), "reserve"))
        ladder.append(origin_of(builder.load({"STOKER_RESERVE": "3G"}, reserve="4G", keep=None), "reserve"))
        paths = [str(builder.system), str(builder.user), "STOKER_RESERVE", "--reserve"]
        assert ladder == list(zip(["1G", "2G", "3G", "4G"], paths, strict=True))
        assert builder.load({"STOKER_RESERVE": "3G"}, reserve="4G").engine.reserve == 4 * 2**30
        assert builder.load().engine == EngineSettings(reserve=2 * 2**30)

    def test_defaults(self, builder: JobBuilder) -> None:
        """Job options of the project go before those of the user, key by key, and variable by variable in env."""
        builder.write(builder.system, '[defaults]\nvram = "1G"\ngrace = "5s"')
        builder.write(builder.user, '[defaults]\nvram = "2G"\nretries = 1\nenv = {A = "user", B = "user"}')
        builder.write(builder.project, '[defaults]\nvram = "3G"\nenv = {A = "project"}')
        config = builder.load()
        env = {"A": "project", "B": "user"}
        assert config.defaults == {"vram": "3G", "grace": "5s", "retries": 1, "env": env}
        assert origin_of(config, "defaults.env.A") == ("project", str(builder.project))
        assert origin_of(config, "defaults.env.B") == ("user", str(builder.user))
        assert config.files == (builder.system, builder.user, builder.project)

    def test_pyproject(self, builder: JobBuilder) -> None:
        """A table in pyproject.toml does what stoker.toml does."""
        builder.write(builder.project.with_name("pyproject.toml"), "[tool.stoker.defaults]\ngpus = 2")
        assert builder.load().defaults == {"gpus": 2}

    def test_groups(self, builder: JobBuilder) -> None:
        """Limits of groups are set one by one; names may contain dots."""
        builder.write(builder.system, '[groups]\nbig = 1\n"a.b" = 3')
        builder.write(builder.user, "groups.big = 2")
        config = builder.load({"STOKER_GROUPS": "eval=4"})
        assert config.engine.groups == {"big": 2, "a.b": 3, "eval": 4}
        assert origin_of(config, "groups.big") == ("2", str(builder.user))
        assert origin_of(config, "groups.eval") == ("4", "STOKER_GROUPS")

    def test_lists_are_set_as_a_whole(self, builder: JobBuilder) -> None:
        """The user's patterns of secrets are all that count."""
        builder.write(builder.user, 'secrets = ["*KEY*", "SEED"]')
        assert builder.load().engine.secrets == ("*KEY*", "SEED")
        assert origin_of(builder.load(), "secrets") == ("*KEY*,SEED", str(builder.user))

    def test_job_options_from_variables(self, builder: JobBuilder) -> None:
        """They are listed, but not among the defaults: the command line takes them itself, before its flags."""
        builder.write(builder.user, '[defaults]\nvram = "2G"')
        config = builder.load({"STOKER_VRAM": "5G", "STOKER_GPUS": "", "STOKER_ENV": "x"})
        assert config.defaults == {"vram": "2G"}
        assert origin_of(config, "defaults.vram") == ("5G", "STOKER_VRAM")
        assert origin_of(config, "defaults.gpus") == ("1", "built in")
        assert "defaults.env" not in {row.key for row in config.origins()}

    def test_empty_variables(self, builder: JobBuilder) -> None:
        """They count as not set; variables that are no settings are nobody's business."""
        assert (
            builder.load({"STOKER_MAX_USE": "", "STOKER_JOB_ID": "3", "STOKER_STATE": "/s"}).engine == EngineSettings()
        )

    def test_no_directory(self, builder: JobBuilder) -> None:
        """The engine stands in no project."""
        builder.write(builder.project, "[defaults]\ngpus = 2")
        config = load_config(builder.environment, None, system=builder.system)
        assert (config.defaults, config.files) == ({}, ())


class TestMistakes:
    """What cannot be understood is said in one sentence that names the file."""

    def test_unknown_key(self, builder: JobBuilder) -> None:
        """It is an error that names the nearest known one."""
        builder.write(builder.user, "min_fre = 1")
        assert builder.complaint() == (f"{builder.user}: unknown key 'min_fre'", "did you mean min_free?")
        builder.write(builder.user, "qqq = 1")
        assert builder.complaint()[1].startswith("known are devices, strangers")

    def test_option_outside_of_its_table(self, builder: JobBuilder) -> None:
        """A job option at the top is told where it belongs."""
        builder.write(builder.user, 'vram = "8G"')
        assert builder.complaint()[1] == "vram is a job option: put it under [defaults]"
        builder.write(builder.user, "")
        builder.write(builder.project.with_name("pyproject.toml"), "[tool.stoker]\ngpus = 1")
        assert builder.complaint()[1] == "gpus is a job option: put it under [tool.stoker.defaults]"

    def test_wrong_value(self, builder: JobBuilder) -> None:
        """File, key, value and what would be right; also where a stronger file sets another."""
        builder.write(builder.system, 'patience = "long"')
        builder.write(builder.user, 'patience = "2m"')
        expected = f"{builder.system}: patience is 'long', not a duration with a unit"
        assert builder.complaint() == (expected, "for example 60s")

    def test_wrong_default(self, builder: JobBuilder) -> None:
        """The same for a job option."""
        builder.write(builder.project, 'defaults.gpus = "two"')
        assert builder.complaint()[0] == f"{builder.project}: gpus under [defaults] is 'two', not a whole number"

    def test_wrong_variable(self, builder: JobBuilder) -> None:
        """A variable is named like a file."""
        complaint = builder.complaint({"STOKER_STRANGERS": "kill"})
        assert complaint == ("STOKER_STRANGERS is 'kill', not avoid or count", "for example count")

    def test_wrong_flag(self, builder: JobBuilder) -> None:
        """And so is a flag."""
        with pytest.raises(UsageError, match="--min-free is 'x', not a number of GPUs"):
            builder.load(min_free="x")

    def test_not_toml(self, builder: JobBuilder) -> None:
        """A file that is not TOML says so."""
        builder.write(builder.user, "strangers: count")
        assert builder.complaint()[0].startswith(f"{builder.user} is not TOML")

    @pytest.mark.parametrize("key", KEYS)
    def test_engine_keys_in_a_project(self, builder: JobBuilder, key: str) -> None:
        """They are refused with the reason: one engine serves all projects."""
        builder.write(builder.project, f"{key} = 1")
        message, hint = builder.complaint()
        assert message.startswith(f"{builder.project}: {key} cannot be set for one project")
        assert "one engine serves all" in message
        assert "config.toml" in hint


def test_untrusted_project_file(builder: JobBuilder) -> None:
    """A file that everybody may write to sets nothing, and the warning names it."""
    builder.write(builder.project, "[defaults]\nenv = {LD_PRELOAD = 'evil.so'}")
    builder.project.chmod(0o666)
    config = builder.load()
    assert config.defaults == {}
    assert [str(builder.project) in warning for warning in config.warnings] == [True]


def test_secrets_are_not_listed(builder: JobBuilder) -> None:
    """The value of a variable that looks like a secret is used, and not shown."""
    builder.write(builder.user, "[defaults.env]\nHF_TOKEN = 'hf_123'\nSEED = '1'")
    config = builder.load()
    assert config.defaults["env"]["HF_TOKEN"] == "hf_123"
    assert origin_of(config, "defaults.env.HF_TOKEN") == ("********", str(builder.user))
    assert origin_of(config, "defaults.env.SEED") == ("1", str(builder.user))


def test_nothing_is_loaded_for_nothing(builder: JobBuilder) -> None:
    """Where no file is about us, the TOML parser is not even imported."""
    builder.write(builder.project.with_name("pyproject.toml"), "[tool.ruff]")
    program = f"""
import sys
from pathlib import Path
from stoker.queue.config import load_config
load_config({builder.environment!r}, Path({str(builder.project.parent)!r}), system=Path({str(builder.system)!r}))
assert not {{"tomllib", "difflib", "click", "rich", "zoneinfo"}} & set(sys.modules), sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_SECONDS)
