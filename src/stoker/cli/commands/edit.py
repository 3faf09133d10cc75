"""`stoker edit`: change jobs that wait."""

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

from stoker.cli.completion import complete_jobs
from stoker.cli.job_options import change_options
from stoker.cli.output_options import controlling, wants_json
from stoker.cli.views.plain import Deed, deed, report_of, tell, word
from stoker.core.errors import StokerError, UsageError
from stoker.core.job import Ended, Job, Queued, id_text
from stoker.core.requests import Edit
from stoker.core.text import printable, title
from stoker.queue.control import Control, abandoned, carry_out, opened, specs_in_the_queue, warn
from stoker.queue.edit import Request, Rewriter, changes, options_of, write_toml
from stoker.queue.options import BY_NAME, read_tables
from stoker.queue.select import find, jobs_in_order


@click.command(name="edit")
@click.argument("ids", nargs=-1, required=True, metavar="ID...", shell_complete=complete_jobs)
@change_options
@controlling
@click.pass_context
def command(context: click.Context, /, ids: tuple[str, ...], as_json: bool, sim: bool, **values: Any) -> int:
    """Change jobs that wait; without options, in an editor ($VISUAL or $EDITOR).

    The command stays; to change that, cancel the job and submit another one.
    An empty value is the default: --time '' takes the limit away. A job can only be put behind jobs that were
    submitted before it. `all` is all that waits.

    \b
      stoker edit 12 --priority 5 --time 2h
      stoker edit 12          all its options, as TOML in an editor
    """
    wish = _typed(context, values)
    with opened(sim) as control:
        found = _meant(control, ids)
        rewriter = Rewriter(control)
        waiting = [job for job in found if isinstance(job.state, Queued)]
        if not wish and waiting:
            wish = _edited(waiting, rewriter)
            if not wish:
                warn("nothing was changed")
                return 0
        deeds = _edit(control, rewriter, found, wish)
        return tell(report_of("edit", deeds), as_json=wants_json(as_json))


def _typed(context: click.Context, values: dict[str, Any]) -> dict[str, Any]:
    """Options that were really typed: what the environment has for all submits is not meant for this job."""
    source = context.get_parameter_source
    typed = {name: values[name] for name in BY_NAME if source(name) is ParameterSource.COMMANDLINE}
    return {**typed, **read_tables(typed)}


def _meant(control: Control, ids: Sequence[str]) -> list[Job]:
    jobs = jobs_in_order(control.store, find(control.store, ids))
    return [job for job in jobs if isinstance(job.state, Queued)] if "all" in ids else jobs


def _edit(control: Control, rewriter: Rewriter, found: Sequence[Job], wish: Request) -> list[Deed]:
    """All changes are checked before the first is asked for."""
    name = wish.get("name")
    rest = {option: value for option, value in wish.items() if option != "name"}
    left = abandoned(control, found)
    edits = []
    for job in (job for job in found if isinstance(job.state, Queued)):
        spec = rewriter.spec(job, rest)
        spec = specs_in_the_queue(control, spec) if job.id in left else spec
        edits.append(Edit(job.id, spec, job.name if name is None else name))
    carry_out(control, edits)
    wanted = {edit.job: edit for edit in edits}
    after = jobs_in_order(control.store, [job.id for job in found])
    return [_result(rewriter, before, now, wanted.get(before.id)) for before, now in zip(found, after, strict=True)]


def _result(rewriter: Rewriter, before: Job, after: Job, wanted: Edit | None) -> Deed:
    shown = id_text(before)
    if isinstance(before.state, Ended):
        said = f"{shown} is over ({word(before)}); stoker retry {shown} runs it again"
        return deed(before, after, said, refused=True)
    if wanted is None:
        said = f"{shown} is {word(before)}, and what runs cannot be changed; stoker cancel {shown} ends it"
        return deed(before, after, said, refused=True)
    if after.spec != wanted.spec:
        return deed(before, after, f"{shown} is {word(after)} by now, and was not changed", refused=True)
    return deed(before, after, f"{shown}: {_difference(rewriter, before, after)}")


def _difference(rewriter: Rewriter, before: Job, after: Job) -> str:
    old, new = options_of(before, rewriter.label, rewriter.job), options_of(after, rewriter.label, rewriter.job)
    secrets = before.spec.extra_env != after.spec.extra_env
    changed = [name for name in new if old[name] != new[name] or (name == "env" and secrets)]
    told = [f"{name.replace('_', '-')} {_shown(old[name])} → {_shown(new[name])}" for name in changed]
    return ", ".join(told) or "it was so already"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={value[name]}" for name in value) or "none"
    return printable(str(value)) if value != "" else "none"


def _edited(jobs: Sequence[Job], rewriter: Rewriter) -> dict[str, Any]:
    """What somebody changes in an editor, of which all is checked."""
    before = options_of(jobs[0], rewriter.label, rewriter.job)
    more = f"\nWhat is changed here is changed for {len(jobs)} jobs." if len(jobs) > 1 else ""
    heading = f"{id_text(jobs[0])}: {title(jobs[0])}\nSave and leave to change it; an empty text is the default.{more}"
    with _text_in_a_file(f"stoker-{jobs[0].id}-", write_toml(before, heading)) as path:
        _open_editor(path)
        wish = changes(before, _read(path))
        for job in jobs:
            rewriter.spec(job, {option: value for option, value in wish.items() if option != "name"})
    return wish


@contextlib.contextmanager
def _text_in_a_file(prefix: str, text: str) -> Iterator[str]:
    """A file with the text; where something goes wrong after somebody changed it, it is left for him to find."""
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


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError("that is not UTF-8", "save it as UTF-8") from error


def _open_editor(path: str) -> None:
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR") or shutil.which("vi") or shutil.which("nano")
    if not chosen:
        raise UsageError("there is no editor", "set EDITOR, or give options such as --priority 5")
    try:
        code = subprocess.run([*shlex.split(chosen), path], check=False).returncode
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot start the editor {chosen!r}: {error}", "set EDITOR to another one") from error
    if code:
        raise UsageError(f"the editor ended with {code}", "leave it without an error to change the job")
