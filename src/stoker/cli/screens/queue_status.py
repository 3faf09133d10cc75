"""Puts together what `stoker status` shows."""

from __future__ import annotations

from stoker import __version__
from stoker.cli.screens.clock import midnight
from stoker.cli.screens.device_lines import device_lines, mark_of
from stoker.cli.screens.engine_views import Views
from stoker.cli.screens.job_lines import active_lines, queued_lines
from stoker.cli.screens.knowledge import Knowledge
from stoker.cli.screens.queue_scene import Counts, EngineLine, JobLine, Status, exactly, moment
from stoker.core.units import duration_text
from stoker.mail import paused_key
from stoker.presence import QUEUE
from stoker.store.listing import Load, Period
from stoker.words import text_for_json

SCHEMA = "stoker.status/1"


def status_of(
    knowledge: Knowledge, host: str, limit: int | None, *, each_task: bool = False, hooks: bool = False
) -> Status:
    """The queue now, with all active jobs and the first of those that wait."""
    views = knowledge.views
    active = active_lines(knowledge, hooks=hooks)
    queued = queued_lines(knowledge, limit, each_task=each_task, hooks=hooks)
    counts = _counts(knowledge, hooks=hooks)
    return Status(
        schema=SCHEMA,
        at=exactly(knowledge.now),
        host=text_for_json(host),
        version=__version__,
        simulated=knowledge.simulated,
        engine=engine_line(knowledge),
        devices=device_lines(knowledge),
        jobs=[*active, *queued],
        counts=counts,
        hidden=_hidden(counts, len(active), queued),
        today=knowledge.store.past_counts(Period(midnight(knowledge.now), hooks=hooks)),
        expected_empty=moment(views.queue.empty) if views.queue and views.lives else None,
        notes=[text_for_json(note) for note in _notes(views)],
    )


def engine_line(knowledge: Knowledge) -> EngineLine:
    """The engine in the background as it is now, or as it was when it left."""
    view, lives = knowledge.views.queue, knowledge.views.lives
    paused = mark_of(knowledge.settings.get(paused_key(QUEUE)))
    seen = moment(max((one.at for one in knowledge.views.current), default=None))
    if view is None:
        return EngineLine(lives, seen=seen, paused=paused)
    return EngineLine(
        running=lives,
        pid=view.pid if lives else None,
        version=view.version,
        since=moment(view.since) if lives else None,
        seen=seen,
        trouble=text_for_json(view.trouble) if lives else "",
        draining=view.draining and lives,
        paused=paused,
        silence=_silence(knowledge.views),
    )


def _silence(views: Views) -> str:
    if not views.silence:
        return ""
    return f"the engine does not answer: what it showed is {duration_text(views.silence)} old; see stoker engine status"


def _counts(knowledge: Knowledge, *, hooks: bool) -> Counts:
    loads: list[Load] = list(knowledge.loads.values())
    running = 0 if hooks else sum(one.job.terms.role == "hook" for one in knowledge.active)
    waiting = sum(load.waiting for load in loads) - (0 if hooks else knowledge.store.queued_hooks())
    return Counts(len(knowledge.active) - running, waiting, sum(load.held for load in loads))


def _hidden(counts: Counts, active: int, queued: list[JobLine]) -> Counts:
    held = sum(line.tasks for line in queued if line.state == "held")
    waiting = sum(line.tasks for line in queued) - held
    return Counts(counts.active - active, max(0, counts.waiting - waiting), max(0, counts.held - held))


def _notes(views: Views) -> list[str]:
    notes = [view.note for view in views.current if view.note]
    troubles = [view.trouble for view in views.current if view.trouble and (views.lives or view.engine != QUEUE)]
    silence = [_silence(views)] if views.silence else []
    return list(dict.fromkeys([*silence, *notes, *troubles]))
