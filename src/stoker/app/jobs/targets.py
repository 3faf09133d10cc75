"""Targets of notifications (`--notify`): URLs of apprise, and `mail`."""

from __future__ import annotations

import re

from stoker.app.jobs.installation import how_to_add_extra
from stoker.core.errors import UsageError

MAIL = "mail"
_HINT = "write mail, or a URL of apprise such as ntfy://topic, slack://..., json://host/path"
_URL = r"([a-zA-Z][a-zA-Z0-9+.-]*)://\S+"
_NEXT = r",(?=\s*(?:mail\s*(?:,|$)|[a-zA-Z][a-zA-Z0-9+.-]*://))"
"""A comma before another target; other commas are part of a URL."""
_COMMON = frozenset(("discord", "json", "jsons", "mailto", "mailtos", "matrix", "ntfy", "ntfys", "slack", "tgram"))
"""Kinds of URL that apprise surely supports."""
MAIL_PROGRAMS = ("/usr/sbin/sendmail", "/usr/lib/sendmail", "sendmail", "mail")


def parse_targets(text: str) -> tuple[str, ...]:
    targets = tuple(dict.fromkeys(word.strip() for word in re.split(_NEXT, text)))
    for target in targets:
        if target != MAIL and not (re.fullmatch(_URL, target) and target.isprintable()):
            raise UsageError(f"--notify: {shown_target(target)!r} is neither a URL nor mail", _HINT)
    return targets


def shown_target(target: str) -> str:
    """The target without what may be secret: `slack://…`."""
    scheme, separator, _ = target.partition("://")
    return f"{scheme}://…" if separator else target[:20]


def why_not_sendable(targets: tuple[str, ...]) -> str:
    """The reason why this machine cannot notify these targets; empty if it can."""
    from importlib.util import find_spec

    if any(target != MAIL for target in targets) and find_spec("apprise") is None:
        return f"apprise is not installed; {how_to_add_extra('notify')}"
    if unknown := [target for target in targets if target != MAIL and not _is_supported(target)]:
        return f"apprise does not support {shown_target(unknown[0])}"
    if MAIL in targets and mail_program() is None:
        return "neither sendmail nor mail is installed"
    return ""


def _is_supported(target: str) -> bool:
    """Whether apprise knows the kind of URL; it takes half a second to load, so common kinds are not asked for."""
    if target.partition("://")[0].lower() in _COMMON:
        return True
    import apprise

    return apprise.Apprise.instantiate(target) is not None


def mail_program() -> str | None:
    from shutil import which

    return next((found for name in MAIL_PROGRAMS if (found := which(name))), None)
