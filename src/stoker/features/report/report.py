"""The report about a run, a batch or a period: timeline, outcomes, slowest jobs, failures; as data and as a page."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from stoker.app.jobs.local_time import stamp, to_datetime
from stoker.app.views.columns import peak_text
from stoker.app.views.facts import QueueFacts, read_facts
from stoker.app.views.failure import last_lines
from stoker.app.views.job import PastLine, past_line
from stoker.app.views.timeline import Timeline, timeline_of
from stoker.app.views.usage import busy_seconds
from stoker.cli.charts.chart import Axes, Point, outcomes_svg, scatter_svg
from stoker.cli.charts.svg import FAINT
from stoker.cli.charts.timeline import timeline_svg
from stoker.core.errors import NoSuchJob
from stoker.core.job import Ended, Job, ids_of, single
from stoker.core.outcomes import FAILURES, RESULT_COLOURS
from stoker.core.ranges import Ranges
from stoker.core.text import on_one_line, printable
from stoker.core.units import DAY, count_text, size_text, span_text, watch_text
from stoker.store import past_jobs, queries
from stoker.store.past_jobs import Past, Period, attempts_of_jobs, spans_of_jobs
from stoker.store.paths import Paths, host_name

SCHEMA = "stoker.report/1"
MOST_JOBS = 10_000
"""Jobs that one report is about, the newest."""
SLOWEST = 10
MOST_FAILURES = 30
LAST_LINES = 20
LEAST_SECONDS = 0.1
"""Shorter times are drawn at this place of a logarithmic axis."""
MOST_POINTS = 2000
WIDE_PIXELS = 1100.0
GIB = 2**30


class Failure(Struct, frozen=True):
    """A job that failed, and the end of its log."""

    job: PastLine
    lines: list[str]
    """Without colours, overwritten progress bars and control characters."""


class Report(Struct, frozen=True):
    """A report: `stoker report --json`."""

    schema: str
    at: datetime
    host: str
    simulated: bool
    title: str
    """The run, list or period."""
    since: datetime
    until: datetime
    outcomes: dict[str, int]
    open: int
    """Jobs that have not ended."""
    left_out: int
    """Older jobs of the period that it does not consider."""
    gpu_hours: float
    busy_gpu_hours: float
    """Time of GPUs with a job: jobs that share a GPU count once."""
    saved_gpu_hours: float
    """GPU time that sharing saved at most, against one job for each GPU."""
    jobs: list[PastLine]
    """All that ended, oldest first."""
    slowest: list[PastLine]
    failures: list[Failure]
    """The newest first."""
    more_failures: int
    timeline: Timeline


def report_of_jobs(paths: Paths, ids: Sequence[int], title: str) -> Report:
    """The report about some jobs."""
    with read_facts(paths) as facts:
        jobs = list(single(queries.jobs_of(facts.store, queries.sorted_ids(ids))))
        if not jobs:
            raise NoSuchJob("no such job", "list jobs with: stoker history")
        return _report(facts, jobs, title, None, left_out=0)


def report_of_period(paths: Paths, period: Period, title: str) -> Report:
    """The report about all jobs that ended in a period, or have not ended."""
    with read_facts(paths) as facts:
        past = past_jobs.past(facts.store, period, MOST_JOBS)
        left_out = sum(past_jobs.past_counts(facts.store, period).values()) - len(past)
        running = [owned.job for owned in facts.active if owned.job.spec.role != "hook"]
        return _report(facts, [*(line.job for line in reversed(past)), *running], title, period, left_out=left_out)


def batch_of(paths: Paths, job_id: int) -> tuple[Ranges, str]:
    """The jobs that were submitted together with one, and what submitted them."""
    with read_facts(paths) as facts:
        job = facts.store.job(job_id)
        if job is None:
            raise NoSuchJob(f"no job {job_id}", "list jobs with: stoker history")
        return ids_of(queries.jobs_of_batch(facts.store, job.batch)), facts.store.batch_label(job.batch)


def _report(facts: QueueFacts, jobs: Sequence[Job], title: str, period: Period | None, *, left_out: int) -> Report:
    store, ids = facts.store, [job.id for job in jobs]
    over = [job.id for job in jobs if isinstance(job.state, Ended)]
    ended = [_line(past, facts) for past in past_jobs.past_of(store, over)]
    ended.sort(key=lambda line: (line.ended, line.id))
    spans = spans_of_jobs(store, ids, facts.now)
    hours, busy = sum(span.seconds for span in spans) / 3600, busy_seconds(spans) / 3600
    since = _since(facts, jobs, period)
    until = None if len(ended) < len(jobs) or not ended else max(line.ended.timestamp() for line in ended)
    timeline = timeline_of(facts, Period(since), until, only=None if period else set(ids), trim=True)
    failed = [line for line in reversed(ended) if line.state in FAILURES]
    return Report(
        schema=SCHEMA,
        at=to_datetime(facts.now),
        host=host_name(),
        simulated=facts.simulated,
        title=title,
        since=to_datetime(since),
        until=to_datetime(facts.now if until is None else until),
        outcomes=dict(Counter(line.state for line in ended)),
        open=len(jobs) - len(ended),
        left_out=max(0, left_out),
        gpu_hours=round(hours, 4),
        busy_gpu_hours=round(busy, 4),
        saved_gpu_hours=round(max(0.0, hours - busy), 4),
        jobs=ended,
        slowest=sorted(ended, key=lambda line: -(line.run_seconds or 0.0))[:SLOWEST],
        failures=[Failure(line, last_lines(line.log, LAST_LINES)) for line in failed[:MOST_FAILURES]],
        more_failures=max(0, len(failed) - MOST_FAILURES),
        timeline=timeline,
    )


def _line(past: Past, facts: QueueFacts) -> PastLine:
    return past_line(past, facts.store, facts.devices)


def _since(facts: QueueFacts, jobs: Sequence[Job], period: Period | None) -> float:
    if period is not None and period.since:
        return period.since
    starts = [attempt.started for attempt in attempts_of_jobs(facts.store, [job.id for job in jobs])]
    return min([*starts, *(job.submitted for job in jobs)], default=facts.now - DAY)


# -- the page ----------------------------------------------------------------------------------------

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1f2328; --faint: #59636e; --line: #d8dee4;
  --panel: #f6f8fa; --bad: #cf222e; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #0d1117; --ink: #e6edf3; --faint: #9198a1; --line: #30363d; --panel: #161b22; --bad: #ff7b72; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 16px 48px; max-width: 1140px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; }
.faint { color: var(--faint); }
.numbers { display: flex; flex-wrap: wrap; gap: 12px; margin: 16px 0; }
.numbers div { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 8px 14px; }
.numbers b { display: block; font-size: 1.25rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 16px; }
figure { margin: 0 0 12px; overflow-x: auto; }
figure svg { max-width: 100%; height: auto; }
figure.wide svg { min-width: 720px; }
figcaption { color: var(--faint); font-size: .9rem; }
svg text.ink { fill: var(--ink); }
svg text.faint { fill: var(--faint); }
svg line.grid { stroke: var(--line); }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
.scroll { overflow-x: auto; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--faint); font-weight: 500; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.name { overflow-wrap: anywhere; }
.failed, .oom, .timeout, .lost { color: var(--bad); font-weight: 600; }
details { border: 1px solid var(--line); border-radius: 8px; margin: 8px 0; overflow: hidden; }
summary { padding: 8px 12px; cursor: pointer; overflow-wrap: anywhere; }
pre { margin: 0; padding: 8px 12px; background: var(--panel); border-top: 1px solid var(--line);
  overflow-x: auto; font-size: .85rem; }
"""


def escape(text: str) -> str:
    """The text as one line of HTML that shows control characters as escapes."""
    return html.escape(printable(text))


def render_report(report: Report) -> str:
    """The whole page. Names and logs are text: nothing of them is ever markup, and the page may load nothing."""
    title = escape(report.title)
    body = "\n".join(
        [
            f"<h1>{title}</h1>",
            f'<p class="faint">{escape(_about(report))}</p>',
            _numbers(report),
            _figure(timeline_svg(report.timeline, background=False), _left_out(report), wide=True),
            _charts(report),
            _section("Slowest jobs", _job_table(report.slowest)) if report.slowest else "",
            _failures(report),
        ]
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _about(report: Report) -> str:
    since, until = stamp(report.since.timestamp()), stamp(report.until.timestamp())
    simulated = ", simulated GPUs" if report.simulated else ""
    return f"{report.host}{simulated} · {since} to {until} · written {stamp(report.at.timestamp())}"


def _left_out(report: Report) -> str:
    timeline = report.timeline
    parts = ["Height is reserved memory, the full part was used; pale is expected."]
    parts += [f"{count_text(timeline.without_gpu, 'run')} without GPU not shown."] if timeline.without_gpu else []
    older = timeline.left_out + report.left_out
    parts += [f"{count_text(older, 'older job')} left out."] if older else []
    return " ".join(parts)


def _numbers(report: Report) -> str:
    failed = sum(count for word, count in report.outcomes.items() if word in FAILURES)
    numbers = [
        (str(sum(report.outcomes.values())), "jobs ended"),
        (str(failed), "failed"),
        *([(str(report.open), "not ended yet")] if report.open else []),
        (span_text((report.timeline.until - report.timeline.since).total_seconds()), "from start to end"),
        (f"{report.gpu_hours:.2f}", "GPU-hours"),
        *([(f"{report.saved_gpu_hours:.2f}", "GPU-hours saved by sharing, at most")] if report.saved_gpu_hours else []),
    ]
    return '<div class="numbers">' + "".join(f"<div><b>{value}</b>{what}</div>" for value, what in numbers) + "</div>"


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>\n{content}"


def _figure(svg: str, caption: str, *, wide: bool = False) -> str:
    return f"<figure{' class=wide' if wide else ''}>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


# -- charts ----------------------------------------------------------------------------------------


def _charts(report: Report) -> str:
    if not report.jobs:
        return "<p>No job has ended.</p>"
    figures = []
    times = [_time_point(job) for job in report.jobs[-MOST_POINTS:] if job.run_seconds is not None]
    if times:
        axes = Axes("Waiting against run time", "waited, s", "ran, s", logarithmic=True)
        figures.append(_figure(scatter_svg(times, axes), "Waiting time against run time, each dot is a job"))
    memory = list(_memory_points(report.jobs[-MOST_POINTS:]))
    if memory:
        axes = Axes("Peak against reserved memory", "reserved, GiB", "peak, GiB", diagonal=True)
        caption = "Peak against reserved GPU memory: far below the line, less could be reserved"
        figures.append(_figure(scatter_svg(memory, axes), caption))
    outcomes = _figure(outcomes_svg(report.outcomes, WIDE_PIXELS), "How the jobs ended")
    return _section("Outcomes, times and memory", f'{outcomes}<div class="charts">{"".join(figures)}</div>')


def _time_point(job: PastLine) -> Point:
    waited, ran = job.wait_seconds or 0.0, job.run_seconds or 0.0
    tip = f"{_name(job)}\nwaited {watch_text(waited)}, ran {watch_text(ran)}, {job.state}"
    return Point(max(LEAST_SECONDS, waited), max(LEAST_SECONDS, ran), RESULT_COLOURS.get(job.state, FAINT), tip)


def _memory_points(jobs: Iterable[PastLine]) -> Iterator[Point]:
    for job in jobs:
        if job.peak_vram_bytes is not None and job.reserved_bytes is not None:
            tip = f"{_name(job)}\npeak {size_text(job.peak_vram_bytes)} of {size_text(job.reserved_bytes)}"
            colour = RESULT_COLOURS.get(job.state, FAINT)
            yield Point(job.reserved_bytes / GIB, job.peak_vram_bytes / GIB, colour, tip)


# -- tables ----------------------------------------------------------------------------------------


def _name(job: PastLine) -> str:
    return f"{job.label} {on_one_line(job.title or job.name or job.command)}"


def _job_table(jobs: Sequence[PastLine]) -> str:
    numbers = "".join(f'<th class="number">{name}</th>' for name in ("Ran", "Waited", "GPU", "Peak", "GPU-hours"))
    head = f"<th>Job</th><th>State</th>{numbers}"
    rows = "".join(f"<tr>{''.join(_cells(job))}</tr>" for job in jobs)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cells(job: PastLine) -> Iterator[str]:
    waited = "-" if job.wait_seconds is None else span_text(job.wait_seconds)
    ran = "-" if job.run_seconds is None else watch_text(job.run_seconds)
    peak = peak_text(job.peak_vram_bytes, job.reserved_bytes)
    yield f'<td class="name">{escape(_name(job))}</td><td class="{job.state}">{job.state}</td>'
    for text in (ran, waited, ",".join(job.devices) or "-", peak, f"{job.gpu_hours:.2f}"):
        yield f'<td class="number">{escape(text)}</td>'


def _failures(report: Report) -> str:
    if not report.failures:
        return ""
    more = f"<p class=faint>and {count_text(report.more_failures, 'older failure')}</p>" if report.more_failures else ""
    return _section("Failures", "\n".join(map(_failure, report.failures)) + more)


def _failure(failure: Failure) -> str:
    job = failure.job
    how = f"signal {job.signal}" if job.signal else f"exit {job.exit_code}" if job.exit_code else job.state
    ran = f" after {watch_text(job.run_seconds)}" if job.run_seconds is not None else ""
    note = f" · {escape(job.note)}" if job.note else ""
    state = f'<span class="{job.state}">{job.state}</span>'
    head = f"<summary>{state} {escape(_name(job))} · {escape(how)}{ran}{note}</summary>"
    text = "\n".join(map(escape, failure.lines)) or "(no output)"
    command = f"$ {on_one_line(job.command)}"
    return f"<details open>{head}<pre>{escape(command)}\n\n{text}</pre></details>"
