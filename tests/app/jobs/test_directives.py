"""Options in #STOKER and #SBATCH lines, and the page that lists them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stoker.app.jobs.directives import FLAGS, IGNORED, PASSED, SHORT, UNSUPPORTED, Directives, read_directives
from stoker.app.jobs.options import BY_NAME, SET_BY_STOKER, JobOptions
from stoker.cli.main import ALIASES, COMMANDS
from stoker.core.errors import UsageError
from stoker.core.launch import SLURM_VARIABLES

PAGE = Path(__file__).parents[3] / "docs/from-slurm.md"


def read(*lines: str) -> Directives:
    return read_directives("\n".join(["#!/bin/bash", *lines, ""]).encode(), "job.sh")


def sbatch(*options: str) -> JobOptions:
    return read(*(f"#SBATCH {option}" for option in options)).options


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--job-name=train", {"name": "train"}),
        ("-J train", {"name": "train"}),
        ("-Jtrain", {"name": "train"}),
        ("--job-name 'two words'  # a comment", {"name": "two words"}),
        ("--job=train", {"name": "train"}),
        ("--gres=gpu:2", {"gpus": 2}),
        ("--gres=gpu", {"gpus": 1}),
        ("--gres=gpu:a100:2,tmpfs:10G", {"gpus": 2, "gpu_type": "a100"}),
        ("--gres=gpu:a100", {"gpus": 1, "gpu_type": "a100"}),
        ("--gres=none", {"gpus": 0}),
        ("--gpus=v100:1,a100:1", {"gpus": 2}),
        ("-G 3", {"gpus": 3}),
        ("--gpus-per-node=a100:4", {"gpus": 4, "gpu_type": "a100"}),
        ("--ntasks=2 --gpus-per-task=2", {"gpus": 4}),
        ("--gpus-per-task=1 --gres=gpu:4", {"gpus": 4}),
        ("--time=1-02:00:00", {"time": "1-02:00:00"}),
        ("-t UNLIMITED", {}),
        ("--array=0-9%4", {"array": "0-9%4"}),
        ("--dependency=afterok:12:13", {"after": "afterok:12:13"}),
        ("-o %x-%j.out -e %x-%j.err", {"out": "%x-%j.out", "err": "%x-%j.err"}),
        ("-D /scratch", {"chdir": "/scratch"}),
        ("--comment='night run'", {"tag": {"comment": "night run"}}),
        ("--nice=10", {"priority": -10}),
        ("--nice", {"priority": -100}),
        ("-b now+1hour", {"begin": "now+1hour"}),
        ("--signal=B:USR1@60", {"signal": "B:USR1@60"}),
        ("--requeue", {"no_requeue": False}),
        ("--no-requeue", {"no_requeue": True}),
        ("--export=ALL,SEED=1,HOME", {"env": {"SEED": "1"}}),
        ("-c 8", {"env": {"SLURM_CPUS_PER_TASK": "8"}}),
        ("-N 2 --gres=gpu:4", {"nodes": 2, "gpus": 8}),
        ("--gpus-per-node=2 --nodes=2-4", {"nodes": 2, "gpus": 4}),
        ("--nodes=2 --ntasks-per-node=4 --gpus-per-task=1", {"nodes": 2, "gpus": 8}),
        ("--nodes=2 --gpus=2", {"nodes": 2, "gpus": 2}),
    ],
)
def test_a_flag_becomes_an_option(line: str, expected: dict[str, Any]) -> None:
    """Long, short, shortened and joined forms; quotes and comments as in sbatch."""
    assert sbatch(line) == JobOptions(**expected)


def test_only_lines_above_the_first_command_count() -> None:
    """Empty lines and comments do not end them; a later line is reported."""
    found = read("", "# text", "##SBATCH -J no", "#SBATCHX -J no", "#SBATCH -J yes", "echo", "#SBATCH -t 5")
    assert (found.options, found.late) == (JobOptions(name="yes"), 8)
    assert list(found.notes("job.sh")) == [
        "warning: job.sh line 8: options after the first command are not read, as in sbatch"
    ]


def test_stoker_lines_override_slurm_lines() -> None:
    """Whatever their order; tables are merged."""
    found = read("#STOKER -G 1 --vram 6G --tag a=1 --no-cap", "#SBATCH --gpus=4 --comment=x --time=5")
    expected = JobOptions(gpus=1, vram="6G", time="5", cap=False, tag={"comment": "x", "a": "1"})
    assert (found.options, found.from_slurm) == (expected, True)
    assert not read("#STOKER --mps --no-requeue").from_slurm
    assert read("#STOKER --mps --no-requeue").options == JobOptions(mps="true", no_requeue=True)


def test_flags_without_effect_are_named_once() -> None:
    """One line for those of a cluster, which gets most of them, one warning for the rest."""
    found = read("#SBATCH -p gpu --partition=cpu -A lab --mem 4G -N1 -n 1", "#SBATCH --hold --new-flag 3 -Z")
    assert found.options == JobOptions()
    assert list(found.notes("job.sh")) == [
        "job.sh: on one machine these #SBATCH options are ignored: --nodes, --partition, --account, --mem, --ntasks",
        "warning: job.sh: these #SBATCH options are not applied: --hold, --new-flag (unknown), -Z (unknown)",
    ]
    assert found.passed == {"partition": "cpu", "account": "lab", "mem": "4G", "ntasks": "1"}
    assert next(found.notes("job.sh", passes=True)) == "job.sh: these #SBATCH options are ignored: --nodes"


def test_a_script_without_lines_has_no_notes() -> None:
    """Nothing is said where there is nothing to say."""
    assert read("echo hello", "# SBATCH") == Directives()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("#SBATCH --time=soon", "job.sh line 2: 'soon' is not a duration"),
        ("#SBATCH --gpus=two:x", "job.sh line 2: 'two:x' is not a number of GPUs"),
        ("#SBATCH --dependency=singleton:1", "is not a kind of dependency"),
        ("#SBATCH --dependency=singleton", "job.sh line 2: --dependency=singleton is not supported"),
        ("#SBATCH hetjob", "job.sh line 2: a heterogeneous job (hetjob) is not supported"),
        ("#SBATCH --nodes=some", "job.sh line 2: --nodes=some is not a number"),
        ("#SBATCH --nice=low", "job.sh line 2: --nice=low is not a number"),
        ("#SBATCH --job-name", "job.sh line 2: --job-name needs a value"),
        ("#SBATCH --requeue=yes", "job.sh line 2: --requeue takes no value"),
        ("#SBATCH job", "job.sh line 2: 'job' is not an option"),
        ("#SBATCH --comment='open", "job.sh line 2: no closing quotation"),
        ("#STOKER --gpus two", "job.sh line 2: --gpus 'two' is not a number"),
        ("#STOKER --vrm 6G", "job.sh line 2: --vrm is not a job option"),
        ("#STOKER --hold", "job.sh line 2: --hold is not a job option"),
        ("#STOKER --time never", "job.sh line 2: 'never' is not a duration"),
        ("#STOKER --env SEED", "is not of the form NAME=VALUE"),
    ],
)
def test_a_mistake_is_refused_with_its_line(line: str, said: str) -> None:
    """A job never starts with an option that was meant otherwise."""
    with pytest.raises(UsageError, match=re.escape(said)):
        read(line)


# -- docs/from-slurm.md ----------------------------------------------------------------------------


def table(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_the_page_lists_every_flag() -> None:
    """With its short form and its meaning here."""
    meanings = {
        **{flag.long: f"`--{flag.option.replace('_', '-')}`" for flag in FLAGS},
        **dict.fromkeys(UNSUPPORTED, "not applied"),
    }
    letters = {long: f", `-{short}`" for short, long in SHORT.items()}
    listed = {row[0]: row[1] for row in table("Flags")}
    assert listed == {f"`--{long}`{letters.get(long, '')}": meaning for long, meaning in meanings.items()}
    section = PAGE.read_text().split("\n## Flags\n")[1].split("\n## ")[0]
    sentences = set(re.findall("`--([a-z-]+)`", "\n".join(line for line in section.splitlines() if line[:1] != "|")))
    assert sentences - {"slurm", "notify", "vram", "gpu-type", "part"} == {*PASSED, *IGNORED}


def test_flags_lead_to_options_that_exist() -> None:
    """Each becomes a job option; none of those can be given to sbatch by hand."""
    assert {flag.long for flag in FLAGS} <= SET_BY_STOKER
    assert not SET_BY_STOKER & PASSED.keys()
    assert {flag.option for flag in FLAGS} <= BY_NAME.keys()


def test_the_page_lists_every_variable() -> None:
    """Those of Slurm that jobs may get."""
    assert {row[0] for row in table("Variables")} == {f"`{name}`" for name in SLURM_VARIABLES}


def test_the_page_names_commands_that_exist() -> None:
    """Every command of Stoker in the table is one."""
    words = [row[1].strip("`").split() for row in table("Commands")]
    assert {row[1] for row in words if len(row) > 1} <= {*COMMANDS, *ALIASES}


def test_a_job_that_slurm_may_requeue_gives_way() -> None:
    """If it also asks for a signal, it can save; either line alone does not say so."""
    both = sbatch("--requeue", "--signal=B:USR2@90")
    assert (both.preemptible, both.save_signal, both.save_time) == ("save", "USR2", "90s")
    assert sbatch("--requeue").preemptible is None
    assert sbatch("--signal=USR2@90").preemptible is None
    overridden = read("#SBATCH --requeue", "#SBATCH --signal=USR1@60", "#STOKER --preemptible restart").options
    assert overridden.preemptible == "restart"
