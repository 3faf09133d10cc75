"""What `status`, `history` and `gpus` tell of jobs that share GPUs, beside a real engine."""

from __future__ import annotations

import msgspec

from stoker.app.views.gpus import Gpus
from stoker.app.views.history import History
from stoker.app.views.job import JobLine, PastLine
from stoker.app.views.job_details import JobDetails, SelectedJobs
from stoker.app.views.model import Status
from stoker.core.spec import Resources
from stoker.core.units import size_text
from support.background import Background
from support.terminal import open_terminal
from support.training_job import TRAIN
from support.wait import wait_until

GIB = 2**30
SIMJOB = f"exec {TRAIN}"
AUTO = Resources(auto=True, allowed=("SIM-0",))
PREDICTED = 4.625 * GIB
"""What is set aside for work that held 4G: 15 % more, in steps of 64M."""


def line_of(queue: Background, job_id: int) -> JobLine:
    """A job as the queue shows it."""
    status = msgspec.json.decode(queue("status", "--json").out, type=Status)
    return next(job for job in status.jobs if job.id == job_id)


def details_of(queue: Background, job_id: int) -> JobDetails:
    """All about a job."""
    return msgspec.json.decode(queue("status", str(job_id), "--json").out, type=SelectedJobs).jobs[0]


def past_of(queue: Background, job_id: int) -> PastLine:
    """A job that is over, as the history shows it."""
    history = msgspec.json.decode(queue("history", "--json").out, type=History)
    return next(job for job in history.jobs if job.id == job_id)


def test_from_unknown_to_packed(background: Background) -> None:
    """Work is measured alone; what waits then knows what to be reserved, and what runs tells what it holds."""
    work = f"{SIMJOB} --memory 4G --load 30 --tqdm --until seen"
    (first,) = background.submit(f"{work} --seconds 2 --steps 20", resources=AUTO)
    (behind,) = background.submit(f"{work} --seconds 600 --steps 6000", resources=AUTO, held="not yet")
    waiting = line_of(background, behind)
    assert (waiting.vram_mode, waiting.vram_bytes, waiting.reserved_bytes) == ("auto", None, None)
    wait_until(lambda: line_of(background, first).held_bytes == 4 * GIB)
    background.open_gate("seen")
    background.wait_over(first)
    wait_until(lambda: past_of(background, first).peak_vram_bytes == 4 * GIB)
    past = past_of(background, first)
    assert (past.vram_mode, past.reserved_bytes) == ("auto", None)
    wait_until(lambda: line_of(background, behind).reserved_bytes == PREDICTED)
    (beside,) = background.submit(f"{work} --seconds 600 --steps 6000", resources=AUTO)
    background("resume", str(behind))
    wait_until(lambda: line_of(background, behind).held_bytes == 4 * GIB and together(background) is not None)
    running = line_of(background, beside)
    assert (running.reserved_bytes, running.peak_vram_bytes) == (PREDICTED, 4 * GIB)
    assert running.speed is not None
    assert running.speed > 0.2  # the machine of a test may be busy
    assert "4.6G reserved, 4.0G in use" in screen(background, "status", str(beside))
    assert "(together " in screen(background, "gpus")


def together(queue: Background) -> float | None:
    """How fast the jobs on the first GPU are, together."""
    return msgspec.json.decode(queue("gpus", "--json").out, type=Gpus).devices[0].combined_speed


def screen(queue: Background, *words: str) -> str:
    """What a wide terminal shows."""
    variables = {name: queue.environment[name] for name in ("STOKER_STATE", "STOKER_LEDGER", "STOKER_SIM", "PATH")}
    with open_terminal(queue.home, **variables) as terminal:
        terminal.start(["stoker", *words], 120, 40)
        return terminal.wait_for("exit code 0")


def test_want_of_memory(background: Background) -> None:
    """A job that grew too large beside another says so until it is over, and its story says it for good."""
    (large,) = background.submit(
        f"{SIMJOB} --memory 16G --seconds 600", resources=Resources(memory=20 * GIB, allowed=("SIM-0",))
    )
    background.wait_word("running", large)
    greedy_need = Resources(memory=3 * GIB, allowed=("SIM-0",))
    (greedy,) = background.submit(f"{SIMJOB} --curve 0:2G,1:10G --seconds 1 --until seen", resources=greedy_need)
    wait_until(lambda: line_of(background, greedy).held_bytes == 2 * GIB)
    background.open_gate("seen")
    wait_until(lambda: "; most free is 3.5G (GPU 0)" in line_of(background, greedy).why)
    waiting = line_of(background, greedy)
    size = size_text(waiting.reserved_bytes)
    assert waiting.why.startswith(f"needs {size}; ")
    assert waiting.why.endswith(f"; out of GPU memory while sharing; retrying with {size} reserved")
    background("cancel", str(large))
    background.wait_over(greedy)
    story = details_of(background, greedy)
    assert [attempt.reserved_bytes for attempt in story.attempts] == [3 * GIB, waiting.reserved_bytes]
    assert story.attempts[0].vram_curve
    details = [event.detail for event in story.events if event.event in ("assigned", "exited")]
    assert details[0] == "GPU 0, 3.0G reserved"
    assert details[1].startswith("out of GPU memory while sharing; retrying with ")
    assert details[3] == "done"
    assert past_of(background, greedy).reserved_bytes == waiting.reserved_bytes


def test_alone_in_the_end(background: Background) -> None:
    """Of a job that suffered from others until it had a GPU to itself, the history says so too."""
    full = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. this process has 1.00 GiB memory"
    work = f'[ "$STOKER_ATTEMPT" = 3 ] || {{ echo "{full} in use."; exit 1; }}'
    (beside,) = background.submit(
        f"{SIMJOB} --memory 2G --seconds 600", resources=Resources(memory=4 * GIB, allowed=("SIM-0",))
    )
    background.wait_word("running", beside)
    (honest,) = background.submit(work, resources=Resources(memory=3 * GIB, allowed=("SIM-0",)))
    wait_until(lambda: background.job(honest).shared_failures == 2)
    background("cancel", str(beside))
    background.wait_over(honest)
    assert [attempt.reserved_bytes for attempt in details_of(background, honest).attempts] == [3 * GIB, 3 * GIB, None]
    past = past_of(background, honest)
    assert (past.state, past.vram_bytes, past.reserved_bytes) == ("done", 3 * GIB, None)


def test_a_job_that_is_too_big(background: Background) -> None:
    """No retry is named where none can help."""
    (job,) = background.submit(f"{SIMJOB} --memory 30G")
    background.wait_over(job)
    story = details_of(background, job)
    assert (story.state, story.events[-1].detail) == ("oom", "oom")
    assert story.note.startswith("needs more than a whole GPU (24.0G): ")
    assert story.advice == "needs a larger GPU, a smaller batch, or more GPUs (-G)"
