"""Which file or variable wins, and that every value knows where it came from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.core.errors import UsageError
from stoker.core.settings import KEYS, EngineSettings
from stoker.queue.config import Config, load_config


class Desk:
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
def desk(tmp_path: Path) -> Desk:
    """Nothing is configured."""
    return Desk(tmp_path)


def origin_of(config: Config, key: str) -> tuple[str, str]:
    [found] = [(row.value, row.origin) for row in config.origins() if row.key == key]
    return found


class TestPrecedence:
    """Flag, variable, project, user, machine, built in."""

    def test_nothing(self, desk: Desk) -> None:
        """Without any file all is as built in, and everything is listed as such."""
        config = desk.load()
        assert (config.engine, config.defaults, config.files, config.warnings) == (EngineSettings(), {}, (), ())
        assert {row.origin for row in config.origins()} == {"built in"}
        listed = {row.key for row in config.origins()}
        assert set(KEYS) - listed == {"groups"}
        assert origin_of(config, "reserve") == ("512M", "built in")
        assert origin_of(config, "defaults.vram") == ("all", "built in")

    def test_settings(self, desk: Desk) -> None:
        """Each goes before the next, and the origin is told every time."""
        ladder: list[tuple[str, str]] = []
        desk.write(desk.system, 'reserve = "1G"')
        ladder.append(origin_of(desk.load(), "reserve"))
        desk.write(desk.user, 'reserve = "2G"')
        ladder.append(origin_of(desk.load(), "reserve"))
        ladder.append(origin_of(desk.load({"STOKER_RESERVE": "3G"}), "reserve"))
        ladder.append(origin_of(desk.load({"STOKER_RESERVE": "3G"}, reserve="4G", keep=None), "reserve"))
        places = [str(desk.system), str(desk.user), "STOKER_RESERVE", "--reserve"]
        assert ladder == list(zip(["1G", "2G", "3G", "4G"], places, strict=True))
        assert desk.load({"STOKER_RESERVE": "3G"}, reserve="4G").engine.reserve == 4 * 2**30
        assert desk.load().engine == EngineSettings(reserve=2 * 2**30)

    def test_defaults(self, desk: Desk) -> None:
        """Job options of the project go before those of the user, key by key, and variable by variable in env."""
        desk.write(desk.system, '[defaults]\nvram = "1G"\ngrace = "5s"')
        desk.write(desk.user, '[defaults]\nvram = "2G"\nretries = 1\nenv = {A = "user", B = "user"}')
        desk.write(desk.project, '[defaults]\nvram = "3G"\nenv = {A = "project"}')
        config = desk.load()
        env = {"A": "project", "B": "user"}
        assert config.defaults == {"vram": "3G", "grace": "5s", "retries": 1, "env": env}
        assert origin_of(config, "defaults.env.A") == ("project", str(desk.project))
        assert origin_of(config, "defaults.env.B") == ("user", str(desk.user))
        assert config.files == (desk.system, desk.user, desk.project)

    def test_pyproject(self, desk: Desk) -> None:
        """A table in pyproject.toml does what stoker.toml does."""
        desk.write(desk.project.with_name("pyproject.toml"), "[tool.stoker.defaults]\ngpus = 2")
        assert desk.load().defaults == {"gpus": 2}

    def test_groups(self, desk: Desk) -> None:
        """Limits of groups are set one by one; names may contain dots."""
        desk.write(desk.system, '[groups]\nbig = 1\n"a.b" = 3')
        desk.write(desk.user, "groups.big = 2")
        config = desk.load({"STOKER_GROUPS": "eval=4"})
        assert config.engine.groups == {"big": 2, "a.b": 3, "eval": 4}
        assert origin_of(config, "groups.big") == ("2", str(desk.user))
        assert origin_of(config, "groups.eval") == ("4", "STOKER_GROUPS")

    def test_lists_are_set_as_a_whole(self, desk: Desk) -> None:
        """The user's patterns of secrets are all that count."""
        desk.write(desk.user, 'secrets = ["*KEY*", "SEED"]')
        assert desk.load().engine.secrets == ("*KEY*", "SEED")
        assert origin_of(desk.load(), "secrets") == ("*KEY*,SEED", str(desk.user))

    def test_job_options_from_variables(self, desk: Desk) -> None:
        """They are listed, but not among the defaults: the command line takes them itself, before its flags."""
        desk.write(desk.user, '[defaults]\nvram = "2G"')
        config = desk.load({"STOKER_VRAM": "5G", "STOKER_GPUS": "", "STOKER_ENV": "x"})
        assert config.defaults == {"vram": "2G"}
        assert origin_of(config, "defaults.vram") == ("5G", "STOKER_VRAM")
        assert origin_of(config, "defaults.gpus") == ("1", "built in")
        assert "defaults.env" not in {row.key for row in config.origins()}

    def test_empty_variables(self, desk: Desk) -> None:
        """They count as not set; variables that are no settings are nobody's business."""
        assert desk.load({"STOKER_MAX_USE": "", "STOKER_JOB_ID": "3", "STOKER_STATE": "/s"}).engine == EngineSettings()

    def test_no_directory(self, desk: Desk) -> None:
        """The engine stands in no project."""
        desk.write(desk.project, "[defaults]\ngpus = 2")
        config = load_config(desk.environment, None, system=desk.system)
        assert (config.defaults, config.files) == ({}, ())


class TestMistakes:
    """What cannot be understood is said in one sentence that names the file."""

    def test_unknown_key(self, desk: Desk) -> None:
        """It is an error that names the nearest known one."""
        desk.write(desk.user, "min_fre = 1")
        assert desk.complaint() == (f"{desk.user}: unknown key 'min_fre'", "did you mean min_free?")
        desk.write(desk.user, "qqq = 1")
        assert desk.complaint()[1].startswith("known are devices, strangers")

    def test_option_outside_of_its_table(self, desk: Desk) -> None:
        """A job option at the top is told where it belongs."""
        desk.write(desk.user, 'vram = "8G"')
        assert desk.complaint()[1] == "vram is a job option: put it under [defaults]"
        desk.write(desk.user, "")
        desk.write(desk.project.with_name("pyproject.toml"), "[tool.stoker]\ngpus = 1")
        assert desk.complaint()[1] == "gpus is a job option: put it under [tool.stoker.defaults]"

    def test_wrong_value(self, desk: Desk) -> None:
        """File, key, value and what would be right; also where a stronger file sets another."""
        desk.write(desk.system, 'patience = "long"')
        desk.write(desk.user, 'patience = "2m"')
        expected = f"{desk.system}: patience is 'long', not a duration with a unit"
        assert desk.complaint() == (expected, "for example 60s")

    def test_wrong_default(self, desk: Desk) -> None:
        """The same for a job option."""
        desk.write(desk.project, 'defaults.gpus = "two"')
        assert desk.complaint()[0] == f"{desk.project}: gpus under [defaults] is 'two', not a whole number"

    def test_wrong_variable(self, desk: Desk) -> None:
        """A variable is named like a file."""
        complaint = desk.complaint({"STOKER_STRANGERS": "kill"})
        assert complaint == ("STOKER_STRANGERS is 'kill', not avoid or count", "for example count")

    def test_wrong_flag(self, desk: Desk) -> None:
        """And so is a flag."""
        with pytest.raises(UsageError, match="--min-free is 'x', not a number of GPUs"):
            desk.load(min_free="x")

    def test_not_toml(self, desk: Desk) -> None:
        """A file that is not TOML says so."""
        desk.write(desk.user, "strangers: count")
        assert desk.complaint()[0].startswith(f"{desk.user} is not TOML")

    @pytest.mark.parametrize("key", KEYS)
    def test_engine_keys_in_a_project(self, desk: Desk, key: str) -> None:
        """They are refused with the reason: one engine serves all projects."""
        desk.write(desk.project, f"{key} = 1")
        message, hint = desk.complaint()
        assert message.startswith(f"{desk.project}: {key} cannot be set for one project")
        assert "one engine serves all" in message
        assert "config.toml" in hint


def test_untrusted_project_file(desk: Desk) -> None:
    """A file that everybody may write to sets nothing, and the warning names it."""
    desk.write(desk.project, "[defaults]\nenv = {LD_PRELOAD = 'evil.so'}")
    desk.project.chmod(0o666)
    config = desk.load()
    assert config.defaults == {}
    assert [str(desk.project) in warning for warning in config.warnings] == [True]


def test_secrets_are_not_listed(desk: Desk) -> None:
    """The value of a variable that looks like a secret is used, and not shown."""
    desk.write(desk.user, "[defaults.env]\nHF_TOKEN = 'hf_123'\nSEED = '1'")
    config = desk.load()
    assert config.defaults["env"]["HF_TOKEN"] == "hf_123"
    assert origin_of(config, "defaults.env.HF_TOKEN") == ("********", str(desk.user))
    assert origin_of(config, "defaults.env.SEED") == ("1", str(desk.user))


def test_nothing_is_loaded_for_nothing(desk: Desk) -> None:
    """Where no file is about us, the TOML parser is not even imported."""
    desk.write(desk.project.with_name("pyproject.toml"), "[tool.ruff]")
    program = f"""
import sys
from pathlib import Path
from stoker.queue.config import load_config
load_config({desk.environment!r}, Path({str(desk.project.parent)!r}), system=Path({str(desk.system)!r}))
assert not {{"tomllib", "difflib", "click", "rich", "zoneinfo"}} & set(sys.modules), sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
