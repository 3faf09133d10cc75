"""Scripts as people type them after `stoker run` and `stoker submit`: one job, never a list of commands."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from support.background import Background
from support.cli import Outcome, Stoker

RUN = ("run", "--devices", "0")
SHEBANG = "#!/bin/bash"


def script(stoker: Stoker, name: str, *lines: str, mode: int = 0o755) -> Path:
    """A script in the working directory."""
    path = stoker.write(name, *lines)
    path.chmod(mode)
    return path


def copies(stoker: Stoker) -> list[Path]:
    """The copies of scripts that are kept."""
    return sorted((stoker.home / "state").glob("*/scripts/*/*"))


def submitted(queue: Background, *arguments: str) -> str:
    """What a submitted job writes."""
    outcome = queue("submit", "--parsable", "-G", "0", *arguments)
    assert outcome.code == 0, outcome.err
    queue.wait_over(int(outcome.out))
    return (queue.paths.logs / f"{outcome.out.strip()}.log").read_text()


def assert_refused(outcome: Outcome, *words: str, code: int = 2) -> None:
    """An error that contains all of the words."""
    assert (outcome.code, outcome.out) == (code, "")
    assert [word for word in words if word not in outcome.err] == [], outcome.err


# -- one job -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o755, 0o644])
@pytest.mark.parametrize("typed", ["multi.sh", "./multi.sh", "multi"])
def test_a_script_is_one_job(stoker: Stoker, typed: str, mode: int) -> None:
    """Its lines run in order, in one process, in the directory it was typed in: `cd` and loops work."""
    (stoker.cwd / "elsewhere").mkdir()
    lines = ("set -e", "cd elsewhere", "echo A > probe", "for i in 1 2; do", "echo $i", "done")
    script(stoker, typed, SHEBANG, *lines, mode=mode)
    result = stoker(*RUN, typed)
    assert (result.code, result.out, result.err) == (0, "1\n2\n", "")
    assert stoker.lines("elsewhere/probe") == ["A"]
    assert sorted(os.listdir(stoker.cwd)) == ["elsewhere", Path(typed).name]


def test_a_script_stops_where_it_fails(stoker: Stoker) -> None:
    """The code of the script is ours, and nothing after its failure runs."""
    script(stoker, "job.sh", SHEBANG, "set -e", "(exit 3)", "touch after")
    assert stoker(*RUN, "job.sh").code == 3
    assert not (stoker.cwd / "after").exists()


@pytest.mark.parametrize(("name", "shell"), [("job.sh", "sh"), ("job.bash", "bash"), ("job.SH", "sh")])
def test_the_suffix_names_the_shell(stoker: Stoker, name: str, shell: str) -> None:
    """A shell script without #! is run by the shell of its suffix, executable or not."""
    stoker.write(name, "x=1", 'echo "$x $1 $(ps -o comm= $$)"')
    assert stoker(*RUN, name, "two words").out.split() == ["1", "two", "words", shell]


def test_words_after_a_script_are_its_arguments(stoker: Stoker) -> None:
    """As they are typed, also where they look like options of ours or contain --."""
    script(stoker, "job.sh", SHEBANG, 'printf "%s|" "$@"')
    assert stoker(*RUN, "job.sh", "a b", "-G", "--", "$HOME", "{i}").out == "a b|-G|--|$HOME|{i}|"


def test_a_script_is_told_where_it_is(stoker: Stoker) -> None:
    """$0 is the copy, which has the same name; STOKER_SCRIPT is the script, and the directory is the caller's."""
    (stoker.cwd / "my scripts").mkdir()
    script(stoker, "my scripts/my job.sh", SHEBANG, 'echo "$0"; echo "$STOKER_SCRIPT"; pwd')
    copy, path, place = stoker(*RUN, "my scripts/my job.sh").out.splitlines()
    assert (path, place) == (str(stoker.cwd / "my scripts/my job.sh"), str(stoker.cwd))
    assert copies(stoker) == [Path(copy)]
    assert (Path(copy).name, Path(copy).stat().st_mode & 0o777) == ("my job.sh", 0o500)
    assert [folder.stat().st_mode & 0o777 for folder in Path(copy).parents[:2]] == [0o700, 0o700]


def test_a_link_to_a_script_is_a_script(stoker: Stoker) -> None:
    """Its target tells what it is, and its own name is the one that is shown."""
    script(stoker, "job.sh", "echo $STOKER_SCRIPT", mode=0o644)
    stoker.write("train.py", "import os")
    (stoker.cwd / "link").symlink_to("job.sh")
    (stoker.cwd / "train").symlink_to("train.py")
    assert stoker(*RUN, "link").out == f"{stoker.cwd}/link\n"
    assert_refused(stoker("run", "train"), "type: stoker run -- python train\n")


def test_a_name_with_braces_is_no_placeholder(stoker: Stoker) -> None:
    """The indices of an array are filled into arguments, not into the name of the copy."""
    script(stoker, "job{i}.sh", SHEBANG, "echo $1 $STOKER_ARRAY_INDEX >> ran")
    result = stoker(*RUN, "-a", "0-2", "./job{i}.sh", "task-{i}")
    assert result.code == 0, result.err
    assert sorted(stoker.lines("ran")) == ["task-0 0", "task-1 1", "task-2 2"]
    assert len(copies(stoker)) == 1


def test_a_program_is_a_command(stoker: Stoker) -> None:
    """An executable that is no script is executed as it is, with or without a slash, and not copied."""
    program = shutil.which("echo")
    assert program
    shutil.copy(program, stoker.cwd / "prog")
    assert stoker(*RUN, "./prog", "a").out == "a\n"
    assert stoker(*RUN, "prog").out == "\n"
    assert copies(stoker) == []
    (stoker.cwd / "prog").chmod(0o644)
    assert_refused(stoker("run", "./prog"), "not executable", "type: chmod +x ./prog")


def test_a_program_on_the_path_goes_before_a_file(stoker: Stoker) -> None:
    """`stoker run echo x` is the echo of everywhere else, whatever lies in the directory."""
    script(stoker, "echo", SHEBANG, "exit 9")
    assert stoker(*RUN, "echo", "x").out == "x\n"


def test_dashes_mean_the_words_as_they_are(stoker: Stoker) -> None:
    """Behind -- a script is executed where it is, without a copy."""
    path = script(stoker, "job.sh", SHEBANG, 'echo "$0 ${STOKER_SCRIPT-none}"')
    assert stoker(*RUN, "--", "./job.sh").out == "./job.sh none\n"
    assert stoker(*RUN, "--", str(path)).out == f"{path} none\n"
    assert copies(stoker) == []


# -- lists ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jobs.txt", "jobs", "jobs.cmds"])
def test_a_list_is_a_list(stoker: Stoker, name: str) -> None:
    """A file that is not executable, has no #! line and no suffix of a script."""
    stoker.write(name, "# comment", "echo one >> ran", "echo two >> ran")
    assert stoker(*RUN, name).code == 0
    assert sorted(stoker.lines("ran")) == ["one", "two"]


@pytest.mark.parametrize("option", ["-f", "--file"])
def test_a_script_that_is_said_to_be_a_list(stoker: Stoker, option: str) -> None:
    """With -f every file is a list: the user said so."""
    script(stoker, "jobs.sh", SHEBANG, "echo one >> ran", "echo two >> ran")
    result = stoker(*RUN, option, "jobs.sh")
    assert (result.code, "2 ok" in result.err) == (0, True)
    assert sorted(stoker.lines("ran")) == ["one", "two"]


def test_standard_input_stays_a_list(stoker: Stoker) -> None:
    """Also with a #! line, and where it is given with -f."""
    for arguments in (["-"], ["-f", "-"]):
        assert stoker(*RUN, *arguments, stdin=f"{SHEBANG}\necho one >> ran\n").code == 0
    assert stoker.lines("ran") == ["one", "one"]


def test_a_list_with_options_may_be_executable(stoker: Stoker) -> None:
    """On some file systems everything is; no shell reads JSON, TOML or CSV line by line."""
    script(stoker, "jobs.jsonl", '{"command": "echo one >> ran"}')
    assert stoker(*RUN, "jobs.jsonl").code == 0
    assert stoker.lines("ran") == ["one"]


def test_a_file_and_a_command(stoker: Stoker) -> None:
    """Not both."""
    stoker.write("jobs.txt", "true")
    assert_refused(stoker("run", "-f", "jobs.txt", "true"), "both a file and a command")


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["run", "submit"])
@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("train.py", "python train.py --lr 1"),
        ("fit.R", "Rscript fit.R --lr 1"),
        ("fit.jl", "julia fit.jl --lr 1"),
        ("nb.ipynb", "jupyter nbconvert --to notebook --execute nb.ipynb --lr 1"),
        ("job.fish", "fish job.fish --lr 1"),
        ("x.pl", "perl x.pl --lr 1"),
    ],
)
@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_a_script_that_names_no_interpreter(stoker: Stoker, verb: str, name: str, command: str, mode: int) -> None:
    """The answer is the very line to type, with the options that were typed."""
    script(stoker, name, "import os", "touch ran", mode=mode)
    assert_refused(stoker(verb, "-G", "0", name, "--lr", "1"), f"type: stoker {verb} -G 0 -- {command}\n")
    refused = stoker(verb, f"./{name}")
    assert_refused(refused, f"type: stoker {verb} -- ")
    assert "-f" not in refused.err
    assert not (stoker.cwd / "ran").exists()


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_files_that_are_neither(stoker: Stoker, verb: str) -> None:
    """Each refusal says what to do."""
    script(stoker, "jobs", "touch ran")
    assert_refused(stoker(verb, "./jobs"), "executable, but has no #! line", f"type: stoker {verb} -f ./jobs")
    script(stoker, "crlf.sh", "#!/bin/bash\r", "touch ran\r")
    assert_refused(stoker(verb, "crlf.sh"), "CR LF", r"type: sed -i 's/\r$//' crlf.sh")
    script(stoker, "bom.sh", "\ufeff#!/bin/bash", "touch ran")
    assert_refused(stoker(verb, "bom.sh"), "byte order mark", "sed -i")
    script(stoker, "gone.sh", "#!/no/such/shell", "touch ran")
    assert_refused(stoker(verb, "gone.sh"), "names /no/such/shell, which does not exist")
    script(stoker, "none.sh", "#! ", "touch ran")
    assert_refused(stoker(verb, "none.sh"), "names no interpreter")
    for name in ("empty.sh", "empty"):
        (stoker.cwd / name).touch(0o755)
        assert_refused(stoker(verb, f"./{name}"), f"./{name} is empty")
    (stoker.cwd / "folder.sh").mkdir()
    assert_refused(stoker(verb, "folder.sh"), "folder.sh is a directory")
    assert_refused(stoker(verb, "lost.sh", "a"), "cannot find the script", f"type: stoker {verb} -- ./lost.sh a")
    assert not (stoker.cwd / "ran").exists()


def test_the_advice_about_line_ends_helps(stoker: Stoker) -> None:
    """What is printed can be typed."""
    script(stoker, "crlf.sh", "#!/bin/bash\r", "echo fine\r")
    advice = stoker(*RUN, "crlf.sh").err.partition("type: ")[2]
    assert stoker.typed(advice).code == 0
    assert stoker(*RUN, "crlf.sh").out == "fine\n"


def test_a_script_that_is_too_large_to_copy(stoker: Stoker) -> None:
    """It can be run where it is, and the answer says how."""
    path = script(stoker, "big.sh", SHEBANG, "exit 0")
    os.truncate(path, 10 * 2**20 + 1)
    assert_refused(stoker("run", "-G", "0", "big.sh", "a"), "larger than 10M", "stoker run -G 0 -- ./big.sh a\n")


def test_a_command_line_that_ends_like_a_script(stoker: Stoker) -> None:
    """One quoted word with blanks goes through the shell, as ever."""
    stoker.write("job.sh", "echo fine")
    assert stoker(*RUN, "sh job.sh").out == "fine\n"


# -- dry runs and resuming -----------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_a_dry_run_copies_nothing(background: Background, verb: str) -> None:
    """It shows one job as it was typed."""
    script(background, "job.sh", SHEBANG, "echo 1", "echo 2")
    result = background(verb, "-G", "0", "--dry-run", "./job.sh", "a b")
    assert result.code == 0, result.err
    _, line = result.out.splitlines()
    assert "\tjob.sh 'a b'\t" in line
    assert copies(background) == []


def test_resume_goes_by_the_content_of_the_script(stoker: Stoker) -> None:
    """An unchanged script that succeeded is skipped; a changed one, or other arguments, is other work."""

    def resume(*arguments: str) -> int:
        assert stoker(*RUN, "--resume", "job.sh", *arguments).code == 0
        return len(stoker.lines("ran"))

    script(stoker, "job.sh", SHEBANG, "echo >> ran")
    assert [resume(), resume(), resume("a"), resume("a")] == [1, 1, 2, 2]
    script(stoker, "job.sh", SHEBANG, "echo >> ran # changed")
    assert [resume(), resume()] == [3, 3]
    script(stoker, "job.sh", SHEBANG, "echo >> ran")
    assert resume() == 3
    assert "succeeded before" in stoker(*RUN, "--resume", "--dry-run", "job.sh").out


# -- the queue -----------------------------------------------------------------------------------


def test_later_edits_do_not_change_queued_work(background: Background) -> None:
    """The job runs what was submitted, even if the script is gone by then."""
    path = script(background, "job.sh", SHEBANG, "echo first $1")
    assert background("submit", "--hold", "-G", "0", "job.sh", "a").out == "submitted 1: job.sh a\n"
    script(background, "job.sh", SHEBANG, "echo second $1")
    assert background("submit", "--hold", "-G", "0", "job.sh", "b").out == "submitted 2: job.sh b\n"
    path.unlink()
    background("resume", "1", "2")
    background.wait_over(1, 2)
    assert [(background.paths.logs / f"{number}.log").read_text() for number in (1, 2)] == ["first a\n", "second b\n"]


def test_equal_scripts_share_a_copy(background: Background) -> None:
    """A copy that a job has damaged is made anew for the next one."""
    script(background, "job.sh", SHEBANG, "echo fine")
    assert [submitted(background, "job.sh"), submitted(background, "./job.sh", "a")] == ["fine\n", "fine\n"]
    (copy,) = copies(background)
    copy.chmod(0o700)
    copy.write_text("#!/bin/sh\necho damaged\n")
    assert submitted(background, "job.sh") == "fine\n"
    assert copies(background) == [copy]


def test_a_submitted_script_in_an_array(background: Background) -> None:
    """Each task gets its index, in its arguments and in its environment."""
    script(background, "job.sh", SHEBANG, "echo $1 $STOKER_ARRAY_INDEX")
    outcome = background("submit", "-G", "0", "-a", "3-4", "job.sh", "task-{i}")
    assert outcome.out == "submitted 1 (tasks 3-4): job.sh task-{i}\n"
    background.wait_over(1, 2)
    assert [(background.paths.logs / f"1/{task}.log").read_text() for task in (3, 4)] == ["task-3 3\n", "task-4 4\n"]


def test_status_and_history_show_what_was_typed(background: Background) -> None:
    """The place of the copy is nobody's business."""
    background.write("job.sh", "true")
    background("submit", "--hold", "-G", "0", "./job.sh", "a")
    assert background("status", "--plain").out.splitlines()[-1].endswith("\tsh job.sh a")
    background("resume", "1")
    background.wait_over(1)
    assert background("history").out.splitlines()[-1].endswith("\tsh job.sh a")
    assert background.paths.scripts.name not in background("history").out


def test_a_script_that_submits_does_not_pass_its_own_path_on(background: Background) -> None:
    """STOKER_SCRIPT is of one job only."""
    script(background, "outer.sh", SHEBANG, "stoker submit -G 0 -- sh -c 'echo ${STOKER_SCRIPT-none}'")
    assert "submitted 2" in submitted(background, "outer.sh")
    background.wait_over(2)
    assert (background.paths.logs / "2.log").read_text() == "none\n"


def test_submit_behind_dashes_and_with_a_list(background: Background) -> None:
    """-- is the script where it is; -f is a list; -s is a line for the shell; a list without -f is refused."""
    script(background, "job.sh", SHEBANG, 'echo "$0"')
    assert submitted(background, "--", "./job.sh") == "./job.sh\n"
    assert submitted(background, "-s", "./job.sh", ";", "echo", "b") == "./job.sh\nb\n"
    assert copies(background) == []
    script(background, "jobs.sh", SHEBANG, "echo a", "echo b")
    assert background("submit", "--hold", "-f", "jobs.sh").out == "submitted 3-4 (2 jobs)\n"
    background.write("train.py", "import os")
    refused = background("submit", "--", "./train.py")
    assert_refused(refused, "is not executable", "name the program that runs it")
    assert "-f" not in refused.err


def test_retry_runs_the_copy(background: Background) -> None:
    """A job that is run again runs what was submitted."""
    path = script(background, "job.sh", SHEBANG, "echo $STOKER_JOB_ID >> ran", "exit 1")
    submitted(background, "job.sh")
    path.write_text("#!/bin/sh\necho changed >> ran\n")
    assert background("retry", "1").code == 0
    background.wait_lines("ran", 2)
    assert background.lines("ran") == ["1", "1"]


# -- options in its lines --------------------------------------------------------------------------

SLURM = ("#SBATCH --job-name=vit --gres=gpu:2 --array=1-3 --output=%x-%a.out --partition=gpu", "#SBATCH -c 4 --new 1")


def test_a_script_brings_its_own_options(background: Background) -> None:
    """Those of #SBATCH lines are applied, those of a cluster are named, and tasks get Slurm's variables."""
    given = "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT $SLURM_ARRAY_JOB_ID $SLURM_JOB_NAME $SLURM_CPUS_PER_TASK"
    script(background, "job.sh", SHEBANG, *SLURM, f'echo "{given} $STOKER_GPU_IDS $SLURM_SUBMIT_DIR"')
    done = background("submit", "--parsable", "job.sh")
    assert done.err.splitlines() == [
        "stoker: job.sh: on one machine these #SBATCH options are ignored: --partition, --cpus-per-task",
        "stoker: warning: job.sh: these #SBATCH options are not applied: --new (unknown)",
    ]
    array = int(done.out)
    background.wait_over(array, array + 1, array + 2)
    assert background.lines("vit-2.out") == [f"2/3 {array} vit 4 0,1 {background.cwd}"]


def test_typed_options_override_those_of_a_script(background: Background) -> None:
    """Options, then variables, then #STOKER lines, then #SBATCH lines, then the configuration."""
    background.write("stoker.toml", "[defaults]", "gpus = 0", 'group = "night"', "retries = 7")
    script(background, "job.sh", SHEBANG, "#STOKER -t 3h --retries 2", "#SBATCH -G 2 -t 1h -J slurm", "true")
    done = background("submit", "--parsable", "-J", "typed", "job.sh", STOKER_RETRIES="1")
    job = background.job(int(done.out))
    assert (job.name, job.spec.resources.gpus, job.spec.limit) == ("typed", 2, 10800.0)
    assert (job.spec.retries, job.spec.group) == (1, "night")


def test_a_run_reads_the_lines_of_a_script(stoker: Stoker) -> None:
    """Here a limit and an array; a plain array gets the index, but not the other variables of Slurm."""
    script(stoker, "job.sh", SHEBANG, "#SBATCH --array=0-1 -o %a.out", "echo $SLURM_ARRAY_TASK_ID $SLURM_JOB_NAME")
    assert stoker(*RUN, "job.sh").code == 0
    assert stoker.lines("0.out") + stoker.lines("1.out") == ["0 job.sh", "1 job.sh"]
    stoker(*RUN, "-a", "5", "echo $SLURM_ARRAY_TASK_ID,$SLURM_ARRAY_TASK_MAX,$SLURM_JOB_ID >> plain")
    assert stoker.lines("plain") == ["5,5,"]


def test_a_wrong_line_is_refused_before_anything_starts(stoker: Stoker) -> None:
    """With its number, and with what to write."""
    script(stoker, "job.sh", SHEBANG, "#STOKER --vrm 6G", "touch ran")
    assert_refused(stoker(*RUN, "job.sh"), "job.sh line 2: --vrm is not a job option", "did you mean --vram?")
    assert not (stoker.cwd / "ran").exists()


def test_what_only_works_on_a_cluster_is_said_at_submit(background: Stoker) -> None:
    """Calls of srun and its variables are warned of, several nodes and a missing GPU model are refused."""
    lines = ("# srun in a comment", "echo ${SLURM_NTASKS:-1}", "OMP=1 srun -n 2 python x.py", "torchrun $SLURM_NNODES")
    script(background, "srun.sh", SHEBANG, "#SBATCH -G 0", *lines)
    assert background("submit", "srun.sh").err.splitlines()[:2] == [
        "stoker: warning: srun.sh line 5: there is no srun inside a job: write the command without it",
        "stoker: warning: srun.sh line 6: SLURM_NNODES is not set on one machine; see docs/from-slurm.md",
    ]
    script(background, "nodes.sh", SHEBANG, "#SBATCH --nodes=2-4", "true")
    said = "nodes.sh line 2: the script needs 2 nodes"
    assert_refused(background("submit", "nodes.sh"), said, "name a cluster with -M", code=5)
    assert background("submit", "--nodes", "1", "nodes.sh").code == 0
    script(background, "type.sh", SHEBANG, "", "#SBATCH --gres=gpu:h900:2", "true")
    said = "type.sh line 3: needs a GPU of type 'h900'"
    assert_refused(background("submit", "type.sh"), said, "to ignore the type, add --gpu-type ''", code=5)
    assert background("submit", "--gpu-type", "", "type.sh").code == 0
