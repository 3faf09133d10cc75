"""Groups of commands that show help and complete without loading any command."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from stoker.core.errors import did_you_mean

if TYPE_CHECKING:  # only a shell that completes needs it
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """Knows its commands by a sentence each; suggests a near one for a mistyped command."""

    def __init__(
        self,
        *arguments: Any,
        sentences: Mapping[str, str],
        modules: str = "",
        aliases: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        """`modules` is the prefix of the modules of commands that are not added to the group.

        `files` names the module of commands that share one: there each has its own name, elsewhere it is `command`.
        """
        super().__init__(*arguments, **settings)
        self.sentences = sentences
        self.aliases = aliases or {}
        self._files = files or {}
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.sentences)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command itself, or the one in the module of that name."""
        name = self.aliases.get(cmd_name, cmd_name)
        if name in self.commands or name not in self.sentences:
            return self.commands.get(name)
        module = importlib.import_module(f"{self._modules}{self._files.get(name, name)}")
        command: click.Command = getattr(module, name if name in self._files else "command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Add a suggestion to click's error."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            known = [*self.sentences, *self.aliases]
            hint = did_you_mean(args[0], known, f"there are {', '.join(self.sentences)}")
            raise click.UsageError(f"no such verb: {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(self.sentences.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands that begin so, and then the options."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=sentence)
            for name, sentence in self.sentences.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)
