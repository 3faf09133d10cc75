"""Two queues of one user, that of the simulated GPUs and that of the real ones: a job in the other one is found."""

from __future__ import annotations

from support.background import Background
from support.cli import Stoker
from support.terminal import open_terminal


def test_a_job_of_the_simulated_queue_is_reported(background: Background) -> None:
    """With the command to type; by its id, its name, or as the last one."""
    (job,) = background.submit("true", names=["vit"])
    background.wait_over(job)
    for verb, word in (("logs", "1"), ("status", "1"), ("cancel", "vit"), ("wait", "1")):
        outcome = background(verb, word, STOKER_SIM="")
        assert outcome.code == 4
        hint = f"{word} is in the queue of the simulated GPUs; type: stoker {verb} --sim {word}\n"
        assert outcome.err.endswith(hint), outcome.err
    assert "type: stoker wait --sim" in background("wait", STOKER_SIM="").err
    assert "--sim" not in background("logs", "77", STOKER_SIM="").err


def test_a_job_of_the_real_queue_is_reported(background: Background) -> None:
    """Without --sim, and without the variable where that is set."""
    assert background("submit", "-G", "0", "--", "true", STOKER_SIM="").code == 0
    assert background("wait", "1", STOKER_SIM="").code == 0
    assert background("logs", "--sim", "2x24G", "1", STOKER_SIM="").err.endswith("own GPUs; type: stoker logs 1\n")
    assert background("logs", "1").err.endswith("own GPUs; type: env -u STOKER_SIM stoker logs 1\n")


def test_a_first_trial(stoker: Stoker) -> None:
    """A plain --sim is four GPUs at first; the command after it is not its value, and stoker --sim shows the job."""
    assert stoker("submit", "--sim", "sh", "-c", "echo $STOKER_GPU_IDS").out.startswith("submitted 1")
    assert stoker("--sim", "wait", "1").code == 0
    assert stoker("logs", "--sim", "1").out == "0\n"
    assert len(stoker("gpus", "--sim").out.splitlines()) == 5
    assert stoker("run", "--sim", "sh", "-c", "echo hi").out == "hi\n"


def test_an_empty_queue_names_the_simulated_one(background: Background) -> None:
    """On a terminal, where the user looks for a job that is there."""
    background.submit("sleep 600", start=False)
    kept = [f"{name}={background.environment[name]}" for name in ("STOKER_STATE", "STOKER_LEDGER", "PATH")]
    with open_terminal(background.cwd) as terminal:
        terminal.start(["env", *kept, "stoker"], 80, 24)
        terminal.wait_for("1 job in the queue of the simulated GPUs: stoker --sim", "exit code 0")
