"""Find jobs by name, tag, group and state, and list them by pages; SQLite does it, so that no other job is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

from stoker.core.job import Job
from stoker.core.outcomes import WAITING
from stoker.core.ranges import Ranges, joined, ranges_of
from stoker.store.patterns import filled_of
from stoker.store.reader import Reader
from stoker.store.schema import FIRST, IN_ARRAY, IN_LINES, IN_PATTERN, JOB, OF_ON_FINISH_JOBS, OPEN, text_of

Scope = Literal["open", "ended", "any"]
SCOPES: dict[Scope, str] = {"open": OPEN, "ended": "ended IS NOT NULL", "any": "1"}
NOT_ON_FINISH = "coalesce((SELECT json_extract(body, '$.role') FROM specs WHERE specs.id = jobs.spec), 'job') = 'job'"
NOT_NESTED = "coalesce((SELECT json_extract(body, '$.parent') FROM specs WHERE specs.id = jobs.spec), '') = ''"


class Filter(NamedTuple):
    """Jobs that a user wants; each part that is not empty must be true of a job."""

    names: tuple[str, ...] = ()
    """Patterns with `*`, `?` and `[...]`, of which one must match."""
    tags: tuple[tuple[str, str], ...] = ()
    """Names of tags and patterns of their values, which all must match."""
    groups: tuple[str, ...] = ()
    """Patterns, of which one must match."""
    states: tuple[str, ...] = ()
    """State words; those of `WAITING` count as one."""
    text: str = ""
    """A part of the name, the command or the group, or an id."""
    array: int = 0
    """An array whose tasks are wanted."""


NO_FILTER = Filter()


class JobRows(NamedTuple):
    """Rows of jobs in SQL, and which of the jobs that a row stands for are meant."""

    tables: str = "jobs"
    first: str = FIRST
    last: str = "jobs.id"
    values: tuple[str, ...] = ()
    """For the tables."""

    @property
    def size(self) -> str:
        return f"({self.last} - {self.first} + 1)" if self.values else "jobs.size"

    @property
    def total(self) -> str:
        """How many jobs there are in all rows, or in those of a group."""
        return f"coalesce(sum({self.size}), 0)"

    @property
    def key(self) -> str:
        """Another one for each row."""
        return self.first if self.values else "jobs.id"

    @property
    def task(self) -> str:
        """The index of the first task."""
        return f"(jobs.task - (jobs.id - {self.first}) * jobs.step)"


ALL_ROWS = JobRows()
_OPEN_ROWS = JobRows("jobs INDEXED BY jobs_open")
_AMONG = (
    "(SELECT value ->> 0 AS low, value ->> 1 AS high FROM json_each(?)) AS part CROSS JOIN jobs ON jobs.id >= low"
    " AND jobs.id <= coalesce((SELECT min(other.id) FROM jobs AS other WHERE other.id >= high), high)"
    " AND jobs.id - jobs.size < high"
)


def rows_among(ids: Sequence[int]) -> JobRows:
    """The rows that stand for some of these jobs; of each row, only these jobs are meant."""
    parts = json.dumps([[part[0], part[-1]] for part in ranges_of(ids).parts])
    return JobRows(_AMONG, f"max({FIRST}, low)", "min(jobs.id, high)", (parts,))


def ids_where(reader: Reader, rows: JobRows, where: str, *values: object) -> Ranges:
    """Ids of the jobs of which a condition is true, in order; those among others in the order of these."""
    query = f"SELECT {rows.first}, {rows.last} FROM {rows.tables} WHERE {where}"
    ends = reader.rows(query if rows.values else f"{query} ORDER BY jobs.id", *rows.values, *values)
    return joined(range(first, last + 1) for first, last in ends)


class Group(NamedTuple):
    """Jobs that no worker holds: one job, or the tasks of an array that are in the same state."""

    engine: str
    size: int
    first: int
    """The id of the first of them."""
    tasks: str
    """Their indices as JSON: of each range the first, the step and the number."""

    @property
    def is_lines(self) -> bool:
        """Whether it is of several lines of a list, which share a row."""
        return self.size > 1 and self.tasks.startswith("[[null,")

    @property
    def indices(self) -> Ranges:
        parts = json.loads(self.tasks)
        ranges = [range(first or 0, (first or 0) + count * step, step) for first, step, count in parts]
        return Ranges(sorted(ranges, key=lambda part: part[0]))


def _of_group(rows: JobRows) -> str:
    """The columns of a `Group` in a query that groups jobs."""
    tasks = f"json_group_array(json_array({rows.task}, jobs.step, {rows.size}))"
    return f"engine, {rows.total} AS total, min({rows.first}) AS first, {tasks} AS tasks"


def condition(chosen: Filter) -> tuple[str, list[Any]]:
    """SQL that is true of the jobs, and its values."""
    specs = [_any("json_extract(body, '$.group') GLOB ?", chosen.groups)]
    specs += ["EXISTS (SELECT 1 FROM json_each(body, '$.tags') WHERE value ->> 0 = ? AND value ->> 1 GLOB ?)"] * len(
        chosen.tags
    )
    of_specs = " AND ".join(filter(None, specs))
    stored = tuple(dict.fromkeys("waiting" if word in WAITING else word for word in chosen.states))
    parts = (
        _any("jobs.name GLOB ?", chosen.names),
        f"jobs.spec IN (SELECT id FROM specs WHERE {of_specs})" if of_specs else "",
        _any("jobs.state = ?", stored),
        _TEXT if chosen.text else "",
        "jobs.array = ?" if chosen.array else "",
    )
    tags = [word for name, pattern in chosen.tags for word in (text_of(name), sql_pattern(pattern))]
    text = _text_values(chosen.text) if chosen.text else []
    values = [*map(sql_pattern, chosen.names), *map(sql_pattern, chosen.groups), *tags, *stored, *text]
    values += [chosen.array] if chosen.array else []
    return " AND ".join(filter(None, parts)) or "1", values


class Search(NamedTuple):
    """Rows of jobs in SQL, a condition, and the values of both."""

    rows: JobRows
    where: str
    values: list[Any]


def search(
    reader: Reader, chosen: Filter, scope: Scope, among: Sequence[int] | None = None, rows: JobRows = ALL_ROWS
) -> Search:
    """The jobs that match, also in their state; `among` are the only ones to look at, in place of `rows`."""
    if chosen.text and reader.rows("SELECT 1 FROM lines UNION ALL SELECT 1 FROM patterns LIMIT 1"):
        with_text = _ids_with_text(reader, chosen.text, scope)
        among = with_text if among is None else ranges_of(among).among(with_text)
        chosen = chosen._replace(text="")
    if chosen.names and reader.rows("SELECT 1 FROM patterns LIMIT 1"):
        named = ids_with_names(reader, chosen.names, scope)
        among = named if among is None else ranges_of(among).among(named)
        chosen = chosen._replace(names=())
    where, values = condition(chosen)
    rows = rows if among is None else rows_among(among)
    return Search(rows, f"jobs.{SCOPES[scope]} AND {where}" if scope != "any" else where, [*rows.values, *values])


def _ids_with_text(reader: Reader, text: str, scope: Scope) -> Ranges:
    """The jobs that contain a text. Of the lines that share a row, only some may."""
    values, where = _text_values(text), SCOPES[scope]
    whole = f"{where} AND jobs.words IS NOT NULL"
    rows = reader.rows(f"SELECT {FIRST}, id FROM jobs WHERE {whole} AND {_TEXT}", *values)
    lines = f"jobs JOIN lines ON lines.id BETWEEN {FIRST} AND jobs.id"
    in_line = _TEXT.replace("jobs.words", "lines.words").replace(f"{FIRST} AND jobs.id", "lines.id AND lines.id")
    rows += reader.rows(f"SELECT lines.id, lines.id FROM {lines} WHERE {where} AND {IN_LINES} AND {in_line}", *values)
    rows += _members_with_text(reader, text, where, values)
    return joined(range(first, last + 1) for first, last in sorted(rows))


def _members_with_text(reader: Reader, text: str, where: str, values: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Ranges of the members that follow from a pattern and contain a text."""
    low, variants, (*_, job_id, array, like) = text_of(text).lower(), {text, text.replace(" ", "\0")}, values
    of_all = (
        "(jobs.array = ? OR jobs.spec IN (SELECT id FROM specs WHERE json_extract(body, '$.group') LIKE ? ESCAPE '!'))"
    )
    for job in _in_patterns(reader, f"{where} AND {of_all}", array, like):
        yield job.id, job.last
    for job in _in_patterns(reader, f"{where} AND NOT {of_all}", array, like):
        for number, filled in enumerate(filled_of(job), job.id):
            if number == job_id or low in filled.name.lower() or any(variant in filled.words for variant in variants):
                yield number, number


def ids_with_names(reader: Reader, patterns: Sequence[str], scope: Scope) -> Ranges:
    """The jobs whose names match one of some patterns."""
    query = f"SELECT {FIRST}, id FROM jobs WHERE {SCOPES[scope]} AND {_any('jobs.name GLOB ?', patterns)}"
    rows = reader.rows(query, *map(sql_pattern, patterns))
    for job in _in_patterns(reader, f"{SCOPES[scope]} AND jobs.name IS NULL"):
        names = (text_of(filled.name) for filled in filled_of(job))
        rows += [
            (number, number)
            for number, name in enumerate(names, job.id)
            if any(fnmatchcase(name, text_of(pattern)) for pattern in patterns)
        ]
    return joined(range(first, last + 1) for first, last in sorted(rows))


def _in_patterns(reader: Reader, where: str, *values: object) -> Iterator[Job]:
    """Rows of members that follow from a pattern and have not started."""
    return (reader.job_of(row) for row in reader.rows(f"{JOB}{IN_PATTERN} AND {where}", *values))


def ids_matching(reader: Reader, chosen: Filter, scope: Scope, among: Sequence[int] | None = None) -> Ranges:
    """Ids of the jobs that match, in order; `among` are the only ones to look at."""
    rows, where, values = search(reader, chosen, scope, among)
    listed = where if among is not None else f"{where} AND {NOT_ON_FINISH}"
    return ids_where(reader, rows, listed, *values[len(rows.values) :])


def queued_groups(reader: Reader, chosen: Filter, limit: int | None, *, each_task: bool) -> list[Group]:
    """Matching jobs that no worker holds, by id; tasks of an array in the same state are one group."""
    rows, where, values = search(reader, chosen, "open", rows=_OPEN_ROWS)
    together = rows.key if each_task else f"CASE WHEN array != 0 THEN array ELSE {rows.key} END, state, engine"
    query = (
        f"SELECT {_of_group(rows)} FROM {rows.tables}"
        f" WHERE state IN ('waiting', 'held') AND {where} AND {NOT_ON_FINISH}"
        f" GROUP BY {together} ORDER BY first LIMIT ?"
    )
    groups = (Group(*row) for row in reader.rows(query, *values, -1 if limit is None else limit))
    listed = chain.from_iterable(_each_task([group]) if each_task or group.is_lines else [group] for group in groups)
    return list(islice(listed, limit))


def _each_task(groups: Iterable[Group], *, backwards: bool = False) -> Iterator[Group]:
    """A group for each job of rows that stand for several."""
    for group in groups:
        indices = group.indices
        for at in reversed(range(group.size)) if backwards else range(group.size):
            task = "null" if group.is_lines else indices[at]
            yield group._replace(size=1, first=group.first + at, tasks=f"[[{task},1,1]]")


def counts_of_open(reader: Reader, chosen: Filter) -> dict[str, int]:
    """How many open jobs match, by state as stored."""
    rows, where, values = search(reader, chosen, "open", rows=_OPEN_ROWS)
    query = f"SELECT state, {rows.total} FROM {rows.tables} WHERE {where} AND {NOT_ON_FINISH}"
    return dict(reader.rows(f"{query} GROUP BY state", *values))


class GroupCounts(NamedTuple):
    """The open jobs of one group of the user's (`--group`)."""

    group: str
    active: int
    waiting: int
    held: int


def counts_by_group(reader: Reader, chosen: Filter = NO_FILTER) -> list[GroupCounts]:
    """Open jobs by group; the empty name is for jobs without one."""
    rows, where, values = search(reader, chosen, "open", rows=_OPEN_ROWS)
    # First by spec, of which there are few: parsing one for each job would take longer than the rest.
    counts = (
        f"SELECT spec, sum({rows.size} * (state = 'waiting')) AS waiting, sum({rows.size} * (state = 'held')) AS held,"
        f" {rows.total} AS total FROM {rows.tables} WHERE {where} GROUP BY spec"
    )
    counted = reader.rows(
        "SELECT coalesce(json_extract(body, '$.group'), '') AS name, sum(total - waiting - held), sum(waiting),"
        f" sum(held) FROM ({counts}) AS counts JOIN specs ON specs.id = counts.spec"
        " WHERE coalesce(json_extract(body, '$.role'), 'job') = 'job' GROUP BY name ORDER BY name",
        *values,
    )
    return [GroupCounts(*row) for row in counted]


def groups_in_order(reader: Reader) -> list[str]:
    """All groups of the user's, in the order of their first use."""
    group = "json_extract(body, '$.group')"
    rows = reader.rows(f"SELECT {group} AS name FROM specs WHERE name != '' GROUP BY name ORDER BY min(id)")
    return [name for (name,) in rows]


_TEXT = (
    "(jobs.name LIKE ? ESCAPE '!' OR instr(jobs.words, ?) OR instr(jobs.words, ?) OR ? BETWEEN"
    f" {FIRST} AND jobs.id OR jobs.array = ?"
    " OR jobs.spec IN (SELECT id FROM specs WHERE json_extract(body, '$.group') LIKE ? ESCAPE '!'))"
)


def _text_values(text: str) -> list[Any]:
    """Values of `_TEXT`: words of a command are stored with zero bytes between them; a string of a shell has blanks."""
    words = text.encode(errors="surrogateescape")
    like = "%" + "".join(f"!{character}" if character in "!%_" else character for character in text_of(text)) + "%"
    number, _, _ = text.partition(".")
    job = int(number) if number.isascii() and number.isdecimal() and len(number) < 19 else 0
    return [like, words, words.replace(b" ", b"\0"), job, job or -1, like]


def _any(test: str, values: Sequence[str]) -> str:
    return f"({' OR '.join([test] * len(values))})" if values else ""


def sql_pattern(pattern: str) -> str:
    """A pattern of the shell as SQLite writes it."""
    return text_of(pattern).replace("[!", "[^")


# -- pages of jobs in any order ----------------------------------------------------------------

_QUEUED = "(state = 'waiting' OR state = 'held')"
_STATES = "instr('running stopping starting waiting held', state)"
_OF_SPEC = "(SELECT json_extract(body, '$.{}') FROM specs WHERE specs.id = jobs.spec)"
_STARTED = "(SELECT started FROM attempts WHERE attempts.job = jobs.id AND attempts.number = jobs.attempts)"
_PEAK = "(SELECT peak FROM measures WHERE measures.job = jobs.id AND measures.number = jobs.attempts)"
SORTS = {
    "id": "",
    "name": "name COLLATE NOCASE",
    "state": _STATES,
    "priority": f"coalesce({_OF_SPEC.format('priority')}, 0)",
    "group": f"coalesce({_OF_SPEC.format('group')}, '')",
    "submitted": "submitted",
    "started": _STARTED,
    "ended": "ended",
    "seconds": f"coalesce(ended, 86400.0 * (julianday('now') - 2440587.5)) - {_STARTED}",
    "memory": _PEAK,
}
"""Columns to sort by; a minus before the name reverses the order. The id is that of the first job of a line."""
_FROM: dict[Scope, str] = {
    "open": "jobs INDEXED BY jobs_open",
    "ended": "jobs INDEXED BY jobs_ended",
    "any": "jobs",
}


class Listing(NamedTuple):
    """Which jobs are wanted, as lines: a job, or the tasks of an array that wait alike."""

    scope: Scope = "open"
    chosen: Filter = NO_FILTER
    each_task: bool = False
    """Whether every task has its own line."""
    only: Sequence[int] | None = None
    """Restricts the jobs that the filter chooses to these ids."""
    without: Sequence[int] = ()
    """Jobs that are left out; the last of each row."""
    listed: Sequence[int] = ()
    """Jobs and arrays whose waiting jobs are left out, since they are listed already."""
    on_finish_jobs: bool = False


def count_lines(reader: Reader, listing: Listing) -> int:
    rows, where, values = _where(reader, listing)
    jobs = int(reader.rows(f"SELECT {rows.total} FROM {rows.tables} WHERE {where}", *values)[0][0])
    if listing.each_task or listing.scope == "ended":
        return jobs
    # Tasks older than every open job are passed over in the index, without reading their rows.
    tables = rows.tables if rows.values else "jobs INDEXED BY jobs_array"
    oldest = f"(SELECT min(id) FROM jobs INDEXED BY jobs_open WHERE {OPEN})"
    query = (
        f"SELECT {rows.total}, count(DISTINCT array || state || engine) FROM {tables}"
        f" WHERE {IN_ARRAY} AND jobs.id >= {oldest} AND {_QUEUED} AND {where}"
    )
    ((tasks, lines),) = reader.rows(query, *values)
    return jobs - int(tasks) + int(lines)


def counts_of_array(reader: Reader, array: int) -> dict[str, int]:
    """How many tasks of an array are in each state, as stored."""
    return dict(reader.rows("SELECT state, sum(size) FROM jobs WHERE array = ? GROUP BY state ORDER BY state", array))


def page_of_lines(reader: Reader, listing: Listing, sort: str, offset: int, limit: int) -> list[Group]:
    """Lines in an order of `SORTS`, then by id; a limit of -1 is none."""
    rows, where, values = _where(reader, listing)
    queued = "0" if listing.each_task else _QUEUED
    together = f"CASE WHEN array != 0 AND {queued} THEN -array ELSE {rows.first} END"
    order = f"{SORTS[sort.removeprefix('-')] or 'first'} {'DESC' if sort.startswith('-') else 'ASC'}"
    columns = f"{_of_group(rows)}, {queued}, state"
    query = f"SELECT {columns} FROM {rows.tables} WHERE {where} GROUP BY {together}, state, engine"
    # A group has at least one line, so that these are enough groups; one whose lines are all listed already has none.
    most = -1 if limit < 0 else offset + limit + len(listing.listed)
    rows_of_groups = reader.rows(f"{query} ORDER BY {order}, first LIMIT ?", *values, most)
    lines = (
        line
        for *row, is_line, state in rows_of_groups
        for line in _lines_of(Group(*row), listing, state, together=bool(is_line), backwards=sort == "-id")
    )
    return list(islice(lines, offset, None if limit < 0 else offset + limit))


def _lines_of(group: Group, listing: Listing, state: str, *, together: bool, backwards: bool) -> Iterable[Group]:
    if group.size == 1 or (together and not group.is_lines):
        return [group]
    listed = listing.listed if group.is_lines and state == "waiting" else ()
    return (line for line in _each_task([group], backwards=backwards) if line.first not in listed)


def ids_of_listing(reader: Reader, listing: Listing) -> Ranges:
    """The jobs of all lines, by id."""
    rows, where, values = _where(reader, listing)
    ends = reader.rows(f"SELECT {rows.first}, {rows.last} FROM {rows.tables} WHERE {where} ORDER BY jobs.id", *values)
    return joined(range(first, last + 1) for first, last in ends)


def waiting_with_conditions(reader: Reader, limit: int) -> Ranges:
    """Ids of waiting jobs that may wait for other jobs or for a time, of at most so many rows."""
    conditions = "json_array_length(body, '$.after') > 0 OR json_extract(body, '$.begin') IS NOT NULL"
    query = (
        f"SELECT {FIRST}, id FROM jobs INDEXED BY jobs_open WHERE {OPEN} AND state = 'waiting'"
        f" AND spec IN (SELECT id FROM specs WHERE {conditions}) LIMIT ?"
    )
    return Ranges(range(first, last + 1) for first, last in reader.rows(query, limit))


def _where(reader: Reader, listing: Listing) -> tuple[JobRows, str, list[Any]]:
    """JobRows, a condition, and the values of both."""
    rows, where, values = search(
        reader, listing.chosen, listing.scope, listing.only, ALL_ROWS._replace(tables=_FROM[listing.scope])
    )
    parts = [where]
    query = f"SELECT id FROM specs WHERE {OF_ON_FINISH_JOBS}"
    if on_finish := [] if listing.on_finish_jobs else [spec for (spec,) in reader.rows(query)]:
        parts.append("spec NOT IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(on_finish))
    if listing.without:
        parts.append("jobs.id NOT IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(list(listing.without)))
    if listing.listed:
        key = "CASE WHEN array != 0 THEN array ELSE jobs.id END"
        parts.append(
            f"NOT (state = 'waiting' AND {key} IN (SELECT value FROM json_each(?)) AND (array != 0 OR jobs.size = 1))"
        )
        values.append(json.dumps(list(listing.listed)))
    return rows, " AND ".join(parts), values
