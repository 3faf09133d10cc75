"""Jobs on a cluster, with the commands as typed, under a real Slurm."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from features.slurm.cluster import RAN, ClusterQueue
from support.cli import until
from support.slurm import running_slurm
from support.wait import wait_until


def test_a_job_runs_on_a_node_and_its_exit_code_comes_back(lab: ClusterQueue) -> None:
    """It has the GPUs that Slurm gave it, the directory and the environment of the submit."""
    lab.environment["COLOUR"] = "blue green"
    line = 'echo "$CUDA_VISIBLE_DEVICES/$STOKER_GPU_IDS/$COLOUR/$(pwd)/$SLURM_JOB_NUM_NODES"; exit 5'
    job = lab.submit("-G", "2", line)
    assert lab.wait(job).code == 5
    assert lab("logs", str(job)).out.splitlines() == [f"0,1/0,1/blue green/{lab.cwd}/1"]
    shown = json.loads(lab("status", "--json", str(job)).out)["jobs"][0]
    assert shown["devices"][0].startswith("lab:n")
    assert shown["exit_code"] == 5
    assert lab("history", "--json").out.count('"failed"') >= 1


def test_an_array_above_the_largest_of_slurm(tmp_path: Path) -> None:
    """It becomes several arrays of Slurm's; every task runs once, with its own index."""
    with running_slurm(nodes=1, max_array=11) as slurm, contextlib.closing(ClusterQueue(tmp_path, slurm)) as lab:
        job = lab.submit("-G", "0", "echo {i} >> ran; echo $SLURM_JOB_ID $SLURM_ARRAY_TASK_ID >> tasks", count="0-29")
        assert lab.wait(job).code == 0
        assert lab.ran() == list(range(30))
        ids = [line.split() for line in lab.lines("tasks")]
        assert {int(task) for _, task in ids} == set(range(30)), "the index is that of the user's array"
        assert len({number for number, _ in ids}) == 30, "the id is Slurm's own"
        comments = slurm.run("squeue", "-h", "-r", "-t", "all", "-o", "%k").splitlines()
        assert len(set(comments)) == 3


def test_a_limited_array(lab: ClusterQueue) -> None:
    """Its tasks run once each; Slurm keeps the limit."""
    job = lab.submit("-G", "0", "echo {i} >> ran", count="0-29%12")
    assert lab.wait(job).code == 0
    assert lab.ran() == list(range(30))


def test_cancel_hold_edit_and_retry(lab: ClusterQueue) -> None:
    """What waits in Slurm is taken back; what runs gets TERM and its grace."""
    blocker = lab.submit("-G", "12", "--nodes", "3", f"{RAN} trap 'exit 0' TERM; echo ready; {until('gate')}")
    lab.wait_word("running", blocker)
    waiting = [lab.submit(f"{RAN} exit 4") for _ in range(3)]
    lab.wait_word("starting", *waiting)
    shown = json.loads(lab("status", "--json").out)["jobs"]
    assert [each["state"] for each in shown] == ["running", "queued", "queued", "queued"]
    assert all("in Slurm since" in each["why"] for each in shown[1:])

    assert lab("cancel", str(waiting[0])).out.startswith(f"cancelled {waiting[0]}")
    assert lab("pause", str(waiting[1])).out == f"held {waiting[1]}\n"
    assert "priority 0 → 7" in lab("edit", str(waiting[2]), "--priority", "7").out
    assert lab.word(waiting[1]) == "held"
    assert lab("cancel", str(blocker)).code == 0
    lab.wait(blocker)
    assert (lab.ended(blocker).result, lab.ended(blocker).code) == ("cancelled", 0)  # it handled TERM
    assert lab.wait(waiting[2]).code == 4
    assert lab("resume", str(waiting[1])).code == 0
    assert lab.wait(waiting[1]).code == 4
    assert lab("retry", str(waiting[1])).code == 0
    assert lab.wait(waiting[1]).code == 4
    assert lab.ran() == [blocker, waiting[1], waiting[1], waiting[2]]
    wait_until(lambda: not lab.slurm.run("squeue", "-h"))


def test_a_trial_that_was_paused_in_slurm_keeps_its_value(lab: ClusterQueue) -> None:
    """Its first attempt comes back unused; what the second one reports is its value."""
    blocker = lab.submit("-G", "12", "--nodes", "3", until("gate"))
    lab.wait_word("running", blocker)
    (lab.cwd / "t.py").write_text("import stoker; stoker.report(loss=float(stoker.params()['x']))")
    words = ["--objective", "loss:min", "--style", "none", "--", sys.executable, "t.py"]
    said = lab("sweep", "-M", "lab", "--parsable", "x=1,2", *words)
    trials = [int(said.out), int(said.out) + 1]
    lab.wait_word("starting", *trials)
    assert lab("pause", f"{trials[0]}.0").code == 0
    lab.wait_word("held", trials[0])
    assert lab("resume", f"{trials[0]}.0").code == 0
    (lab.cwd / "gate").touch()
    for job in (*trials, trials[-1] + 1):
        assert lab.wait(job).code == 0
    view = json.loads(lab("sweep", "status", "--json").out)
    assert [(trial["state"], trial["values"]) for trial in view["trials"]] == [
        ("done", {"loss": 1.0}),
        ("done", {"loss": 2.0}),
    ]


def test_dependencies_across_machines(lab: ClusterQueue) -> None:
    """A job of this machine waits for one of the cluster, and one of the cluster for that."""
    first = lab.submit("-G", "0", f"{RAN} sleep 0.3")
    local = lab("submit", "-G", "0", "--parsable", "-d", str(first), "--", "sh", "-c", RAN).out.strip()
    last = lab.submit("-G", "0", "-d", local, RAN)
    failing = lab.submit("-G", "0", "exit 1")
    skipped = lab("submit", "-G", "0", "--parsable", "-d", str(failing), "--", "true").out.strip()
    assert lab("wait", str(last)).code == 0
    assert lab.lines("ran") == [str(first), local, str(last)]
    lab("wait", skipped)
    assert lab.word(int(skipped)) == "skipped"


def test_the_log_is_followed_while_the_job_runs(lab: ClusterQueue) -> None:
    """`logs -f` shows the log on the shared directory, and has the exit code of the job."""
    job = lab.submit("-G", "0", f"echo begun; {until('gate')}; echo over; exit 3")
    process = lab.start("logs", "-f", str(job))
    lab.wait_word("running", job)
    (lab.cwd / "gate").touch()
    done = lab.finish(process)
    assert (done.out.splitlines(), done.code) == (["begun", "over"], 3)


def test_time_limits(lab: ClusterQueue) -> None:
    """The job's own limit counts, with its grace, before Slurm's."""
    job = lab.submit("-G", "0", "-t", "1s", "--grace", "1s", "trap '' TERM; while :; do sleep 0.1; done")
    lab.wait(job)
    assert lab.ended(job).result == "timeout"


def test_what_is_wrong_is_said_before_anything_is_queued(lab: ClusterQueue) -> None:
    """Unknown clusters and options that make no sense there."""
    for words, message in (
        (["-M", "lob"], "did you mean lab?"),
        (["-M", "lab", "--on", "0"], "devices of this machine"),
        (["-M", "lab", "-G", "3", "--nodes", "2"], "cannot be divided by 2"),
        (["--nodes", "2"], "this machine is one node"),
        (["-N", "2"], "in stoker it is --nodes"),
        (["--slurm", "mem=1G"], "--slurm is for jobs on a cluster"),
        (["-M", "lab", "--slurm", "--time=5"], "is set by Stoker itself"),
        (["-M", "lab", "--slurm", "-p"], "is not a long option of sbatch"),
    ):
        done = lab("submit", *words, "--", "true")
        assert (done.code, message in done.err) == (2, True), done.err


def test_what_a_script_asks_of_a_cluster(lab: ClusterQueue) -> None:
    """Slurm gets what #SBATCH lines and --slurm say about nodes and accounts; the command line goes first."""
    show = "scontrol show job $SLURM_JOB_ID; echo ids $SLURM_JOB_PARTITION $SLURM_JOB_NUM_NODES"
    options = "--partition=urgent --mem=300M --cpus-per-task=3 --nodes=2 --gres=gpu:1 --mail-type=END"
    lab.write("job.sh", "#!/bin/sh", f"#SBATCH {options}", show)
    done = lab("submit", "-M", "lab", "--parsable", "--slurm", "--mem=200M", "--slurm", "exclude=n3", "job.sh")
    assert "these #SBATCH options are ignored: --mail-type" in done.err
    assert lab.wait(int(done.out)).code == 0
    shown = lab("logs", done.out.strip()).out
    for fact in ("MinMemoryNode=200M", "CPUs/Task=3", "ExcNodeList=n3", "NodeList=n[1-2]", "TresPerNode=gres:gpu:1"):
        assert fact in shown, shown
    assert "ids urgent 2" in shown

    held = lab.submit("-G", "0", "--slurm", "partition=nosuch", RAN)
    lab.wait_word("held", held)
    assert "partition" in lab("edit", str(held), "--slurm", "partition=urgent").out
    assert lab("resume", str(held)).code == 0
    assert lab.wait(held).code == 0


def test_slurm_refuses_a_partition(lab: ClusterQueue) -> None:
    """The job is held with Slurm's words, and goes on with a better configuration."""
    lab.configure(partition="nosuch")
    job = lab.submit("-G", "0", RAN)
    lab.wait_word("held", job)
    assert "partition" in lab("status", str(job)).out
    lab.configure()
    assert lab("resume", str(job)).code == 0
    assert lab.wait(job).code == 0
    assert lab.ran() == [job]


def test_more_gpus_than_any_node_has(lab: ClusterQueue) -> None:
    """Slurm says so at once."""
    job = lab.submit("-G", "64", RAN)
    lab.wait_word("held", job)
    assert "Requested node configuration is not available" in lab("status", "--plain", str(job)).out


def test_a_run_in_the_foreground(lab: ClusterQueue) -> None:
    """One command shows its output and has its exit code; a list has a summary, and goes on after its engine died."""
    done = lab("run", "-M", "lab", "-G", "0", "--", "sh", "-c", "echo begun; sleep 0.3; echo over; exit 7")
    assert (done.out, done.code) == ("begun\nover\n", 7)
    lab.write("list.txt", f"{RAN} exit 0", f"{RAN} exit 1", f"{RAN} {until('gate')}")
    run = lab.start("run", "-M", "lab", "-G", "0", "list.txt")
    lab.wait_lines("ran", 3)
    run.kill()
    lab.finish(run)
    (lab.cwd / "gate").touch()
    again = lab("run", "--resume", "-M", "lab", "-G", "0", "list.txt")
    assert again.code == 1
    ran = lab.lines("ran")
    assert len(ran) == len(set(ran)), "what was under way is not run again"
    assert "1 failed" in again.err


def test_python_calls_run_on_the_cluster(lab: ClusterQueue) -> None:
    """Functions and results travel through the shared directory."""
    program = lab.write(
        "program.py",
        "import os, stoker",
        "def double(x):",
        "    stoker.report(x=x)",
        "    return 2 * x, 'SLURM_JOB_ID' in os.environ",
        "if __name__ == '__main__':",
        "    with stoker.Executor(cluster='lab', gpus=0) as executor:",
        "        jobs = executor.map_array(double, [1, 2])",
        "        print([job.result() for job in jobs], jobs[0].reports()[0]['x'])",
    )
    done = lab.typed(f"python {program}")
    assert done.out == "[(2, True), (4, True)] 1\n", done.err


def test_gpu_task_scheduler_on_the_cluster(lab: ClusterQueue) -> None:
    """scheduler_config["cluster"] is all it takes."""
    program = lab.write(
        "tasks.py",
        "from gpu_task_scheduler.gpu_task import GPUTask",
        "from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler",
        "class Task(GPUTask):",
        "    def main(self):",
        "        import os",
        "        open('ran', 'a').write(f\"{self._config['a']} {'SLURM_JOB_ID' in os.environ}\\n\")",
        "if __name__ == '__main__':",
        "    config = {'scheduler_config': {'cluster': 'lab'}, 'test_config': [{'a': [1, 2]}]}",
        "    GPUTaskScheduler(config, Task).start()",
    )
    done = lab.typed(f"python {program}")
    assert done.code == 0, done.err
    assert sorted(lab.lines("ran")) == ["1 True", "2 True"]


def test_hydra_on_the_cluster(lab: ClusterQueue) -> None:
    """hydra.launcher.cluster sends a multirun there."""
    lab.write(
        "train.py",
        "import hydra, os",
        "@hydra.main(version_base=None, config_path=None)",
        "def train(config):",
        f"    open('{lab.cwd}/ran', 'a').write(f\"{{config.a}} {{'SLURM_JOB_ID' in os.environ}}\\n\")",
        "train()",
    )
    line = "python train.py -m +a=1,2 hydra/launcher=stoker hydra.launcher.cluster=lab hydra.launcher.gpus=0"
    done = lab.typed(line)
    assert done.code == 0, done.err
    assert sorted(lab.lines("ran")) == ["1 True", "2 True"]


def test_a_default_cluster_and_its_gpus(lab: ClusterQueue) -> None:
    """`cluster` under [defaults] sends everything there, except with -M local; `gpus` shows what runs where."""
    file = lab.home / "config/stoker/config.toml"
    file.write_text(file.read_text() + '[defaults]\ncluster = "lab"\n')
    where = "echo ${SLURMD_NODENAME:-here} >> ran"
    job = lab("submit", "-G", "2", "--parsable", "--", "sh", "-c", f"{where}; {until('gate')}").out.strip()
    lab.wait_word("running", int(job))
    shown = lab("gpus", "--cluster", "lab").out
    assert f"GPU 0: job {job}, GPU 1: job {job}" in shown
    assert "  all* " in shown
    (lab.cwd / "gate").touch()
    assert lab("run", "-M", "local", "-G", "0", "--", "sh", "-c", where).code == 0
    assert lab("wait", job).code == 0
    on_the_cluster, here = lab.lines("ran")
    assert (on_the_cluster[0], here) == ("n", "here")
