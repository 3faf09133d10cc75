"""`stoker edit`: change jobs that wait, and limits of those that run."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from stoker.app.control.edit import CHANGEABLE, Rewriter, changes_in, edit_jobs, editable_options, write_toml
from stoker.app.control.requests import opened
from stoker.app.jobs.options import BY_NAME, WHILE_RUNNING, read_tables
from stoker.app.jobs.select import find_queued
from stoker.cli.console import say, say_progress
from stoker.cli.job_options import change_options
from stoker.cli.options import StokerCommand, complete_jobs, controlling
from stoker.cli.screens.changes import report
from stoker.core.errors import StokerError, UsageError
from stoker.core.job import Active, Job, id_text, ids_of, is_delegated
from stoker.core.text import title
from stoker.store.paths import Paths


@click.command(name="edit", cls=StokerCommand)
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=complete_jobs)
@change_options
@controlling
@click.pass_context
def command(context: click.Context, /, ids: tuple[str, ...], as_json: bool, paths: Paths, **values: Any) -> int:
    """Change waiting or running jobs; without options, in an editor ($VISUAL or $EDITOR).

    The command cannot be changed: cancel the job and submit another one.
    An empty value restores the default: --time '' removes the limit. A job can depend only on jobs that were
    submitted before it. `all` means every waiting job.

    While a job runs, you can change: {running}. Its time limit counts from its start.

    \b
      stoker edit 12 --priority 5 --time 2h
      stoker edit 12          all its options, as TOML in an editor
    """
    # Options from the environment are for submit only.
    source = context.get_parameter_source
    typed = {name: values[name] for name in BY_NAME if source(name) is ParameterSource.COMMANDLINE}
    changes = {**typed, **read_tables(typed)}
    with opened(paths, say_progress) as control:
        jobs = find_queued(control.store, ids)
        rewriter = Rewriter(control)
        open_jobs = [job for job in jobs if isinstance(job.state, CHANGEABLE)]
        if not changes and open_jobs:
            changes = _edited(open_jobs, rewriter)
            if not changes:
                say("nothing was changed")
                return 0
        return report("edit", edit_jobs(control, rewriter, jobs, changes), as_json=as_json)


command.help = str(command.help).format(running=", ".join(BY_NAME[name].flag for name in WHILE_RUNNING))


def _edited(jobs: Sequence[Job], rewriter: Rewriter) -> dict[str, Any]:
    """The changes that the user makes in an editor, checked."""
    before = editable_options(jobs[0], rewriter.names)
    if any(isinstance(job.state, Active) and not is_delegated(job) for job in jobs):
        before = {name: value for name, value in before.items() if name in WHILE_RUNNING}
    count = len(ids_of(jobs))
    more = f"\nChanges apply to {count} jobs." if count > 1 else ""
    heading = (
        f"{id_text(jobs[0])}: {title(jobs[0])}\nSave and exit to apply; an empty value restores the default.{more}"
    )
    with _text_in_a_file(f"stoker-{jobs[0].id}-", write_toml(before, heading)) as path:
        _open_editor(path)
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UsageError("that is not UTF-8", "save it as UTF-8") from error
        changes = changes_in(before, text)
        for job in jobs:
            rewriter.spec(job, {option: value for option, value in changes.items() if option != "name"})
    return changes


@contextlib.contextmanager
def _text_in_a_file(prefix: str, text: str) -> Iterator[str]:
    """A temporary file with the text; it is kept if the user has changed it and an error follows."""
    descriptor, path = tempfile.mkstemp(prefix=prefix, suffix=".toml")
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    try:
        yield path
    except StokerError as error:
        changed = Path(path).read_bytes() != text.encode()
        hints = [error.hint, f"your text is in {path}"] if changed else [error.hint]
        if not changed:
            Path(path).unlink()
        raise type(error)(f"{error.message}; nothing was changed", "; ".join(filter(None, hints))) from error
    Path(path).unlink()


def _open_editor(path: str) -> None:
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR") or shutil.which("vi") or shutil.which("nano")
    if not chosen:
        raise UsageError("no editor found", "set EDITOR, or give options such as --priority 5")
    try:
        code = subprocess.run([*shlex.split(chosen), path], check=False).returncode
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot start the editor {chosen!r}: {error}", "set EDITOR to another one") from error
    if code:
        raise UsageError(f"the editor ended with {code}", "exit it without an error to change the job")
