"""`stoker diff`: how the code of a job differs from the present code, or from that of another job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import click

from stoker.app.views.facts import read_facts
from stoker.cli.options import Screen, StokerCommand, complete_jobs, screen_options, write_json
from stoker.cli.screens.text import Line, Look, Span, write_lines
from stoker.core.job import id_text
from stoker.features.freeze.code_view import Comparison, code_diff, compared, job_named
from stoker.features.freeze.compare import LineKind, diff_lines

_LOOKS: dict[LineKind, Look] = {
    "file": "heading",
    "place": "bar2",
    "same": "",
    "old": "heavy",
    "new": "good",
    "note": "faint",
}
TAB_COLUMNS = 8


@click.command(name="diff", cls=StokerCommand)
@click.argument("job", metavar="ID", shell_complete=complete_jobs)
@click.argument("other", metavar="[ID]", required=False, shell_complete=complete_jobs)
@click.option("--stat", is_flag=True, help="Only the names of the files that differ.")
@screen_options
def command(*, job: str, other: str | None, stat: bool, screen: Screen) -> int:
    """Compare the frozen code of a job with the code that is there now, or with that of another job.

    A terminal gets colours, and control characters are escaped. Other output is an exact patch, as git makes it.

    \b
      stoker diff 12                  what was changed since job 12 was submitted
      stoker diff 12 15               from job 12 to job 15
      stoker diff 12 15 > my.patch
    """
    with read_facts(screen.paths) as facts:
        first = job_named(facts, job)
        second = job_named(facts, other) if other is not None else None
        now = facts.now
    comparison = compared(screen.paths, first, second, os.environ)
    if screen.form == "json":
        write_json(code_diff(comparison, now, simulated=screen.paths.is_simulated))
    elif screen.form == "plain":
        _write_patch(comparison, stat=stat)
    else:
        write_lines(list(_shown(comparison, stat=stat)), screen.color)
    return 0


def _write_patch(comparison: Comparison, *, stat: bool) -> None:
    """Bytes as they are in the files: text would change what is not UTF-8."""
    sys.stdout.flush()
    for line in _names(comparison) if stat else _lines(comparison):
        sys.stdout.buffer.write(line.encode(errors="surrogateescape") + b"\n")


def _lines(comparison: Comparison) -> Iterator[str]:
    for change in comparison.changes:
        yield from (line.text for line in diff_lines(change, comparison.before, comparison.after))


def _names(comparison: Comparison) -> Iterator[str]:
    for change in comparison.changes:
        yield f"{change.kind}\t{change.path}"


def _shown(comparison: Comparison, *, stat: bool) -> Iterator[Line]:
    yield (Span(_title(comparison), "faint"),)
    for change in comparison.changes:
        if stat:
            old = f"{change.before.path} → " if change.kind == "renamed" else ""
            yield Span(f" {change.kind:8} ", "faint"), Span(f"{old}{change.path}")
            continue
        for line in diff_lines(change, comparison.before, comparison.after):
            yield (Span(line.text.expandtabs(TAB_COLUMNS), _LOOKS[line.kind]),)


def _title(comparison: Comparison) -> str:
    job, other = comparison.job, comparison.other
    there = f"job {id_text(other)}{_commit(other.spec.commit)}" if other else f"now in {comparison.root}"
    if not comparison.changes:
        return f"job {id_text(job)} has the same code as {there if other else f'is {there}'}"
    return f"job {id_text(job)}{_commit(job.spec.commit)} → {there}"


def _commit(commit: str) -> str:
    return f" ({commit})" if commit else ""
