"""Which variables look like secrets, so that their values are kept but never shown."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

PATTERNS = (
    "*TOKEN*",
    "*SECRET*",
    "*PASSWORD*",
    "*PASSWD*",
    "*PASSPHRASE*",
    "*API_KEY*",
    "*APIKEY*",
    "*ACCESS_KEY*",
    "*PRIVATE_KEY*",
    "*CREDENTIAL*",
    "*_AUTH",
    "AWS_*KEY*",
    "*_DSN",
    "DATABASE_URL",
    "PGPASS*",
)
HIDDEN = "********"
"""What is shown in place of a value; always of this length, because the length of a secret tells something too."""


def looks_secret(name: str, patterns: Iterable[str] = PATTERNS) -> bool:
    """Whether a variable's name matches one of the patterns, in capital or small letters."""
    return any(fnmatchcase(name.upper(), pattern.upper()) for pattern in patterns)


def shown_value(name: str, value: str, patterns: Iterable[str] = PATTERNS) -> str:
    """The value as a screen may show it."""
    return HIDDEN if looks_secret(name, patterns) else value
