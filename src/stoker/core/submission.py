"""What is handed in: a job that has no id yet, and what makes two of them the same work."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from stoker.core.terms import Command, Terms


class NewJob(Struct, frozen=True):
    """A job that has no id yet."""

    command: Command
    terms: Terms
    name: str = ""
    task: int | None = None
    """Its index, where it is a task of an array."""
    array: int = 0
    """A number that tasks of one array have in common, where several arrays are handed in together."""


def content_of(command: Command, terms: Terms, task: int | None = None) -> bytes:
    """What makes two jobs the same work: the command, the place, the variables given to it and its index."""
    import hashlib  # loading it costs more than a door that only looks can afford

    parts = [command.shell and "shell", terms.cwd, str(len(command.words)), *command.words]
    parts += [f"{key}={value}" for key, value in sorted(terms.extra_env)]
    if task is not None:
        parts.append(f"task {task}")
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).digest()[:16]


def digest_of(variables: Mapping[str, str]) -> str:
    """The name under which an environment is kept."""
    import hashlib

    text = "\0".join(f"{key}={value}" for key, value in sorted(variables.items()))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]
