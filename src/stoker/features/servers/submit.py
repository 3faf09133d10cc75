"""`stoker submit -S`: put jobs into the queue of another server, exactly once, with their code."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence

from msgspec.structs import replace

from stoker.app.jobs.config import config_here
from stoker.app.jobs.context import context_here, working_directory
from stoker.app.jobs.job_files import ParsedJob
from stoker.app.jobs.job_spec import spec_of
from stoker.app.jobs.preparation import PreparationContext, Preparations
from stoker.app.jobs.script import completed_options
from stoker.app.jobs.travel import traveller
from stoker.cli.commands.submit import WIDTH, SubmitOptions, SubmitResult
from stoker.cli.console import flush_output, say, tell
from stoker.cli.options import write_json
from stoker.cli.screens.dry_run import show_submit_plan
from stoker.core.errors import UsageError
from stoker.core.selectors import number_ranges
from stoker.core.text import on_one_line, printable, shortened
from stoker.core.units import LAST_GPUS
from stoker.features.servers.choose import chosen
from stoker.features.servers.connection import Answer
from stoker.features.servers.protocol import StartOffer, SubmitQuestion, decoded, moved_item, moved_script
from stoker.features.servers.settings import ANY, SshServer, server_named
from stoker.features.servers.travel import Code, Outgoing, place, send

OWN_KEY = "ssh-"
"""Begins the keys that this module makes."""


def submit_there(request: SubmitOptions, items: Sequence[ParsedJob]) -> int:
    """Submit the jobs to the queue that the request names; the exit code."""
    outgoing = _outgoing(request, items)
    server = chosen(outgoing, request.paths) if request.server == ANY else server_named(str(request.server))
    answer = send(server, outgoing.to(server.name))
    _relay_notes(server, answer)
    if request.dry_run:
        return show_submit_plan(decoded(server, answer, StartOffer).plan.jobs, as_json=request.as_json)
    result = decoded(server, answer, SubmitResult)
    own = outgoing.question.key.startswith(OWN_KEY)
    _show(request, replace(result, server=server.name, repeated=result.repeated and not own))
    return answer.code


def _outgoing(request: SubmitOptions, items: Sequence[ParsedJob]) -> Outgoing:
    """The question to any server; the code is frozen now."""
    config = config_here(say)
    options_of = completed_options(request.options, request.script, config)[1]
    context = context_here(environment="", default_out="", resolve=str, earlier=lambda _: ())
    notes = list[str]()
    paths = request.paths
    preparations = Preparations(PreparationContext(lambda _: paths, os.environ, notes.append))
    code_traveller = traveller()
    codes, needs = set[str](), dict[str, None]()
    for item in items:
        spec = spec_of(options_of(item.options), context)
        code = preparations.prepare(item.command, spec)[0].code
        codes.add(code if code_traveller and code_traveller.carries(code) else "")
        if item.command.shell:
            needs[item.command.shell] = None
        if code_traveller:
            needs |= dict.fromkeys(map(place, code_traveller.needs(item.command, spec.cwd, code, paths)))
    codes -= {""} if len(codes) > 1 else set()  # a job without code does no harm with that of others
    if len(codes) > 1:
        raise UsageError("the jobs run code of several directories", "submit those of each directory on their own")
    preparations.keep()
    for note in notes:
        say(note)
    code = codes.pop()
    packed = Code(code_traveller.pack(code, paths, place), code_traveller, paths) if code_traveller and code else None
    given, script = request.options, request.script
    question = SubmitQuestion(
        key=request.key or f"{OWN_KEY}{secrets.token_hex(12)}",
        cwd=place(working_directory()),
        options=replace(given, chdir=given.chdir and place(given.chdir)),
        items=[moved_item(item, script, place) for item in items],
        label=request.label,
        needs=list(needs),
        hold=request.hold,
        dry_run=request.dry_run,
        script=script and moved_script(script, place),
        code=packed and packed.parcel,
        simulated=(paths.gpus or LAST_GPUS) if paths.is_simulated and not os.environ.get("STOKER_SIM") else None,
    )
    return Outgoing(question, packed)


def _relay_notes(server: SshServer, answer: Answer) -> None:
    """Say what Stoker said there; a key of ours means nothing to the user."""
    for line in answer.err.splitlines():
        if f"the key '{OWN_KEY}" not in line:
            tell(line.replace("stoker:", f"stoker: {server.name}:", 1) if line.startswith("stoker:") else line)


def _show(request: SubmitOptions, result: SubmitResult) -> None:
    name = result.server
    if request.as_json:
        write_json(result)
    elif request.parsable:
        sys.stdout.write("".join(f"{name}:{job.id}\n" for job in result.jobs))
    else:
        verb = "already submitted:" if result.repeated else "submitted"
        for text in _lines(result):
            print(f"{verb} {name}:{text}")
    flush_output()


def _lines(result: SubmitResult) -> list[str]:
    """`12: python train.py`, `12 (tasks 0-9): ...`, `12-20 (9 jobs)`."""
    single = [job for job in result.jobs if not job.tasks]
    if len(single) > 1 and len(single) == len(result.jobs):
        return [f"{','.join(number_ranges(job.id for job in single))} ({len(single)} jobs)"]
    commands = (shortened(printable(on_one_line(job.command)), WIDTH) for job in result.jobs)
    places = (f"{job.id} (tasks {job.tasks})" if job.tasks else str(job.id) for job in result.jobs)
    return [f"{place}: {command}" for place, command in zip(places, commands, strict=True)]
