"""`stoker engine`: its commands; each imports what it needs when it runs, so that help and completion stay fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stoker.cli.main import LazyGroup
from stoker.cli.sim_option import sim_option
from stoker.core.errors import StokerError, UsageError

if TYPE_CHECKING:
    from stoker.store.paths import Paths

Function = TypeVar("Function", bound=Callable[..., Any])

COMMANDS = {
    "start": "Start the engine, if none runs.",
    "stop": "Stop the engine; what runs goes on, and its end is recorded by the next engine.",
    "restart": "Stop the engine and start a new one; running jobs go on.",
    "status": "Show the engine: its process, devices and jobs, and what troubles it.",
    "check": "Tell what is wrong with this machine, and what to do about it.",
    "config": "Show every setting with its value and its origin.",
    "install": "Let systemd start the engine with the machine.",
    "completion": "Let a shell complete verbs, options, ids and names.",
}
SHELLS = ("bash", "zsh", "fish")
STOP_SECONDS = 10.0
"""How long an engine may take to leave."""


@click.group(name="engine", cls=LazyGroup, sentences=COMMANDS)
def command() -> None:
    """The engine in the background: it starts by itself with the first submit, and leaves when it is idle.

    \b
      stoker engine status     is there one, and is it well?
      stoker engine restart    with other devices or settings; jobs go on
      stoker engine check      what is wrong with this machine, and what to do
      stoker engine install    let systemd start it with the machine
    """


def _service_options(function: Function) -> Function:
    options = [
        sim_option,
        click.option("--stay", is_flag=True, help="Do not leave when idle."),
        click.option("--max-use", type=int, metavar="N", help="Use at most N GPUs at once."),
        click.option("--min-free", type=int, metavar="N", help="Leave N GPUs free for others."),
    ]
    for decorate in reversed(options):
        function = decorate(function)
    return function


_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON value instead.")


def _words(sim: str | None, stay: bool, flags: Mapping[str, int | None]) -> list[str]:
    """The options as they are typed."""
    given = {name: value for name, value in flags.items() if value is not None}
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [*(["--sim", sim] if sim else []), *(["--stay"] if stay else []), *words]


@command.command(name="start")
@_service_options
@click.option("--again", is_flag=True, hidden=True, help="Only if it was killed, and as it was started before.")
def start(sim: str | None, stay: bool, again: bool, **flags: int | None) -> int:
    """Start the engine, if none runs.

    There is no need to: the first submit does it. What is set here holds until the engine leaves; what shall hold
    always belongs into the configuration (stoker engine config).
    """
    from stoker.queue.engine_process import simulated_gpus
    from stoker.store.paths import paths_for

    paths = paths_for(sim)
    words = _words(simulated_gpus(sim, paths), stay, flags)
    if again:
        from stoker.queue.engine_process import restart_killed

        restart_killed(paths)
        return 0
    return _start(paths, words, _words(None, stay, flags))


def _start(paths: Paths, words: list[str], wanted: list[str]) -> int:
    """Start an engine; `wanted` are the options that one which runs already may not have."""
    from stoker.queue.engine_process import died_again, ensure_engine
    from stoker.store.engine_lock import QUEUE, process_of, version_notice

    started = ensure_engine(paths, words, os.environ)
    if (pid := process_of(paths, QUEUE)) is None:  # an engine that was just leaving is not taken for one
        started = ensure_engine(paths, words, os.environ)
        pid = process_of(paths, QUEUE)
    if pid is None:
        if failure := died_again(paths):
            raise failure
        print("the engine was started, and has left again, as idle_exit says", file=sys.stderr)
        return 0
    print(f"the engine {'was started' if started else 'runs already'} (process {pid})", file=sys.stderr)
    if not started and wanted:
        print(f"        it goes on as it was; to change that: stoker engine restart {' '.join(words)}", file=sys.stderr)
    if notice := version_notice(paths):
        print(notice, file=sys.stderr)
    return 0


@command.command(name="restart")
@_service_options
def restart(sim: str | None, stay: bool, **flags: int | None) -> int:
    """Stop the engine and start a new one, which takes over the running jobs.

    It reads configuration and variables again, its devices too. Options that the old engine was started with stay,
    unless they are given again.

    \b
      stoker engine restart
      STOKER_DEVICES=0,1 stoker engine restart
      stoker engine restart --sim 8x80G
    """
    import signal

    from stoker.queue.engine_process import simulated_gpus
    from stoker.store.engine_lock import QUEUE, signal_engine
    from stoker.store.paths import paths_for
    from stoker.store.restart import read_restart

    paths = paths_for(sim)
    words = _words(simulated_gpus(sim, paths), stay, flags)
    record = read_restart(paths)
    pid = signal_engine(paths, QUEUE, signal.SIGTERM)
    if pid is not None and not _wait_gone(paths, pid):
        raise _does_not_leave(paths, pid)
    kept = record.arguments if record and record.pid == pid else []
    return _start(paths, _overridden(kept, words), words)


def _overridden(before: Sequence[str], given: Sequence[str]) -> list[str]:
    """The options of two command lines; those of the second one count."""
    options: dict[str, list[str]] = {}
    for line in (before, given):
        rest = iter(line)
        options.update({word: [word] if word == "--stay" else [word, next(rest)] for word in rest})
    return [word for words in options.values() for word in words]


@command.command(name="run", hidden=True)
@_service_options
@click.option("--ready-fd", type=int, help="Descriptor to tell when it works.")
@click.option("--restartable", is_flag=True, help="Leave a record by which it is started again if it is killed.")
@click.option("--cluster", default="", metavar="NAME", help="Be the engine of a cluster.")
def run(sim: str | None, stay: bool, ready_fd: int | None, restartable: bool, cluster: str, **flags: int | None) -> int:
    """Be the engine, in the foreground."""
    from stoker.cli.commands.engine_run import serve_queue
    from stoker.queue.engine_process import simulated_gpus
    from stoker.store.paths import paths_for

    paths = paths_for(sim)
    sim = simulated_gpus(sim, paths)
    restart = _words(sim, stay, flags) if restartable and not cluster else None
    serve_queue(paths, sim, ready_fd, stay=stay, flags=flags, restart=restart, cluster=cluster)
    return 0


@command.command(name="pilot", hidden=True)
@click.argument("folder", type=click.Path(path_type=Path))
def pilot(folder: Path) -> int:
    """Be a pilot, on a node of a cluster."""
    from stoker.cli.commands.engine_pilot import serve_pilot

    serve_pilot(folder)
    return 0


@command.command(name="stop")
@sim_option
@click.option("--drain", is_flag=True, help="Start nothing more, and leave when nothing runs.")
@click.option("--force", is_flag=True, help="Kill an engine that does not leave; jobs go on.")
@click.option("--jobs", is_flag=True, help="End all running jobs too: TERM, and KILL after the grace of each.")
def stop(sim: str | None, drain: bool, force: bool, jobs: bool) -> int:
    """Stop the engine; what runs goes on, and its end is recorded by the next engine.

    \b
      stoker engine stop           leave now; jobs go on
      stoker engine stop --drain   start nothing more, leave when the last job is over
      stoker engine stop --jobs    end the jobs too
      stoker engine stop --force   end an engine that does not answer; jobs go on
    """
    import signal

    from stoker.store.engine_lock import QUEUE, signal_engine
    from stoker.store.paths import paths_for
    from stoker.store.restart import remove_restart

    if drain and jobs:
        raise UsageError("--drain lets jobs finish, --jobs ends them", "give one of them")
    if force and (drain or jobs):
        raise UsageError("an engine that is killed does nothing about its jobs", "give --force alone")
    paths = paths_for(sim)
    number = signal.SIGINT if jobs else signal.SIGHUP if drain else signal.SIGTERM
    _signal_clusters(paths, number)
    pid = signal_engine(paths, QUEUE, number)
    if pid is None:
        remove_restart(paths, None)
        print("no engine runs", file=sys.stderr)
    elif drain:
        print("the engine starts nothing more, and leaves when nothing runs", file=sys.stderr)
    elif _wait_gone(paths, pid):
        print("the engine has left", file=sys.stderr)
    elif jobs:  # they may take as long as their grace is
        print("jobs are still ending; the engine leaves when the last is over", file=sys.stderr)
    elif force and _kill(paths, pid):
        print("the engine did not leave, and was killed; jobs go on", file=sys.stderr)
    else:
        raise _does_not_leave(paths, pid)
    return 0


def _signal_clusters(paths: Paths, number: int) -> None:
    """Tell the engines of clusters the same; jobs there go on, and the next command about them starts one."""
    import signal

    from stoker.store.engine_lock import cluster_of, living_engines, signal_engine

    for engine in [name for name in living_engines(paths) if cluster_of(name)]:
        if signal_engine(paths, engine, signal.Signals(number)) is not None:
            print(f"the engine of cluster {cluster_of(engine)} was told the same", file=sys.stderr)


def _kill(paths: Paths, pid: int) -> bool:
    import signal

    from stoker.store.engine_lock import QUEUE, signal_engine
    from stoker.store.restart import remove_restart

    remove_restart(paths, pid)
    return signal_engine(paths, QUEUE, signal.SIGKILL) is not None and _wait_gone(paths, pid)


def _wait_gone(paths: Paths, pid: int) -> bool:
    import time

    from stoker.store.engine_lock import QUEUE, process_of

    deadline = time.monotonic() + STOP_SECONDS
    while process_of(paths, QUEUE) == pid:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _does_not_leave(paths: Paths, pid: int) -> StokerError:
    from stoker.core.text import printable

    return StokerError(
        f"the engine (process {pid}) is still there after {STOP_SECONDS:g} s",
        f"see {printable(str(paths.log))}; stoker engine stop --force (or kill -9 {pid}) ends it: "
        "jobs go on, and the next engine records their ends",
    )


@command.command(name="status")
@sim_option
@_json
def status(sim: str | None, as_json: bool) -> int:
    """Show the engine: its process, devices and jobs, and what troubles it.

    Exit code 3 where none runs, or it does not answer.
    """
    from stoker.cli.output_options import wants_json, write_json
    from stoker.cli.views.engine import print_status
    from stoker.queue.engine_status import engine_status
    from stoker.store.engine_lock import version_notice
    from stoker.store.paths import paths_for

    paths = paths_for(sim)
    found = engine_status(paths)
    if notice := version_notice(paths):
        print(notice, file=sys.stderr)
    if wants_json(as_json):
        write_json(found)
    else:
        print_status(found)
    return 0 if found.answers else 3


@command.command(name="check")
@sim_option
@_json
@click.pass_context
def check(context: click.Context, sim: str | None, as_json: bool) -> int:
    """Tell what is wrong with this machine, and what to do about it. Exit code 1 where there is a problem."""
    from stoker.cli.doctor import Subject, diagnose, known_variables, report
    from stoker.cli.output_options import wants_json
    from stoker.queue.engine_status import engine_answers
    from stoker.store.paths import paths_for

    paths = paths_for(sim)
    subject = Subject(
        paths=paths,
        environment=dict(os.environ),
        simulated=bool(sim),
        answers=engine_answers(paths),
        known_variables=frozenset(known_variables(context.find_root().command, context)),
    )
    return 1 if report(diagnose(subject), "stoker.engine-check/1", as_json=wants_json(as_json)) else 0


@command.command(name="config")
@_json
def config(as_json: bool) -> int:
    """Show every setting with its value and its origin.

    What a flag says goes before STOKER_* variables, those before stoker.toml or [tool.stoker] in pyproject.toml of the
    nearest directory, that before your own file, and that before the machine's. Values that look secret are not shown.
    An engine that runs reads changed files again, but keeps its devices, and what it was started with.
    """
    from stoker.cli.output_options import wants_json, write_json
    from stoker.cli.views.engine import config_shown, print_config
    from stoker.core.text import printable
    from stoker.queue.config import load_config
    from stoker.queue.engine_status import not_in_force_now
    from stoker.store.paths import paths_for

    found = load_config(os.environ, Path.cwd())
    for warning in found.warnings:
        print(f"stoker: {printable(warning)}", file=sys.stderr)
    if wants_json(as_json):
        write_json(config_shown(found))
    else:
        print_config(found)
    if notice := not_in_force_now(found.engine, paths_for(simulated=False)):
        print(f"stoker: {notice}", file=sys.stderr)
    return 0


@command.command(name="install")
@click.option("--print", "only_print", is_flag=True, help="Print the unit, and write nothing.")
def install(only_print: bool) -> int:
    """Let systemd start the engine with the machine: write a unit of your own, for which no root is needed.

    It says what to type next. A stop or restart of the unit leaves running jobs alone.
    """
    from stoker.core.text import printable
    from stoker.queue.systemd_unit import NAME, unit_path, unit_text, write_unit
    from stoker.store.engine_lock import QUEUE, process_of
    from stoker.store.paths import paths_for

    script = Path(sys.executable).parent / "stoker"
    program = [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-P", "-m", "stoker"]
    text = unit_text(program, os.environ)
    if only_print:
        print(text, end="")
        return 0
    path = unit_path(os.environ)
    write_unit(path, text)
    print(f"wrote {printable(str(path))}; now type:", file=sys.stderr)
    if process_of(paths_for(simulated=False), QUEUE) is not None:
        print("  stoker engine stop                        # the one that runs now; jobs go on", file=sys.stderr)
    print("  systemctl --user daemon-reload", file=sys.stderr)
    print(f"  systemctl --user enable --now {NAME}", file=sys.stderr)
    print(
        "  loginctl enable-linger                    # it starts with the machine, and outlives your logout",
        file=sys.stderr,
    )
    return 0


@command.command(name="completion")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--print", "only_print", is_flag=True, help="Print the script, and write nothing.")
@click.option("--install", is_flag=True, help="Write the file, also where the output is no terminal.")
@click.pass_context
def completion(context: click.Context, shell: str | None, only_print: bool, install: bool) -> int:
    """Let a shell complete verbs, options, ids and names of jobs: bash, zsh or fish, else the one you use.

    On a terminal it writes a file where the shell looks for it, and says what is left to type. Otherwise it prints the
    script, so that this works too: eval "$(stoker engine completion bash)"
    """
    from stoker.cli.completion import install_script, script

    shell = shell or _own_shell()
    text = script(context.find_root().command, shell)
    if only_print or not (install or sys.stdout.isatty()):
        print(text, end="")
    else:
        install_script(shell, text)
    return 0


def _own_shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise UsageError(f"which shell? {name or 'yours'} is not one of {', '.join(SHELLS)}", "name one of them")
    return name
