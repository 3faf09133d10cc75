"""`stoker submit`: add jobs to the background queue."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from stoker.app.control.engine_process import Background
from stoker.app.jobs.config import config_here
from stoker.app.jobs.context import current_user, find_program
from stoker.app.jobs.job_files import COMMAND_LINE, JobLines, ParsedJob, command_of, read_list, usable
from stoker.app.jobs.options import JobOptions
from stoker.app.jobs.script import CommandLine, Script, find_script
from stoker.app.jobs.submit import Inserted, Key, QueueSubmission, earlier_submit, key_of
from stoker.cli.console import flush_output, say, silence_output
from stoker.cli.job_options import DASHES, TYPED_OPTIONS, TypedCommand, job_options, options_from
from stoker.cli.options import json_option, sim_option, wants_json, write_json
from stoker.core.errors import StokerError, UsageError
from stoker.core.job import Ended, Job, Queued, Waiting, id_text
from stoker.core.launch import output_paths
from stoker.core.ranges import Ranges
from stoker.core.spec import Command, shell_of
from stoker.core.text import on_one_line, printable, shortened
from stoker.features import elsewhere, load
from stoker.store.changes import StoreChanges
from stoker.store.engine_lock import QUEUE
from stoker.store.paths import Paths
from stoker.store.queries import jobs_of, paused_key
from stoker.store.status_file import read_machine, read_status
from stoker.store.writer import open_store

WIDTH = 200


class SubmittedJob(Struct, frozen=True):
    """A job that was submitted, or an array of them."""

    id: int
    tasks: str | None
    """The indices of an array as they were typed; null for a job that is none."""
    count: int
    """How many tasks; 1 for a job that is no array."""
    name: str
    command: str
    log: str | None
    """Where the output of its first attempt will be; null for an array, which has a file for each task."""


class SubmitResult(Struct, frozen=True):
    """All that was submitted: `stoker submit --json`."""

    schema: str
    held: bool
    jobs: list[SubmittedJob]
    problem: str | None
    """Why there is no engine to run them, though they are safe in the queue; null where there is group."""
    repeated: bool = False
    """Whether they were submitted before under the same --key, and nothing was submitted now."""
    server: str = ""
    """The server that has them (`-S`); empty for this machine."""


def submit_result(inserted: Sequence[Inserted], problem: str | None, *, held: bool) -> SubmitResult:
    jobs = [job for group in inserted for job in _jobs(group)]
    return SubmitResult("stoker.submit/1", held, jobs, problem, any(group.repeated for group in inserted))


def show_ids(inserted: Sequence[Inserted]) -> None:
    """One id per line; an array has group."""
    for group in inserted:
        sys.stdout.write("".join(f"{job_id}\n" for job_id in (group.ids[:1] if group.array else group.ids)))


def show_lines(inserted: Sequence[Inserted]) -> None:
    """One line per job, array, or range of jobs."""
    for group in inserted:
        single = f": {_title(group)}" if group.array or len(group.ids) == 1 else ""
        print(f"{'already submitted:' if group.repeated else 'submitted'} {_ids_text(group)}{single}")


def unprinted_text(inserted: Sequence[Inserted]) -> str:
    """For ids that could not be printed: `job 3 is in the queue, but its id`."""
    if len(inserted) == 1 and (len(inserted[0].ids) == 1 or inserted[0].array):
        return f"job {inserted[0].ids[0]} is in the queue, but its id"
    return f"jobs {', '.join(map(_ids_text, inserted))} are in the queue, but their ids"


def _ids_text(group: Inserted) -> str:
    if group.array:
        return f"{group.ids[0]} (tasks {group.array})"
    return str(group.ids[0]) if len(group.ids) == 1 else f"{group.ids[0]}-{group.ids[-1]} ({len(group.ids)} jobs)"


def _title(group: Inserted) -> str:
    return shortened(printable(on_one_line(group.jobs[0].command.text)), WIDTH)


def _jobs(group: Inserted) -> Iterator[SubmittedJob]:
    if group.array:
        first = group.jobs[0]
        command, name = first.command.text, first.name
        yield SubmittedJob(group.ids[0], group.array, len(group.ids), name, command, None)
        return
    user = current_user()
    for job_id, new in zip(group.ids, group.jobs, strict=True):
        job = Job(job_id, 0, new.command, new.spec, Waiting(0.0), 0.0, new.name)
        log = output_paths(job, user)[0]
        yield SubmittedJob(job_id, None, 1, new.name, new.command.text, log)


NOT_SERVED = 3
HELD = "held at submit"


class SubmitOptions(Struct, frozen=True):
    """The options of `stoker submit`."""

    options: JobOptions
    label: str
    paths: Paths
    hold: bool = False
    parsable: bool = False
    dry_run: bool = False
    as_json: bool = False
    key: str | None = None
    """Names this submit: the same one again submits nothing."""
    script: Script | None = None
    """Set where the command is a script."""
    server: str | None = None
    """Another machine whose queue gets the jobs."""
    arrived: str = ""
    """Their code, if it came from another machine."""


def submit_jobs(request: SubmitOptions, items: Sequence[ParsedJob]) -> int:
    """Submit the jobs and return the exit code."""
    paths = request.paths
    if paths.note:
        say(paths.note)
    submission = QueueSubmission(
        paths,
        config_here(say),
        request.options,
        time.time(),
        os.environ,
        script=request.script,
        arrived=request.arrived,
    )
    submission.read(items)
    engine = Background(paths, submission.devices)
    clusters = [Background(paths, cluster=name) for name in submission.clusters if name]
    engines = [*([engine] if "" in submission.clusters else []), *clusters]
    key = _key(request, items)
    with contextlib.closing(open_store(paths)) as store:
        if request.dry_run:
            from stoker.app.jobs.dry_run import plan_submission
            from stoker.cli.screens.dry_run import show_submit_plan

            groups = submission.resolve(items, store, read_machine(paths.status_file(QUEUE)))
            for note in submission.notes:
                say(note)
            planned = plan_submission(groups, store, read_status(paths.status_file(QUEUE)), time.time())
            return show_submit_plan(planned, as_json=request.as_json)
        if key is not None and (before := earlier_submit(store, key)):
            return _report(request, before, _wake(engines))  # the submit before may have been killed before it did
        with engine.stop_engine_if_impossible():
            groups = submission.resolve(items, store, engine.machine() if submission.needs_devices else None)
        inserted = submission.insert(store, groups, request.label, held=HELD if request.hold else "", key=key)
        paused = store.settings().get(paused_key(QUEUE))
    failure = _wake(engines)
    difference = engine.difference() if submission.needs_devices else ""
    for note in filter(None, [*submission.notes, difference]):
        say(note)
    code = _report(request, inserted, failure)
    if request.options.nonblock and failure is None and not request.hold:
        return _wait_for_starts(paths, Ranges(range(ids[0], ids[-1] + 1) for ids in (group.ids for group in inserted)))
    if paused and "" in submission.clusters:
        say(f"the queue is {paused['note']}; to start jobs: stoker resume --queue{' --sim' * paths.is_simulated}")
    return code


def _wait_for_starts(paths: Paths, ids: Ranges) -> int:
    """Wait until each job has started or was given up, which the engine decides at once; 1 if one was given up."""
    with contextlib.closing(open_store(paths)) as store:
        changes = StoreChanges(store)
        while any(isinstance(job.state, Queued) for job in jobs_of(store, ids)):
            changes.wait()
        ends = [(job, job.state) for job in jobs_of(store, ids) if isinstance(job.state, Ended)]
    expired = [f"{id_text(job)} was not started: it {end.note}" for job, end in ends if end.result == "expired"]
    for sentence in expired:
        say(sentence)
    return 1 if expired else 0


def _wake(engines: Sequence[Background]) -> StokerError | None:
    """Wake or start the engines; why one cannot be started, if that is so."""
    for engine in engines:
        engine.wake()
    return next((engine.failure for engine in engines if engine.failure), None)


def _key(request: SubmitOptions, items: Sequence[ParsedJob]) -> Key | None:
    if request.key is None:
        return None
    script = request.script.data if request.script else b""
    jobs = [(item.command, item.options) for item in items]
    return key_of(request.key, os.getcwd(), request.options, jobs, request.hold, script)


def _report(request: SubmitOptions, inserted: Sequence[Inserted], failure: StokerError | None) -> int:
    """Print the ids, also where no engine could be started: the jobs are in the queue."""
    if inserted[0].repeated:
        say(f"the key {request.key!r} was used before; nothing was submitted")
    try:
        _show(request, inserted, failure)
        flush_output()
    except OSError as error:
        silence_output()
        say(f"{unprinted_text(inserted)} could not be printed: {error.strerror}")
        say("do not submit again; list the jobs with: stoker status")
        return StokerError.exit_code
    if failure is None:
        return 0
    say(f"the job is in the queue, but the engine could not be started or reached: {failure.message}")
    say(failure.hint)
    return NOT_SERVED


def _show(request: SubmitOptions, inserted: Sequence[Inserted], failure: StokerError | None) -> None:
    if request.as_json:
        write_json(submit_result(inserted, failure.message if failure else None, held=request.hold))
    elif request.parsable:
        show_ids(inserted)
    else:
        show_lines(inserted)


@click.command(name="submit", cls=TypedCommand, context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT... | COMMAND...]")
@job_options
@click.option(
    "-f", "--file", metavar="FILE", help="Submit all jobs of a file (lines, .jsonl, .toml or .csv); - is stdin."
)
@click.option("-s", "--shell", is_flag=True, help="Run the words as one line of your shell.")
@sim_option
@click.option("--hold", is_flag=True, help="Hold the jobs until you release them (stoker resume).")
@click.option("--key", metavar="TEXT", help="Submit only once: a repeated key prints the same ids and submits nothing.")
@click.option("--parsable", is_flag=True, help="Print only the ids.")
@click.option("--dry-run", is_flag=True, help="Show what would be submitted and where it would run; submit nothing.")
@json_option
@click.pass_context
def command(context: click.Context, /, words: tuple[str, ...], file: str | None, shell: bool, **values: Any) -> int:
    """Submit a command or script to the queue and print its id. The engine starts automatically.

    \b
      stoker submit -- python3 train.py --lr 1e-3           one job on one GPU
      stoker submit -G 2 job.sh a b                         a script with its arguments, as sbatch does
      stoker submit -a 0-9%4 'python3 train.py --seed {i}'  ten tasks, four at once
      stoker submit -d 12 -G 0 -- python3 evaluate.py       after job 12 has succeeded

    Several words are executed without a shell; one quoted word with spaces is run by your shell, and so are
    the lines of a file. {i}, {id}, {gpu} and {name} in the command are replaced. The job gets the
    environment and the directory that it was submitted from.

    A script runs from a copy made now, so later changes have no effect; STOKER_SCRIPT is its original path. After --
    the words are executed as they are, without a copy. A script is read as a list of commands only with -f.

    With --key a submit can be repeated safely, as after a lost connection. A key used before for another command, with
    other options or in another directory is refused. Keys are kept as long as their jobs (setting keep).
    """

    options = options_from(values)
    values["as_json"] = wants_json(values["as_json"])
    if not words and file is None and sys.stdin.isatty():
        click.echo(context.get_help())
        return 2
    items, script = _parse_words(context, words, file, as_line=shell)
    if any(word.startswith("-") for word in words[1:]):
        from stoker.cli.advice import misplaced_option

        if note := misplaced_option(CommandLine("submit", context.meta[TYPED_OPTIONS], words), options):
            say(note)
    request = SubmitOptions(options=options, label=file or "submit", script=script, **values)
    if request.server is not None:
        code: int = load(elsewhere().submit)(request, items)
        return code
    return submit_jobs(request, items)


def _parse_words(
    context: click.Context, words: tuple[str, ...], file: str | None, *, as_line: bool
) -> tuple[Sequence[ParsedJob], Script | None]:
    """The jobs and the script that the words or the file mean."""
    dashes = context.meta[DASHES]
    if words and file is None and not as_line and not dashes:
        script = find_script(CommandLine("submit", context.meta[TYPED_OPTIONS], words))
        if script:
            return [ParsedJob(script.command, COMMAND_LINE)], script.script
    return _items(words, file, as_line=as_line, dashes=dashes), None


def _items(words: tuple[str, ...], file: str | None, *, as_line: bool, dashes: bool) -> Sequence[ParsedJob]:
    shell = shell_of(os.environ)
    if file is not None:
        if words:
            raise UsageError("both a file and a command are given", "leave one of them out")
        return _some(_from_stdin(shell) if file == "-" else read_list(Path(file), shell, usable), file)
    if not words:
        raise UsageError("no command given", "put the command after --, or give a file of commands with -f")
    if len(words) == 1 and _looks_like_a_list(words[0]):
        hint = "name the program that runs it, or make it executable" if dashes else f"did you mean -f {words[0]}?"
        raise UsageError(f"{words[0]} is not executable", hint)
    line = Command((" ".join(words),), shell)
    return [ParsedJob(line if as_line and words[0].strip() else command_of(words, shell), COMMAND_LINE)]


def _from_stdin(shell: str) -> Sequence[ParsedJob]:
    lines = JobLines("stdin", shell)
    return usable(chain(lines.feed(sys.stdin.buffer.read()), lines.end()))


def _some(items: Sequence[ParsedJob], file: str) -> Sequence[ParsedJob]:
    if not items:
        raise UsageError(f"there is no job in {'stdin' if file == '-' else file}", "write one command on each line")
    return items


def _looks_like_a_list(word: str) -> bool:
    if not os.path.isfile(word):
        return False
    return not os.access(word, os.X_OK) and find_program(word) is None
