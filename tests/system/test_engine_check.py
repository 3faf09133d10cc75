"""`stoker engine check`, `config` and `install` as people type them."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec

from stoker.app.service.doctor import Check
from stoker.cli.screens.engine import ConfigShown
from support.background import Background
from support.cli import PROGRAM, Stoker


class TestCheck:
    """`stoker engine check`."""

    def test_all_is_well(self, background: Background) -> None:
        """A line for each matter, and exit code 0; with an engine at work too."""
        (job,) = background.submit("true")
        background.wait_over(job)
        outcome = background("engine", "check")
        assert outcome.code == 0, outcome.out
        assert outcome.err == ""
        assert f"running (process {background.engine_process})" in outcome.out
        assert all(line.split()[0] in ("ok", "note", "→") for line in outcome.out.splitlines())

    def test_a_problem_is_told_with_what_to_type(self, background: Background) -> None:
        """And the exit code is 1."""
        background.submit("true", start=False)
        outcome = background("engine", "check")
        assert outcome.code == 1
        lines = outcome.out.splitlines()
        place = next(index for index, line in enumerate(lines) if line.startswith("problem"))
        assert "1 job in the queue, but the engine is not running" in lines[place]
        assert lines[place + 1].strip() == "→ stoker engine start"
        assert outcome.err == "1 problem found\n"

    def test_as_json(self, background: Background) -> None:
        """The same, for programs."""
        background.submit("true", start=False)
        outcome = background("engine", "check", "--json")
        assert outcome.code == 1
        check = msgspec.json.decode(outcome.out, type=Check)
        assert (check.schema, check.problems) == ("stoker.engine-check/1", 1)
        assert [each.topic for each in check.findings if each.level == "problem"] == ["engine"]

    def test_variables_of_every_verb_are_known(self, background: Background) -> None:
        """Options of run, submit and the rest; a mistyped one is noted."""
        background.environment |= {"STOKER_GPUS": "1", "STOKER_DEVICES": "0", "STOKER_TIME": "1h", "STOKER_OUTPUT": ""}
        outcome = background("engine", "check", STOKER_DEVICE="0")
        assert "STOKER_DEVICE is not a variable of Stoker" in outcome.out
        assert outcome.out.count("is not a variable of Stoker") == 1

    def test_a_configuration_that_cannot_be_read(self, background: Background) -> None:
        """It is a finding among others, and hides none of them."""
        outcome = background("engine", "check", STOKER_PATIENCE="soon")
        assert outcome.code == 1
        assert "STOKER_PATIENCE is 'soon'" in outcome.out
        assert "limits" in outcome.out


class TestConfig:
    """`stoker engine config`."""

    def test_each_value_has_its_origin(self, stoker: Stoker) -> None:
        """Built in, of a file, of a variable; secrets are hidden."""
        stoker.environment["XDG_CONFIG_HOME"] = str(stoker.home / "config")
        path = stoker.home / "config/stoker/config.toml"
        path.parent.mkdir(parents=True)
        path.write_text('patience = "10s"\n[defaults.env]\nWANDB_API_KEY = "very-secret"\nSEED = "1"\n')
        outcome = stoker("engine", "config", STOKER_MIN_FREE="1")
        rows = [line.split("\t") for line in outcome.out.splitlines()]
        assert rows[0] == ["KEY", "VALUE", "ORIGIN"]
        assert ["patience", "10s", str(path)] in rows
        assert ["min_free", "1", "STOKER_MIN_FREE"] in rows
        assert ["reserve", "512M", "built in"] in rows
        assert ["defaults.env.SEED", "1", str(path)] in rows
        assert "very-secret" not in outcome.out

    def test_as_json(self, stoker: Stoker) -> None:
        """The same, for programs."""
        stoker.environment["XDG_CONFIG_HOME"] = str(stoker.home / "config")
        shown = msgspec.json.decode(stoker("engine", "config", "--json", STOKER_KEEP="forever").out, type=ConfigShown)
        assert shown.schema == "stoker.engine-config/1"
        assert [(row.value, row.origin) for row in shown.settings if row.key == "keep"] == [("forever", "STOKER_KEEP")]

    def test_json_for_all_verbs(self, stoker: Stoker) -> None:
        """STOKER_OUTPUT holds for the engine commands too."""
        for verb in ("config", "check", "status"):
            assert stoker("engine", verb, STOKER_OUTPUT="json").out.startswith('{"schema":"stoker.engine-')

    def test_what_cannot_be_read(self, stoker: Stoker) -> None:
        """The error names the place and what is expected there."""
        outcome = stoker("engine", "config", STOKER_KEEP="long")
        assert outcome.code == 2
        assert "STOKER_KEEP is 'long'" in outcome.err


class TestInstall:
    """`stoker engine install`."""

    def test_the_unit_is_written_and_the_next_steps_are_told(self, stoker: Stoker) -> None:
        """Where systemd looks, with the absolute path of this program; a second time changes nothing."""
        stoker.environment["XDG_CONFIG_HOME"] = str(stoker.home / "config")
        first = stoker("engine", "install")
        assert first.code == 0
        unit = stoker.home / "config/systemd/user/stoker.service"
        assert f"ExecStart={PROGRAM} engine run --stay\n" in unit.read_text()
        assert f"STOKER_STATE={stoker.home}/state" in unit.read_text()
        assert stat.S_ISREG(unit.stat().st_mode)
        for text in ("systemctl --user enable --now stoker.service", "loginctl enable-linger", str(unit)):
            assert text in first.err
        assert ("systemd does not run here" in first.err) is not Path("/run/systemd/system").is_dir()
        assert stoker("engine", "install").code == 0

    def test_it_can_be_printed(self, stoker: Stoker) -> None:
        """Then nothing is written."""
        stoker.environment["XDG_CONFIG_HOME"] = str(stoker.home / "config")
        outcome = stoker("engine", "install", "--print")
        assert "KillMode=process" in outcome.out
        assert not (stoker.home / "config").exists()

    def test_a_unit_of_somebody_elses_stays(self, stoker: Stoker) -> None:
        """It is refused with what to do."""
        stoker.environment["XDG_CONFIG_HOME"] = str(stoker.home / "config")
        unit = stoker.home / "config/systemd/user/stoker.service"
        unit.parent.mkdir(parents=True)
        unit.write_text("[Service]\nExecStart=/my/own\n")
        outcome = stoker("engine", "install")
        assert outcome.code == 2
        assert "--print" in outcome.err
        assert unit.read_text() == "[Service]\nExecStart=/my/own\n"

    def test_what_the_unit_runs(self, background: Background) -> None:
        """Its very command serves the queue in the foreground, and ends when it is told to."""
        process = background.start("engine", "run", "--stay", "--sim", "2x24G")
        (job,) = background.submit("exit 3", start=False)
        background.wait_over(job)
        assert background.ended(job).code == 3
        assert background.engine_process is not None
        process.terminate()
        assert background.finish(process).code == 0
