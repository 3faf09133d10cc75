"""`stoker status ID...`: the whole story of a few jobs, or a line for each of many."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from msgspec import structs

from stoker.cli.screens.job_story import SCHEMA, Stories, Story, story_of
from stoker.cli.screens.job_table import job_table
from stoker.cli.screens.knowing import known
from stoker.cli.screens.knowledge import Knowledge
from stoker.cli.screens.paint import terminal_size, write_lines
from stoker.cli.screens.pieces import EMPTY, Line, Piece, clipped
from stoker.cli.screens.queue_plain import jobs_plain
from stoker.cli.screens.queue_scene import exactly
from stoker.cli.screens.screen import Screen, write_json, write_plain
from stoker.cli.screens.story_frame import story_lines
from stoker.config import load_config
from stoker.core.errors import StokerError
from stoker.core.secrets import PATTERNS
from stoker.finding import find
from stoker.places import Places
from stoker.reports import read_latest
from stoker.store import Store

FEW = 4
"""How many jobs are told of in full on a terminal."""


def show_jobs(
    places: Places, words: Sequence[str], screen: Screen, *, everything: bool = False, environment: bool = False
) -> int:
    """Tell of the jobs that the words choose."""
    with known(places, simulated=screen.sim) as knowledge:
        stories = read_stories(knowledge, words, environment=environment)
    stories = _with_reports(stories, places)
    if screen.form == "json":
        write_json(stories)
    elif screen.form == "plain":
        write_plain(jobs_plain(stories.jobs))
    else:
        width, height = terminal_size(os.environ)
        write_lines(_frame(stories, width, None if everything else height, screen.typed), screen.color)
    return 0


def read_stories(knowledge: Knowledge, words: Sequence[str], *, environment: bool = False) -> Stories:
    """The jobs that the words choose, in their order."""
    store = knowledge.store
    assert isinstance(store, Store)
    jobs = [job for job_id in find(store, words) if (job := store.job(job_id)) is not None]
    secrets = _secrets()
    told = [story_of(job, knowledge, secrets, environment=environment) for job in jobs]
    return Stories(SCHEMA, exactly(knowledge.now), knowledge.simulated, told)


def _with_reports(stories: Stories, places: Places) -> Stories:
    told = [structs.replace(job, reported=read_latest(places.report(job.id))) for job in stories.jobs]
    return structs.replace(stories, jobs=told)


def _secrets() -> tuple[str, ...]:
    """Which variables look like secrets; a configuration that cannot be read must not keep anybody from looking."""
    try:
        return load_config(os.environ, None).engine.secrets
    except StokerError:
        return PATTERNS


def _frame(stories: Stories, width: int, height: int | None, sim: str) -> list[Line]:
    now = stories.at.timestamp()
    if len(stories.jobs) > FEW:
        return [clipped(line, width) for line in _many(stories, now, width, height, sim)]
    lines: list[Line] = []
    for story in stories.jobs:
        told = story_lines(story, now, width, sim, simulated=stories.simulated)
        lines += [*([EMPTY, EMPTY] if lines else []), *(clipped(line, max(width, 40)) for line in told)]
    return lines


def _many(stories: Stories, now: float, width: int, height: int | None, sim: str) -> list[Line]:
    shown: list[Story] = stories.jobs if height is None else stories.jobs[: max(1, height - 4)]
    badge = [Piece(" SIM ", "simulated"), Piece(" ")] if stories.simulated else []
    counts = Counter(job.state for job in stories.jobs)
    heading = ", ".join(f"{count} {word}" for word, count in counts.items())
    lines = [(*badge, Piece(f"{len(stories.jobs)} jobs: {heading}", "heading")), *job_table(shown, now, width)]
    hidden = len(stories.jobs) - len(shown)
    more = f" … {hidden} more (stoker status{sim} -a ID...); all about one: stoker status{sim} {shown[0].label}"
    return [*lines, (Piece(more, "faint"),)] if hidden else lines
