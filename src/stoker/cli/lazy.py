"""Groups of commands whose modules are loaded only when they are typed."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:  # only a shell that completes needs it
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """Knows its commands by a sentence each; a mistyped one is answered with a near one."""

    def __init__(
        self,
        *arguments: Any,
        sentences: Mapping[str, str],
        modules: str,
        aliases: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        hidden: Collection[str] = (),
        **settings: Any,
    ) -> None:
        """`modules` is the prefix of all module names; `files` names the module of commands that share one.

        A command is `command` in its own module, and has its own name in a shared one. `hidden` are not for users.
        """
        super().__init__(*arguments, **settings)
        self.sentences = sentences
        self.aliases = aliases or {}
        self._files = files or {}
        self._hidden = hidden
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of a day's work."""
        return list(self.sentences)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, from its module."""
        name = self.aliases.get(cmd_name, cmd_name)
        if name not in self.sentences and name not in self._hidden:
            return None
        module = importlib.import_module(f"{self._modules}{self._files.get(name, name)}")
        command: click.Command = getattr(module, name if name in self._files else "command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click, but with a suggestion."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            import difflib

            near = difflib.get_close_matches(args[0], [*self.sentences, *self.aliases], 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(self.sentences)}"
            raise click.UsageError(f"no such verb: {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with their sentences, without loading any of them."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(self.sentences.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands that begin so, without loading any of them, and then the options."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=sentence)
            for name, sentence in self.sentences.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)
