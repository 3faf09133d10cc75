"""The side of the server: `stoker servers answer` reads a question and prints the reply."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
import zlib
from collections.abc import Sequence
from typing import BinaryIO

import msgspec
from msgspec.structs import replace

from stoker import __version__
from stoker.app.control.engine_process import Background
from stoker.app.jobs.config import config_here
from stoker.app.jobs.context import current_user
from stoker.app.jobs.job_files import ParsedJob
from stoker.app.jobs.travel import Traveller, traveller
from stoker.cli.commands.submit import SubmitOptions, submit_jobs
from stoker.cli.console import say
from stoker.cli.screens.dry_run import SubmitPlan
from stoker.core.errors import StokerError, UsageError
from stoker.core.text import to_json
from stoker.features.servers.protocol import (
    PROTOCOL,
    AboutQuestion,
    AboutReply,
    Envelope,
    FetchQuestion,
    Lacking,
    StartOffer,
    SubmitQuestion,
    moved_item,
    moved_script,
)
from stoker.store.engine_lock import QUEUE
from stoker.store.filters import NO_FILTER, counts_of_open
from stoker.store.paths import Paths, host_name, identity_of, paths_for, user_home
from stoker.store.status_file import read_status
from stoker.store.writer import open_store

_FEW = 3


def answer(source: BinaryIO) -> int:
    """Answer one question; the exit code."""
    line = source.readline()
    try:
        envelope = msgspec.json.decode(line, type=Envelope)
    except msgspec.MsgspecError as error:
        raise UsageError(f"the question cannot be read: {error}", "install the same version of stoker here") from None
    if envelope.protocol != PROTOCOL:
        raise UsageError(
            f"stoker {__version__} has protocol {PROTOCOL}, and the question protocol {envelope.protocol}",
            "install the same version of stoker on both machines",
        )
    match envelope.question:
        case AboutQuestion():
            return print_reply(about(paths_for()))
        case SubmitQuestion() as question:
            return _submit(question, source)
        case FetchQuestion() as question:
            from stoker.features.servers.sending import send_files

            return send_files(question, sys.stdout.buffer)


def about(paths: Paths) -> AboutReply:
    """The queue of this machine."""
    return AboutReply(
        queue=identity_of(paths),
        version=__version__,
        host=host_name(),
        user=current_user(),
        home=str(user_home()),
        now=time.time(),
    )


def _submit(question: SubmitQuestion, source: BinaryIO) -> int:
    """Submit the jobs as `stoker submit --json` does, or say which parts of the code are lacking."""
    paths, cwd = paths_for(question.simulated), here(question.cwd)
    _check_places(question, cwd)
    code = ""
    if question.code and not question.dry_run:
        parts = traveller_here()
        _take_in(question, source, parts, paths)
        if lacking := parts.lacking(question.code, paths):
            return print_reply(Lacking(lacking))
        code = parts.unpack(question.code, paths, here)
        os.makedirs(cwd, exist_ok=True)
    os.chdir(cwd if os.path.isdir(cwd) else user_home())
    options = replace(question.options, chdir=question.options.chdir and here(question.options.chdir))
    request = SubmitOptions(
        options=replace(options, freeze="no") if question.dry_run else options,
        label=question.label,
        paths=paths,
        hold=question.hold,
        dry_run=question.dry_run,
        as_json=True,
        key=None if question.dry_run else question.key,
        script=question.script and moved_script(question.script, here),
        arrived=code,
    )
    items = [moved_item(item, question.script, here) for item in question.items]
    return print_reply(_offer(request, items, question.key)) if question.dry_run else submit_jobs(request, items)


def _offer(request: SubmitOptions, items: Sequence[ParsedJob], key: str) -> StartOffer:
    """Where the jobs would start; an engine that never ran is started, since it knows the GPUs."""
    if read_status(request.paths.status_file(QUEUE)) is None:
        Background(request.paths, config_here(say).engine.devices).machine()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        submit_jobs(request, items)
    with contextlib.closing(open_store(request.paths)) as store:
        open_jobs = sum(counts_of_open(store, NO_FILTER).values())
        has_key = store.submit_key(key) is not None
    status = read_status(request.paths.status_file(QUEUE))
    load = open_jobs / max(1, len(status.devices) if status else 0)
    return StartOffer(time.time(), load, has_key, msgspec.json.decode(printed.getvalue(), type=SubmitPlan))


def _check_places(question: SubmitQuestion, cwd: str) -> None:
    """Refuse jobs whose files are not here."""
    if not question.code and not os.path.isdir(cwd):
        raise UsageError(f"there is no directory {cwd}", "make it there, or give another one with -D")
    absent = [path for path in question.needs if not os.path.exists(os.path.join(cwd, here(path)))]
    if absent:
        more = f" and {len(absent) - _FEW} more" if len(absent) > _FEW else ""
        raise UsageError(
            f"there is no {', '.join(absent[:_FEW])}{more} (in {cwd})",
            "copy that there; if the job itself makes it, make an empty one there",
        )


def _take_in(question: SubmitQuestion, source: BinaryIO, parts: Traveller, paths: Paths) -> None:
    """Store the parts that follow the question, each as soon as it is here."""
    for part, length in question.sent:
        data = source.read(length)
        if len(data) < length:
            raise StokerError("the code did not arrive whole", "submit again")
        parts.store(part, zlib.decompress(data), paths)


def traveller_here() -> Traveller:
    code_traveller = traveller()
    if code_traveller is None:
        raise UsageError("this installation cannot take code from elsewhere", "submit with --no-freeze")
    return code_traveller


def here(path: str) -> str:
    """A path of a question on this machine."""
    return str(user_home() / path[2:]) if path.startswith("~/") else path


def print_reply(reply: msgspec.Struct) -> int:
    sys.stdout.write(to_json(reply).decode() + "\n")
    sys.stdout.flush()
    return 0
