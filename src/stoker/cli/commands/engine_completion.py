"""`stoker engine completion`: let a shell complete verbs, options, ids and names."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from stoker.cli.completion import VARIABLE
from stoker.core.errors import UsageError
from stoker.core.text import printable

SHELLS = ("bash", "zsh", "fish")


@click.command(name="completion")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--print", "only_print", is_flag=True, help="Print the script, and write nothing.")
@click.pass_context
def command(context: click.Context, shell: str | None, only_print: bool) -> int:
    """Let a shell complete verbs, options, ids and names of jobs: bash, zsh or fish, else the one you use.

    It writes a file where the shell looks for it, and says what is left to type.
    """
    shell = shell or _own_shell()
    text = script(context.find_root().command, shell)
    if only_print:
        print(text, end="")
        return 0
    path = script_path(shell, os.environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"wrote {printable(str(path))}", file=sys.stderr)
    print(_what_next(shell, path), file=sys.stderr)
    return 0


def script(program: click.Command, shell: str) -> str:
    """The script that click has for a shell."""
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(program, {}, "stoker", VARIABLE).source()


def script_path(shell: str, environment: Mapping[str, str]) -> Path:
    """Where a shell looks for completions of one user."""
    data = Path(environment.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    match shell:
        case "bash":
            chosen = environment.get("BASH_COMPLETION_USER_DIR")
            return Path(chosen or data / "bash-completion") / "completions/stoker"
        case "zsh":
            return data / "zsh/site-functions/_stoker"
        case _:
            configuration = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
            return configuration / "fish/completions/stoker.fish"


def _what_next(shell: str, path: Path) -> str:
    match shell:
        case "bash":
            return (
                f"for this shell type: source {path}\n"
                "new ones have it by themselves where the package bash-completion is; else put that line in ~/.bashrc"
            )
        case "zsh":
            return f"put this in ~/.zshrc before compinit: fpath+=({path.parent})"
        case _:
            return "new shells have it by themselves"


def _own_shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise UsageError(f"which shell? {name or 'yours'} is not one of {', '.join(SHELLS)}", "name one of them")
    return name
