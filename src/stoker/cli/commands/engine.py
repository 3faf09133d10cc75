"""`stoker engine`: its commands; each imports what it needs when it runs, so that help and completion stay fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stoker.cli.console import say, tell
from stoker.cli.main import LazyGroup
from stoker.cli.options import sim_option
from stoker.core.errors import StokerError, UsageError

if TYPE_CHECKING:
    from stoker.store.paths import Paths

Function = TypeVar("Function", bound=Callable[..., Any])

COMMANDS = {
    "start": "Start the engine if it is not running.",
    "stop": "Stop the engine; running jobs continue, and the next engine records their results.",
    "restart": "Stop the engine and start a new one; running jobs continue.",
    "status": "Show the engine: process, devices, jobs and problems.",
    "check": "Check this machine for problems, and say how to fix them.",
    "config": "Show every setting, its value and where it comes from.",
    "install": "Let systemd start the engine at boot.",
    "completion": "Set up shell completion of commands, options, ids and names.",
}
SHELLS = ("bash", "zsh", "fish")
SYSTEMD = "/run/systemd/system"
"""Exists while systemd is the first process of the machine."""
STOP_SECONDS = 10.0
"""How long an engine may take to leave."""


@click.group(name="engine", cls=LazyGroup, sentences=COMMANDS)
def command() -> None:
    """Manage the background engine. It starts automatically on submit and stops when idle.

    \b
      stoker engine status     is it running and healthy?
      stoker engine restart    with other devices or settings; jobs continue
      stoker engine check      find problems of this machine, and their fixes
      stoker engine install    let systemd start it at boot
    """


def _service_options(function: Function) -> Function:
    options = [
        sim_option,
        click.option("--stay", is_flag=True, help="Keep running when idle."),
        click.option("--max-use", type=int, metavar="N", help="Use at most N GPUs at once."),
        click.option("--min-free", type=int, metavar="N", help="Leave N GPUs free for others."),
    ]
    for decorate in reversed(options):
        function = decorate(function)
    return function


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _words(stay: bool, flags: Mapping[str, int | None]) -> list[str]:
    """The options as they are typed."""
    given = {name: value for name, value in flags.items() if value is not None}
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return [*(["--stay"] if stay else []), *words]


@command.command(name="start")
@_service_options
@click.option("--again", is_flag=True, hidden=True, help="Only if it was killed; use the same options as before.")
def start(paths: Paths, stay: bool, again: bool, **flags: int | None) -> int:
    """Start the engine if it is not running.

    Usually not needed: submit starts the engine. Options given here apply until the engine stops; put permanent
    settings into the configuration (stoker engine config).
    """
    if again:
        from stoker.app.control.engine_process import restart_killed

        restart_killed(paths)
        return 0
    from stoker.app.control.engine_process import sim_arguments

    wanted = _words(stay, flags)
    return _start(paths, [*sim_arguments(paths), *wanted], wanted)


def _start(paths: Paths, words: list[str], wanted: list[str]) -> int:
    """Start an engine; `wanted`: options to report if a running engine lacks them."""
    from stoker.app.control.engine_process import died_again, ensure_engine
    from stoker.store.engine_lock import QUEUE, process_of

    started = ensure_engine(paths, words, os.environ)
    if (pid := process_of(paths, QUEUE)) is None:  # an engine that was just leaving is not taken for one
        started = ensure_engine(paths, words, os.environ)
        pid = process_of(paths, QUEUE)
    if pid is None:
        if failure := died_again(paths):
            raise failure
        tell("the engine started, found no jobs and stopped (setting idle_exit)")
        return 0
    tell(f"the engine {'was started' if started else 'is already running'} (process {pid})")
    if not started and wanted:
        tell(f"        it keeps its settings; to change them: stoker engine restart {' '.join(words)}")
    return 0


@command.command(name="restart")
@_service_options
def restart(paths: Paths, stay: bool, **flags: int | None) -> int:
    """Stop the engine and start a new one, which takes over the running jobs.

    It reads configuration and variables again, its devices too. Options that the old engine was started with stay,
    unless they are given again.

    \b
      stoker engine restart
      STOKER_DEVICES=0,1 stoker engine restart
      stoker engine restart --sim 8x80G
    """
    import signal

    from stoker.app.control.engine_process import sim_arguments
    from stoker.store.engine_lock import QUEUE, signal_engine
    from stoker.store.restart import read_restart

    words = [*sim_arguments(paths), *_words(stay, flags)]
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
@click.option("--ready-fd", type=int, help="File descriptor to write to when the engine is ready.")
@click.option("--restartable", is_flag=True, help="Record the options, so that a killed engine can be restarted.")
@click.option("--cluster", default="", metavar="NAME", help="Run the engine of a cluster.")
def run(paths: Paths, stay: bool, ready_fd: int | None, restartable: bool, cluster: str, **flags: int | None) -> int:
    """Run the engine in the foreground."""
    from stoker.app.control.engine_process import sim_arguments
    from stoker.cli.commands.engine_run import serve_queue

    restart = [*sim_arguments(paths), *_words(stay, flags)] if restartable and not cluster else None
    serve_queue(paths, ready_fd, stay=stay, flags=flags, restart=restart, cluster=cluster)
    return 0


@command.command(name="stop")
@sim_option
@click.option("--drain", is_flag=True, help="Start no more jobs; stop when the running jobs have ended.")
@click.option("--force", is_flag=True, help="Kill an engine that does not stop; jobs continue.")
@click.option("--jobs", is_flag=True, help="Stop all running jobs too (TERM, then KILL after the grace time).")
def stop(paths: Paths, drain: bool, force: bool, jobs: bool) -> int:
    """Stop the engine; running jobs continue, and the next engine records their results.

    \b
      stoker engine stop           stop now; jobs continue
      stoker engine stop --drain   start no more jobs, stop when the last job has ended
      stoker engine stop --jobs    stop the jobs too
      stoker engine stop --force   kill an engine that does not answer; jobs continue
    """
    import signal

    from stoker.store.engine_lock import QUEUE, signal_engine
    from stoker.store.restart import remove_restart

    if drain and jobs:
        raise UsageError("--drain lets jobs finish, --jobs ends them", "give one of them")
    if force and (drain or jobs):
        raise UsageError("--force kills the engine and cannot act on its jobs", "give --force alone")
    number = signal.SIGINT if jobs else signal.SIGHUP if drain else signal.SIGTERM
    _signal_clusters(paths, number)
    pid = signal_engine(paths, QUEUE, number)
    if pid is None:
        remove_restart(paths, None)
        tell("engine not running")
    elif drain:
        tell("the engine starts no more jobs, and stops when the running jobs have ended")
    elif _wait_gone(paths, pid):
        tell("engine stopped")
    elif jobs:  # they may take as long as their grace is
        tell("jobs are still stopping; the engine stops after the last one")
    elif force and _kill(paths, pid):
        tell("the engine did not stop and was killed; jobs continue")
    else:
        raise _does_not_leave(paths, pid)
    return 0


def _signal_clusters(paths: Paths, number: int) -> None:
    """Tell the engines of clusters the same; jobs there go on, and the next command about them starts one."""
    import signal

    from stoker.store.engine_lock import cluster_of, living_engines, signal_engine

    for engine in [name for name in living_engines(paths) if cluster_of(name)]:
        if signal_engine(paths, engine, signal.Signals(number)) is not None:
            tell(f"the engine of cluster {cluster_of(engine)} was told the same")


def _kill(paths: Paths, pid: int) -> bool:
    import signal

    from stoker.store.engine_lock import QUEUE, signal_engine
    from stoker.store.restart import remove_restart

    remove_restart(paths, pid)
    return signal_engine(paths, QUEUE, signal.SIGKILL) is not None and _wait_gone(paths, pid)


def _wait_gone(paths: Paths, pid: int) -> bool:
    from stoker.store.engine_lock import QUEUE, wait_gone

    return wait_gone(paths, QUEUE, pid, STOP_SECONDS)


def _does_not_leave(paths: Paths, pid: int) -> StokerError:
    return StokerError(
        f"the engine (process {pid}) has not stopped after {STOP_SECONDS:g} s",
        f"see {paths.log}; stoker engine stop --force (or kill -9 {pid}) kills it: "
        "jobs continue, and the next engine records their results",
    )


@command.command(name="status")
@sim_option
@_json
def status(paths: Paths, as_json: bool) -> int:
    """Show the engine: process, devices, jobs and problems.

    Exit code 3 if it is not running or does not answer.
    """
    from stoker.app.service.engine_status import engine_status
    from stoker.cli.options import wants_json, write_json
    from stoker.cli.screens.engine import print_status

    found = engine_status(paths)
    if wants_json(as_json):
        write_json(found)
    else:
        print_status(found)
    return 0 if found.answers else 3


@command.command(name="check")
@sim_option
@_json
@click.pass_context
def check(context: click.Context, paths: Paths, as_json: bool) -> int:
    """Check this machine for problems, and say how to fix them. Exit code 1 if there is a problem."""
    from stoker.app.service.doctor import Subject, diagnose
    from stoker.app.service.engine_status import engine_answers
    from stoker.cli.options import wants_json
    from stoker.cli.screens.engine import report_check

    subject = Subject(
        paths=paths,
        environment=dict(os.environ),
        answers=engine_answers(paths),
        known_variables=frozenset(_known_variables(context.find_root().command, context)),
    )
    return 1 if report_check(diagnose(subject), "stoker.engine-check/1", as_json=wants_json(as_json)) else 0


def _known_variables(command: click.Command, context: click.Context) -> Iterator[str]:
    """The variables that set options of a command or of those below it."""
    for parameter in command.params:
        yield from filter(None, [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ())
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if inner := command.get_command(context, name):
                yield from _known_variables(inner, context)


@command.command(name="config")
@_json
def config(as_json: bool) -> int:
    """Show every setting, its value and where it comes from.

    Precedence: flags, STOKER_* variables, stoker.toml or [tool.stoker] in pyproject.toml of the
    nearest directory, your own file, the machine's file. Values that look secret are not shown.
    A running engine rereads changed files, but keeps its devices and the options it was started with.
    """
    from stoker.app.jobs.config import load_config
    from stoker.app.service.engine_status import not_in_force_now
    from stoker.cli.options import wants_json, write_json
    from stoker.cli.screens.engine import config_shown, print_config
    from stoker.store.paths import paths_for

    found = load_config(os.environ, Path.cwd())
    for warning in found.warnings:
        say(warning)
    if wants_json(as_json):
        write_json(config_shown(found))
    else:
        print_config(found)
    if notice := not_in_force_now(found.engine, paths_for()):
        say(notice)
    return 0


@command.command(name="install")
@click.option("--print", "only_print", is_flag=True, help="Print the unit; write nothing.")
@click.option("--web", is_flag=True, help="Also a unit for the web page (stoker web).")
def install(only_print: bool, web: bool) -> int:
    """Let systemd start the engine at boot: write a user unit (no root needed).

    It prints the next commands to type. Stopping or restarting the unit does not affect running jobs. With --web there
    is a second unit for the web page; `stoker web` then prints its link.
    """
    from stoker.app.service.systemd_unit import NAME, WEB_NAME, unit_text, web_unit_text

    script = Path(sys.executable).parent / "stoker"
    program = [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-P", "-m", "stoker"]
    units = {NAME: unit_text(program, os.environ)}
    if web:
        units[WEB_NAME] = web_unit_text(program, os.environ)
    if only_print:
        print("\n".join(units.values()), end="")
    else:
        _install(units)
    return 0


def _install(units: Mapping[str, str]) -> None:
    """Write the units, and print what to type next."""
    from stoker.app.service.systemd_unit import unit_path, write_unit
    from stoker.store.engine_lock import QUEUE, process_of
    from stoker.store.paths import paths_for

    for name, text in units.items():
        path = unit_path(os.environ, name)
        write_unit(path, text)
        tell(f"wrote {path}")
    lines = ["now type:"]
    if not os.path.isdir(SYSTEMD):
        lines = ["systemd does not run here, so nothing will start this; on a machine where it runs, type:"]
    if process_of(paths_for(), QUEUE) is not None:
        lines.append("  stoker engine stop                        # the running engine; jobs continue")
    lines.append("  systemctl --user daemon-reload")
    lines += [f"  systemctl --user enable --now {name}" for name in units]
    lines.append("  loginctl enable-linger                    # start at boot, and keep running after you log out")
    lines += ["  stoker web                                # prints the link of the page"] if len(units) > 1 else []
    for line in lines:
        tell(line)


@command.command(name="completion")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--print", "only_print", is_flag=True, help="Print the script; write nothing.")
@click.option("--install", is_flag=True, help="Write the file, also when output is not a terminal.")
@click.pass_context
def completion(context: click.Context, shell: str | None, only_print: bool, install: bool) -> int:
    """Set up shell completion for bash, zsh or fish; default: your shell.

    On a terminal it writes a file where the shell looks for it, and prints the remaining steps. Otherwise it prints the
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
