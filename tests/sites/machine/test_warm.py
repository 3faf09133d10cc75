"""Which jobs are forked from templates, and what happens to those that a template cannot serve."""

from __future__ import annotations

from stoker.core.launch import LaunchOrder
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.core.warm import Template
from support.fakes import EngineOnFakeRunner


def add(world: EngineOnFakeRunner, *words: str, **spec: object) -> int:
    """A job that wants a template with torch."""
    digest = world.store.add_environment({"PATH": "/bin"})
    fields = {"environment": digest, "warm": ("torch",), "cwd": "/work", "out": "/dev/null", **spec}
    job = NewJob(Command(words), JobSpec(**fields))  # type: ignore[arg-type]
    (job_id,) = world.store.add_jobs(world.store.add_batch("test", 0.0), world.name, [job], 0.0)
    world.engine.wake()
    world.turn()
    return int(job_id)


def order_of(world: EngineOnFakeRunner, job: int, attempt: int = 1) -> LaunchOrder:
    """What the worker of a job was sent."""
    return world.runner.orders[f"{job}.{attempt}"]


def test_jobs_share_a_worker_of_their_template(world: EngineOnFakeRunner) -> None:
    """Jobs with equal templates use one worker after each other, any other job another one."""
    first = add(world, "python", "train.py", "--lr", "1")
    warm = order_of(world, first).warm
    assert warm is not None
    assert (warm.kind, warm.target, warm.arguments) == ("file", "train.py", ("--lr", "1"))
    template = Template(
        ("python",), ("torch",), "/work", "/work", (("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("PATH", "/bin"))
    )
    assert warm.template == template.key
    world.runner.started(f"{first}.1")
    world.runner.exited(f"{first}.1")
    world.turn()
    second = add(world, "python", "train.py", "--lr", "2")
    assert world.runner.workers[f"{second}.1"] == world.runner.workers[f"{first}.1"]
    world.runner.started(f"{second}.1")
    world.runner.exited(f"{second}.1")
    world.turn()
    others = add(world, "python", "train.py", extra_env=(("HF_HOME", "/x"),))
    assert world.runner.workers[f"{others}.1"] != world.runner.workers[f"{first}.1"]


def test_what_starts_cold(world: EngineOnFakeRunner) -> None:
    """The order has the reason, of the command or of the template."""
    shell = add(world, "bash", "run.sh")
    assert (order_of(world, shell).warm, order_of(world, shell).cold) == (None, "bash is not python")
    world.runner.refusals["*"] = "the modules started 3 threads"
    refused = add(world, "python", "train.py")
    assert (order_of(world, refused).warm, order_of(world, refused).cold) == (None, "the modules started 3 threads")


def test_a_template_that_dies(world: EngineOnFakeRunner) -> None:
    """Its jobs are queued again and tried at once, without a word of trouble."""
    job = add(world, "python", "train.py")
    world.runner.lost(world.runner.workers[f"{job}.1"], warm=True)
    world.runner.refusals["*"] = "its template was ended by SIGKILL while it imported"
    world.turn(2)
    assert world.kinds(job) == ["Assigned", "Returned", "Assigned"]
    assert not world.engine.trouble
    assert order_of(world, job, 2).cold == "its template was ended by SIGKILL while it imported"
