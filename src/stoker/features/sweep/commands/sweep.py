"""`stoker sweep`: submit many jobs from a parameter space; its subcommands show and change sweeps."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.structs import replace

from stoker.cli.console import flush_output, say, silence_output
from stoker.cli.job_options import member_options, options_from
from stoker.cli.main import LazyGroup
from stoker.cli.options import StokerCommand, sim_option, sim_words, wants_json, write_json
from stoker.core.errors import StokerError, UsageError
from stoker.store.paths import Paths

if TYPE_CHECKING:
    from stoker.core.spec import Command
    from stoker.features.sweep.model.record import SweepSpec, TrialMaker
    from stoker.features.sweep.submit import QueuedSweep as Done
    from stoker.features.sweep.submit import SweepPlan, SweepRequest

SUBCOMMANDS: dict[str, str] = {
    "status": "Show a sweep: best trials, what runs, which parameters matter.",
    "best": "Show the best trial and its parameters.",
    "table": "Show all trials, also as CSV.",
    "plot": "Plot a sweep in the terminal, as SVG or as PNG.",
    "stop": "Start no further trials.",
    "extend": "Let a sweep visit more points.",
}
"""Names and sentences of the commands about sweeps that exist."""
FILES = {"status": "views", "best": "views", "table": "views", "plot": "plot", "stop": "changes", "extend": "changes"}
START = "start"
"""The command that the first word is not: `stoker sweep lr=1,2 -- train`."""
COMMAND = "stoker.command"
PLACES = "P=SPEC... [+ P=SPEC...] [@FILE] -- COMMAND..."
NOT_SERVED = 3
HELD = "held at submit"
FIRST_POINTS = 10
"""Of an adaptive method, with --dry-run; so many are chosen before results count."""


class SweepGroup(LazyGroup):
    """A group whose first word may also be a parameter or an option; then it is a new sweep.

    It has the options of a new sweep for help, completion and the manual.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        sim = sim_words(args)  # may precede the name
        name = "".join(args[sim : sim + 1])
        return super().parse_args(
            ctx, [name, *args[:sim], *args[sim + 1 :]] if name in self.sentences else [START, *args]
        )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return start if cmd_name == START else super().get_command(ctx, cmd_name)


class SweepCommand(StokerCommand):
    """Takes the words after `--` as the command; options may stand anywhere before it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[COMMAND] = tuple(args[place + 1 :])
        return super().parse_args(ctx, args[:place])

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        path = ctx.parent.command_path if ctx.parent else "stoker sweep"
        formatter.write_usage(path, " ".join(self.collect_usage_pieces(ctx)))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if SUBCOMMANDS:
            with formatter.section("Commands"):
                formatter.write_dl([(f"stoker sweep {name}", text) for name, text in SUBCOMMANDS.items()])


class SubmittedSweep(Struct, frozen=True):
    """A sweep that was submitted: `stoker sweep --json`."""

    schema: str
    id: int
    """If nothing was left to submit, the sweep that has its first trial."""
    trials: int
    skipped: int
    """Trials that were done or in the queue before."""
    tuner: int | None
    """The job of its tuner; null without one."""
    held: bool
    problem: str | None
    """Why there is no engine to run them, though they are safe in the queue; null if there is one."""


class CommandOptions(Struct, frozen=True):
    """The options of `stoker sweep` that are not of the sweep itself."""

    paths: Paths
    shell: bool = False
    dry_run: bool = False
    estimate: bool = False
    resume: bool = False
    force: bool = False
    yes: bool = False
    hold: bool = False
    parsable: bool = False
    as_json: bool = False


@click.command(name="sweep", cls=SweepCommand)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar=PLACES)
@click.option("--method", metavar="NAME", help="grid (default), shuffled, random, sobol, tpe, gp or cmaes.")
@click.option("-N", "--count", type=int, metavar="N", help="Number of points to try; default: all points of a grid.")
@click.option("--seed", type=int, metavar="N", help="Seed of the order and of random points, default 0.")
@click.option("--repeat", type=int, metavar="K", help="Run each point K times; {repeat} is 0 to K-1.")
@click.option("--max-parallel", type=int, metavar="N", help="Run at most N trials at once.")
@click.option(
    "--style",
    type=click.Choice(["args", "hydra", "env", "none"]),
    help="How parameters without placeholder are passed: --lr=0.1 (args, default), lr=0.1, LR=0.1, or not at all.",
)
@click.option(
    "--results", metavar="DIR", help="Make a folder for each trial: runs/{lr}-{depth}; {results} is its path."
)
@click.option("--objective", "objectives", multiple=True, metavar="WHAT", help="Value to optimize (repeatable).")
@click.option("--goal", type=click.Choice(["min", "max"]), help="Whether less or more is better, default min.")
@click.option(
    "--pruner", "pruners", multiple=True, metavar="RULE", help="Stop bad trials early, best by auto (repeatable)."
)
@member_options
@click.option("-s", "--shell", is_flag=True, help="Run the command as one line of your shell.")
@sim_option
@click.option("--resume", is_flag=True, help="Submit only trials that are not done and not in the queue.")
@click.option("--force", is_flag=True, help="Submit all trials, even if they were done; use existing folders again.")
@click.option("--hold", is_flag=True, help="Hold the trials until you release them (stoker resume).")
@click.option("--yes", is_flag=True, help="Submit more than 10,000 trials without asking.")
@click.option("--parsable", is_flag=True, help="Print only the id.")
@click.option("--dry-run", is_flag=True, help="Print the command lines; submit nothing.")
@click.option("--estimate", is_flag=True, help="Print trials, GPU-hours and the expected end; submit nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def start(context: click.Context, /, words: tuple[str, ...], **values: Any) -> int:
    """Submit one job for each point of a parameter space, and print the id of the sweep.

    \b
      stoker sweep lr=0.1,0.01 depth=2..8 -- python3 train.py       14 jobs with --lr=0.1 --depth=2 ...
      stoker sweep lr=1e-5..1e-1:log --method random -N 20 -- python3 train.py --lr {lr}
      stoker sweep opt=sgd,adam momentum=0.8,0.9 if opt=sgd -- python3 train.py
      stoker sweep @sweep.yaml                                      a file, also of Weights & Biases

    \b
    Parameters:
      lr=0.1,0.01               a list             layers=2..8            integers from 2 to 8
      lr=1e-5..1e-1:log         a range            x=0..1:0.25            a range in steps
      lr=1e-5..1e-1:log:x5      five values        'seed=range(0,5)'      Hydra's choice, interval, range
      A=1 B=2 + A=3             one or the other   B=1,2 if A=1           only if A is 1

    {lr}, {trial}, {repeat} and {results} in the command, --env and --results are replaced; without any placeholder,
    --lr=0.1 is appended. In a line for a shell, values are quoted. The job finds all parameters in STOKER_PARAMS (JSON)
    and with stoker.params(). A trial is a job: cancel, logs, retry and wait take its id (12.3) or that of the sweep.
    """
    options = options_from(values)
    request = CommandOptions(**{name: values.pop(name) for name in CommandOptions.__struct_fields__})
    request = replace(request, as_json=wants_json(request.as_json))
    typed = context.meta[COMMAND]
    if not words and not typed:
        click.echo(context.get_help())
        return 2
    from stoker.features.sweep.submit import prepare

    prepared = prepare(_asked(words, typed, request, values), options)
    for note in prepared.notes if request.dry_run or request.estimate else ():
        say(note)
    if request.dry_run:
        return _print_commands(prepared)
    if request.estimate:
        from stoker.features.sweep.estimate import show_estimate

        return show_estimate(prepared, request.paths, as_json=request.as_json)
    _confirm(prepared, request)
    return _submit(prepared, request)


@click.group(
    name="sweep",
    cls=SweepGroup,
    sentences=SUBCOMMANDS,
    modules="stoker.features.sweep.commands.",
    files=FILES,
    params=[param for param in start.params if isinstance(param, click.Option)],
    help=start.help,
    subcommand_metavar=PLACES,
)
def command(**_: Any) -> None:
    """All is done by `start` and the subcommands."""


def _asked(words: Sequence[str], typed: Sequence[str], request: CommandOptions, values: dict[str, Any]) -> SweepRequest:
    """The sweep of the command line, completed by that of a file."""
    from stoker.app.jobs.job_files import command_of
    from stoker.core.spec import Command, shell_of
    from stoker.features.sweep.model.grammar import parse_space
    from stoker.features.sweep.model.space import Space
    from stoker.features.sweep.submit import SweepRequest, completed

    shell = shell_of(os.environ)
    files = [word.removeprefix("@") for word in words if word.startswith("@")]
    specs = [word for word in words if not word.startswith("@")]
    if len(files) > 1:
        raise UsageError("two sweep files are given", "give one of them")
    line = Command((" ".join(typed),), shell) if typed and request.shell else None
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list | tuple) else value for name, value in values.items()
    }
    command = line or (command_of(typed, shell) if typed else None)
    asked = SweepRequest(space=parse_space(specs) if specs else Space(()), command=command, **given)
    if not files:
        if not specs:
            raise UsageError(
                "no parameter given", "write one before the --: stoker sweep lr=0.1,0.01 -- python3 train.py"
            )
        return asked
    from stoker.features.sweep.files import read_sweep_file

    return completed(asked, read_sweep_file(Path(files[0]), shell))


def _print_commands(prepared: SweepPlan) -> int:
    """One line for each trial, as simple_hypersearch prints them; of an adaptive method, only the first ones."""
    from stoker.core.spec import JobSpec
    from stoker.features.sweep.model.points import ADAPTIVE
    from stoker.features.sweep.model.record import TrialMaker

    sweep = prepared.sweep
    maker = TrialMaker(replace(sweep, starter=()), JobSpec())
    sys.stdout.flush()
    commands = _first_commands(sweep, maker) if sweep.method in ADAPTIVE else maker.commands()
    while some := [command.text for command in islice(commands, 1000)]:
        sys.stdout.buffer.write(os.fsencode("\n".join([*some, ""])))
        sys.stdout.buffer.flush()
    return 0


def _first_commands(sweep: SweepSpec, maker: TrialMaker) -> Iterator[Command]:
    """The commands of points that are chosen before there are results."""
    from stoker.features.sweep.tuner_job import first_points

    shown = min(FIRST_POINTS, sweep.trials // sweep.repeat)
    if (rest := sweep.trials - shown * sweep.repeat) > 0:
        say(f"the first {shown} points; --method {sweep.method} chooses the other {rest:,} trials by their results")
    for place, point in enumerate(first_points(sweep, shown)):
        for number in range(place * sweep.repeat, (place + 1) * sweep.repeat):
            yield maker.command(number, point)


def _confirm(prepared: SweepPlan, request: CommandOptions) -> None:
    """Ask before very many trials are queued."""
    from stoker.features.sweep.submit import MANY

    count = prepared.sweep.trials
    if count <= MANY or request.yes or prepared.sweep.count is not None:
        return
    if sys.stdin.isatty() and not request.as_json:
        if click.confirm(f"this sweep has {count:,} trials; submit them all?", err=True):
            return
        raise click.Abort
    raise UsageError(
        f"this sweep has {count:,} trials", "submit all of them with --yes, or some with -N 100 --method random"
    )


def _submit(prepared: SweepPlan, request: CommandOptions) -> int:
    from stoker.app.jobs.config import config_here
    from stoker.features.sweep.submit import EarlierTrials, submit_sweep
    from stoker.store.writer import open_store

    paths = request.paths
    if paths.note:
        say(paths.note)
    done = submit_sweep(
        paths,
        config_here(say),
        prepared,
        EarlierTrials(resume=request.resume, force=request.force),
        held=HELD if request.hold else "",
        opened=lambda: closing(open_store(paths)),
    )
    for note in done.notes:
        say(note)
    try:
        _show(done, request)
        flush_output()
    except OSError as error:
        silence_output()
        say(f"sweep {done.id} is in the queue, but its id could not be printed: {error.strerror}")
        return StokerError.exit_code
    if done.failure is None:
        return 0
    say(f"the sweep is in the queue, but the engine could not be started or reached: {done.failure.message}")
    say(done.failure.hint)
    return NOT_SERVED


def _show(done: Done, request: CommandOptions) -> None:
    if request.as_json:
        problem = done.failure.message if done.failure else None
        result = (done.id, done.trials, done.skipped, done.tuner, request.hold, problem)
        write_json(SubmittedSweep("stoker.sweep/1", *result))
    elif request.parsable:
        sys.stdout.write(f"{done.id}\n")
    elif not done.trials:
        say(f"all {done.skipped:,} trials are done or in the queue; nothing was submitted")
        print(f"sweep {done.id}")
    else:
        before = f"; {done.skipped:,} submitted before" if done.skipped else ""
        what = "1 trial" if done.trials == 1 else f"{done.trials:,} trials"
        print(f"submitted sweep {done.id} ({what}{before})")
