"""The jobs of the queue as lines of a screen: those that keepers have, then those that wait."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice

import msgspec

from stoker.cli.screens.knowledge import Knowledge
from stoker.cli.screens.queue_scene import JobLine, exactly, moment
from stoker.cli.screens.set_aside import mode_of
from stoker.core.job import Active, Job, started_at
from stoker.presence import QUEUE
from stoker.store.listing import Tasks
from stoker.words import id_text, text_for_json

_PAGE = 256


def active_lines(knowledge: Knowledge, *, hooks: bool = False) -> list[JobLine]:
    """The jobs that keepers have."""
    wanted = [one for one in knowledge.active if hooks or one.job.terms.role != "hook"]
    return [job_line(job, engine, knowledge) for job, engine in wanted]


def queued_lines(knowledge: Knowledge, limit: int | None, *, each_task: bool, hooks: bool = False) -> list[JobLine]:
    """The first jobs that no keeper has, in the order of their ids; tasks of an array on one line unless unwanted."""
    lines = [_queued_of(engine, knowledge, each_task=each_task) for engine in knowledge.loads]
    merged = heapq.merge(*lines, key=lambda line: line.id)
    return list(islice((line for line in merged if hooks or not line.hook), limit))


def _queued_of(engine: str, knowledge: Knowledge, *, each_task: bool) -> Iterator[JobLine]:
    store, after = knowledge.store, 0
    while jobs := store.queued_jobs(engine, after, _PAGE):
        for job in jobs:
            if job.id <= after:
                continue  # it was told of together with the first of its array
            after = job.id
            if job.array and not each_task:
                after = store.last_of_array(job.array)
                tasks = store.queued_tasks(engine, job.array)
                yield from sorted((_tasks_line(one, engine, knowledge) for one in tasks), key=lambda line: line.id)
            else:
                yield job_line(job, engine, knowledge)


def _tasks_line(tasks: Tasks, engine: str, knowledge: Knowledge) -> JobLine:
    line = job_line(tasks.first, engine, knowledge)
    if tasks.size == 1:
        return line
    label = f"{tasks.first.array}.[{tasks.first.task}-{tasks.last.task}]"
    return msgspec.structs.replace(line, label=label, tasks=tasks.size)


def job_line(job: Job, engine: str, knowledge: Knowledge) -> JobLine:
    """One job as it is now."""
    word, why = knowledge.situation(job, engine)
    terms, need, started = job.terms, job.terms.need, started_at(job)
    view = knowledge.views.of(engine)
    devices = job.state.devices if isinstance(job.state, Active) else ()
    live = knowledge.live(job.id) if devices else None
    return JobLine(
        id=job.id,
        label=id_text(job),
        tasks=1,
        name=text_for_json(job.name),
        command=text_for_json(job.command.text),
        state=word,
        group=text_for_json(terms.group),
        priority=terms.priority,
        gpus=need.gpus,
        devices=[text_for_json(label) for label in knowledge.labels(devices)],
        vram_bytes=need.memory,
        used_bytes=knowledge.used_by(job.id),
        submitted=exactly(job.submitted),
        started=moment(started),
        seconds=None if started is None else round(max(0.0, knowledge.now - started), 3),
        limit_seconds=terms.limit,
        expected_start=moment(view.starts.get(job.id)) if view else None,
        expected_end=moment(view.ends.get(job.id)) if view else None,
        why=text_for_json(why),
        run="" if engine == QUEUE else text_for_json(view.label if view else engine),
        hook=terms.role == "hook",
        vram_mode=mode_of(need),
        reserved_bytes=knowledge.set_aside(job, engine),
        held_bytes=live.memory if live else None,
        peak_vram_bytes=live.peak if live else None,
        utilisation_percent=live.utilisation if live else None,
        speed=knowledge.speeds.get(job.id) if devices else None,
    )
