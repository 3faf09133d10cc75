"""From what a user asks for to a sweep: commands, files, folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.app.jobs.options import JobOptions
from stoker.core.errors import UsageError
from stoker.core.spec import Command, JobSpec
from stoker.features.sweep.files import asked_of, read_sweep_file
from stoker.features.sweep.folders import PARAMS, make_folders, planned_folders
from stoker.features.sweep.model.grammar import parse_space
from stoker.features.sweep.model.objective import parse_objectives
from stoker.features.sweep.model.record import TrialMaker, trial_jobs
from stoker.features.sweep.model.space import Choices, Space, space_text
from stoker.features.sweep.submit import WANDB_COUNT, SweepPlan, SweepRequest, completed, prepare

TRAIN = Command(("train",))


def prepared(words: str, command: Command = TRAIN, options: JobOptions = JobOptions(), **asked: Any) -> SweepPlan:  # noqa: B008
    return prepare(SweepRequest(space=parse_space(words.split()), command=command, **asked), options)


def lines(found: SweepPlan) -> list[str]:
    """The command lines of all trials."""
    return [job.command.text for job in trial_jobs(found.sweep, JobSpec())]


class TestCommands:
    """How parameters reach the command."""

    def test_without_placeholders_they_are_appended(self) -> None:
        """As options, unless another style is wanted."""
        assert lines(prepared("lr=1,2 d=3")) == ["train --lr=1 --d=3", "train --lr=2 --d=3"]
        assert lines(prepared("lr=1 d=3", style="hydra")) == ["train lr=1 d=3"]
        assert lines(prepared("lr=1 opt.d=3", style="env")) == ["/usr/bin/env LR=1 OPT_D=3 train"]
        assert lines(prepared("lr=1 d=3", style="none")) == ["train"]

    def test_placeholders_of_variables_count(self) -> None:
        """A parameter that --env passes is not appended; one that nobody passes is mentioned."""
        found = prepared("lr=1,2 d=3,4 c=5", options=JobOptions(env={"LR": "{lr}", "SEED": "0"}))
        assert lines(found)[0] == "/usr/bin/env LR=1 train"
        assert found.options.env == {"SEED": "0"}
        assert len(found.notes) == 1
        assert "{d}" in found.notes[0]
        assert "{c}" not in found.notes[0]  # a constant

    def test_a_style_passes_the_rest(self) -> None:
        """With an explicit style, parameters without placeholder are appended."""
        assert lines(prepared("lr=1 d=3", Command(("train", "{lr}")), style="args")) == ["train 1 --d=3"]

    @pytest.mark.parametrize(
        ("words", "given", "message"),
        [
            ("lr=1", {"command": None}, "no command"),
            ("lr=1", {"command": Command(("train", "{lrr}"))}, "no parameter lrr"),
            ("lr=1", {"options": JobOptions(env={"A": "{x}"})}, "no parameter x"),
            ("lr=1", {"results": "runs/{x}"}, "no parameter x"),
            ("lr=1", {"options": JobOptions(array="0-3")}, "--array"),
            ("lr=1", {"method": "gird"}, "no method 'gird'"),
            ("lr=1", {"count": 0}, "-N 0"),
            ("lr=1", {"repeat": -1}, "--repeat -1"),
            ("repeat=1", {"repeat": 2}, "already there"),
            ("a.b=1 a_b=2", {"style": "env"}, "variable A_B"),
        ],
    )
    def test_refused(self, words: str, given: dict[str, Any], message: str) -> None:
        """Before anything is queued."""
        with pytest.raises(UsageError, match=message) as caught:
            prepared(words, **given)
        assert caught.value.hint


WANDB = """
program: train.py
method: bayes
metric: {name: val_loss, goal: minimize}
run_cap: 30
early_terminate: {type: hyperband, min_iter: 3, eta: 2}
command: ["${env}", "${interpreter}", "${program}", "${args}"]
parameters:
  lr: {distribution: log_uniform_values, min: 1e-5, max: 1e-1}
  batch: {values: [16, 32, 64]}
  layers: {min: 1, max: 4}
  drop: {min: 0.0, max: 0.5}
  seed: {value: 7}
  width: {distribution: q_uniform, min: 10, max: 50, q: 10}
  size: {distribution: q_log_uniform_values, min: 16, max: 256, q: 8}
  opt:
    parameters:
      name: {values: [sgd, adam]}
      momentum: {values: [0.8, 0.9], if: {opt.name: sgd}}
"""


VALUES = {"lr": 0.1, "flag": False, "net": None}


def install_only(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this be the only program on the path."""
    folder = tmp_path / f"only-{program}"
    folder.mkdir()
    (folder / program).touch(0o755)
    monkeypatch.setenv("PATH", str(folder))


class TestFiles:
    """TOML, YAML, and the keys of Weights & Biases."""

    @pytest.fixture(autouse=True)
    def _machine_with_python(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        install_only("python", tmp_path, monkeypatch)

    def test_the_interpreter_has_the_name_that_exists(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """W&B's agent calls it python, which some systems do not have."""
        install_only("python3", tmp_path, monkeypatch)
        table = {"program": "train.py", "parameters": {"a": {"values": [1]}}}
        for given in (table, {**table, "command": ["${interpreter}", "${program}", "${args}"]}):
            assert asked_of(given, "/bin/sh").command == Command(("python3", "train.py", "${args}"))

    def test_weights_and_biases(self, tmp_path: Path) -> None:
        """Distributions, nested parameters, the metric and early termination."""
        (tmp_path / "sweep.yaml").write_text(WANDB)
        asked = read_sweep_file(tmp_path / "sweep.yaml", "/bin/sh")
        assert space_text(asked.space) == (
            "lr=1e-05..0.1:log batch=16,32,64 layers=1..4 drop=0.0..0.5 seed=7 width=10..50:10 size=16..256:log:8"
            " opt.name=sgd,adam opt.momentum=0.8,0.9 if opt.name=sgd"
        )
        assert (asked.method, asked.count, asked.objectives, asked.goal) == ("tpe", 30, ("val_loss=wandb",), "min")
        assert asked.pruners == ("hyperband:min=3,eta=2",)
        assert prepare(asked, JobOptions()).sweep.starter[-1] == "--nested=opt"
        assert asked.command == Command(("/usr/bin/env", "python", "train.py", "${args}"))

    @pytest.mark.parametrize(
        ("command", "words"),
        [
            (None, "python train.py --lr=0.1 --flag=False --net=None"),
            ("${interpreter} ${program} ${args} train", "python train.py --lr=0.1 --flag=False --net=None train"),
            ("${env} python ${program}", "/usr/bin/env python train.py"),
            ("${program} ${args_no_hyphens}", "train.py lr=0.1 flag=False net=None"),
            ("${program} ${args_no_equals}", "train.py --lr 0.1 --flag False --net None"),
            ("${program} ${args_append_hydra}", "train.py +lr=0.1 +flag=False +net=None"),
            ("a ${args_json} ${args_no_boolean_flags}", "a ${args_json} ${args_no_boolean_flags}"),
            ("a ${envvar:HOME}/x ${unknown}", "a ${envvar:HOME}/x ${unknown}"),
            ("a --rate {lr} ${args}", "a --rate 0.1 --flag=False --net=None"),
        ],
    )
    def test_macros_of_weights_and_biases(self, command: str | None, words: str) -> None:
        """Arguments stand where their macro is, and nowhere without one; values are those of Python."""
        table = {"program": "train.py", "parameters": {name: {"values": [value]} for name, value in VALUES.items()}}
        given = table if command is None else {**table, "command": command.split()}
        sweep = prepare(asked_of(given, "/bin/sh"), JobOptions()).sweep
        (made,) = TrialMaker(msgspec.structs.replace(sweep, starter=()), JobSpec()).commands()
        assert " ".join(made.words) == words
        (started,) = TrialMaker(sweep, JobSpec()).commands()
        assert started.words[-len(made.words) :] == made.words
        assert "stoker.features.sweep.wandb_trial" in started.words

    def test_what_weights_and_biases_accepts(self) -> None:
        """Blanks in the metric, other words for a goal, lists as values, a value twice, keys that mean nothing."""
        values = {"a": {"values": [[1, 2], {"b": None}]}, "c": {"values": [1, 1, True], "probabilities": [1, 1, 1]}}
        metric = {"name": "best_val F1", "goal": "maximum"}
        table = {"program": "p", "method": "bayes", "metric": metric, "parameters": values, "RUN": 1}
        asked = asked_of(table, "/bin/sh")
        assert parse_objectives(asked.objectives, asked.goal)[0].name == "best_val F1"
        assert (asked.goal, asked.notes) == ("max", ("RUN of the file is not used",))
        assert [one.domain for one in asked.space.parameters] == [
            Choices(("[1, 2]", '{"b": null}'), ("[1, 2]", "{'b': None}")),
            Choices((1, True), ("1", "True")),
        ]
        found = prepare(asked, JobOptions())
        assert found.sweep.count == 4
        assert any("no run_cap; it ends after 4 points" in note for note in found.notes)
        endless = {**table, "parameters": {"lr": {"min": 0.0, "max": 1.0}}}
        assert prepare(asked_of(endless, "/bin/sh"), JobOptions()).sweep.count == WANDB_COUNT

    def test_values_that_wandb_would_not_write(self) -> None:
        """Are refused before anything runs."""
        table = {"program": "p", "metric": {"name": "loss"}, "parameters": {"a": {"values": [1]}}}
        with pytest.raises(UsageError, match="writes no loss"):
            prepare(asked_of(table, "/bin/sh"), JobOptions(env={"WANDB_MODE": "disabled"}))

    def test_toml(self, tmp_path: Path) -> None:
        """Our own keys, ranges as texts, unions, and a command with placeholders."""
        (tmp_path / "s.toml").write_text(
            'method = "random"\ncount = 5\nseed = 3\nrepeat = 2\nmax_parallel = 4\nstyle = "hydra"\n'
            'command = "train --lr {lr}"\nobjective = ["acc:max", "time:min"]\npruner = "median"\n'
            '[parameters]\nlr = "1e-3..1:log"\ntext = "\'1,2\'"\n[[union]]\na = [1, 2]\n[[union]]\nb = true\n'
        )
        asked = read_sweep_file(tmp_path / "s.toml", "/bin/zsh")
        assert space_text(asked.space) == "lr=0.001..1.0:log text='1,2' a=1,2 + lr=0.001..1.0:log text='1,2' b=true"
        assert asked.command == Command(("train --lr {lr}",), "/bin/zsh")
        assert (asked.count, asked.repeat, asked.max_parallel, asked.style) == (5, 2, 4, "hydra")
        assert (asked.objectives, asked.pruners) == (("acc:max", "time:min"), ("median",))

    def test_the_command_line_takes_precedence(self) -> None:
        """Over values of the file; a parameter replaces that of the file, or is added."""
        file = asked_of({"parameters": {"lr": [1, 2], "d": [3]}, "count": 9, "command": ["train"]}, "/bin/sh")
        typed = SweepRequest(space=parse_space(["lr=5", "e=1"]), count=2)
        joined = completed(typed, file)
        assert space_text(joined.space) == "lr=5 d=3 e=1"
        assert (joined.count, joined.command) == (2, Command(("train",)))

    @pytest.mark.parametrize(
        ("typed", "words"),
        [
            ("mine", "mine --lr=0.1 --flag=False"),
            ("mine ${args_no_hyphens} last", "mine lr=0.1 flag=False last"),
            ("mine --rate {lr}", "mine --rate 0.1"),
        ],
    )
    def test_a_typed_command_for_a_file_of_weights_and_biases(self, typed: str, words: str) -> None:
        """It gets its parameters as in any sweep; only commands in such a file need a macro for them."""
        parameters = {"lr": {"values": [0.1]}, "flag": {"values": [False]}}
        file = asked_of({"program": "train.py", "parameters": parameters}, "/bin/sh")
        asked = completed(SweepRequest(space=Space(()), command=Command(tuple(typed.split()))), file)
        sweep = prepare(asked, JobOptions()).sweep
        (made,) = TrialMaker(msgspec.structs.replace(sweep, starter=()), JobSpec()).commands()
        assert " ".join(made.words) == words

    @pytest.mark.parametrize(
        ("table", "message"),
        [
            ({}, "no parameters"),
            ({"paramters": {"lr": [1]}}, "unknown key 'paramters'"),
            ({"parameters": {"lr": {"vlaues": [1]}}}, "lr: unknown key 'vlaues'"),
            ({"parameters": {"lr": {"min": 1}}}, "lr: it has neither"),
            ({"parameters": {"lr": {"min": 2, "max": 1}}}, "lr: the range 2..1 is empty"),
            ({"parameters": {"lr": {"min": 0, "max": 1, "distribution": "log_uniform_values"}}}, "cannot start at 0"),
            ({"parameters": {"lr": {"min": 0, "max": 1, "distribution": "beta"}}}, "'beta' is not supported"),
            ({"parameters": {"lr": [float("nan")]}}, "lr: nan is not a finite number"),
            ({"parameters": {"lr": [1, 1]}}, "lr: the value '1' occurs twice"),
            ({"parameters": {"lr": [[1]]}}, "cannot be a value"),
            ({"parameters": {"a b": [1]}}, "cannot be the name"),
            ({"parameters": [1]}, "parameters is not a table"),
            ({"parameters": [1], "program": "x"}, "parameters is not a table"),
            ({"program": "x"}, "no parameters"),
            ({"parameters": {"a": {"parameters": 1}}, "program": "x"}, "a is not a table"),
            ({"parameters": {"lr": [1]}, "run_cap": "x"}, "run_cap is 'x'"),
            ({"parameters": {"lr": [1]}, "metric": {"goal": "minimize"}}, "metric has no name"),
            ({"parameters": {"lr": [1]}, "early_terminate": {"type": "x"}}, "early_terminate"),
            ({"parameters": {"lr": [1]}, "command": ["${program}"]}, "no program"),
            ({"parameters": {"lr": {"mu": 0, "sigma": 1, "distribution": "normal"}}}, "'normal' is not supported"),
            ({"parameters": {"lr": [1]}, "metric": {"name": "x", "goal": "best"}}, "no goal 'best'"),
            ({"parameters": {"lr": [1]}, "command": 5}, "neither a text nor a list"),
        ],
    )
    def test_refused(self, table: dict[str, Any], message: str) -> None:
        """Each with the place and what to write."""
        with pytest.raises(UsageError, match=message) as caught:
            asked_of(table, "/bin/sh")
        assert caught.value.hint

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.toml", b"a = ", "is not TOML"),
            ("a.toml", b"\xff", "is not TOML"),
            ("a.yaml", b"a: [", "is not YAML"),
            ("a.yaml", b"a: " + b"[" * 1500 + b"]" * 1500, "is not YAML"),
            ("a.toml", b"a = " + b"[" * 5000 + b"]" * 5000, "is not TOML"),
            ("a.toml", b"a." * 20_000 + b"a = 1", "is not TOML"),
            ("a.yaml", b"\xff\xfe\xff", "is not YAML"),
            ("a.yaml", b"- 1", "not a table"),
            ("a.yaml", b"parameters: {lr: [.inf]}", "a.yaml: lr: inf is not"),
        ],
    )
    def test_unreadable(self, tmp_path: Path, name: str, content: bytes, message: str) -> None:
        """A file that is none."""
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=message):
            read_sweep_file(tmp_path / name, "/bin/sh")
        with pytest.raises(UsageError, match="cannot read"):
            read_sweep_file(tmp_path / "missing.yaml", "/bin/sh")


class TestFolders:
    """--results."""

    def planned(self, cwd: Path, words: str, results: str, *, reuse: bool = False) -> dict[Path, str]:
        found = prepared(words, results=results)
        return planned_folders(found.sweep, list(trial_jobs(found.sweep, JobSpec(cwd=str(cwd)))), reuse=reuse)

    def test_each_trial_has_its_own(self, tmp_path: Path) -> None:
        """Made with the parameters in it; undone as a whole."""
        folders = self.planned(tmp_path, "lr=1,../x d=2", "runs/{lr}/{trial}")
        undo = make_folders(folders)
        found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob(PARAMS))
        assert found == ["runs/1/0/params.json", "runs/_x/1/params.json"]
        assert (tmp_path / "runs/1/0" / PARAMS).read_text() == '{"lr":1,"d":2}\n'
        undo()
        assert not list(tmp_path.rglob(PARAMS))

    def test_collisions(self, tmp_path: Path) -> None:
        """Two trials in one folder: a parameter is missing, or two values have the same safe name."""
        for words in ("lr=1,2 d=3", "d=a/b,a_b lr=1"):
            with pytest.raises(UsageError, match="two trials would use the folder") as caught:
                self.planned(tmp_path, words, "runs/{d}")
            assert "{trial}" in caught.value.hint

    def test_existing_folders(self, tmp_path: Path) -> None:
        """Are refused, unless they are to be used again."""
        (tmp_path / "runs/1").mkdir(parents=True)
        with pytest.raises(UsageError, match="exists already") as caught:
            self.planned(tmp_path, "lr=1,2", "runs/{lr}")
        assert "--force" in caught.value.hint
        make_folders(self.planned(tmp_path, "lr=1,2", "runs/{lr}", reuse=True))
        assert (tmp_path / "runs/1" / PARAMS).exists()

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        """Nothing is left of those before it."""
        (tmp_path / "runs").mkdir()
        folders = self.planned(tmp_path, "lr=1,2", "runs/{lr}/x")
        (tmp_path / "runs/2").write_text("a file")
        with pytest.raises(UsageError, match="cannot make"):
            make_folders(folders)
        assert not (tmp_path / "runs/1/x").exists()
