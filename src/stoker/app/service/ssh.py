"""Errors of ssh, in words that tell the user what to type."""

from __future__ import annotations

QUIET_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
"""So that ssh never asks, and never waits long."""
OWN_EXIT_CODE = 255
"""Of ssh itself; a command there may end with it, too."""


def ssh_trouble(error: str, host: str) -> str:
    """The complaint of ssh, with advice; `host` is what to type after `ssh`."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    last = lines[-1] if lines else "ssh says nothing"
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in error:
        return (
            f"its host key has changed; if its administrators confirm that: ssh-keygen -R {host.rsplit(maxsplit=1)[-1]}"
        )
    if "Host key verification failed" in error:
        return f"ssh does not know its host key; accept it once: ssh {host}"
    if "Permission denied" in error:
        return f"ssh asks for a password or refuses the key; make it work without: ssh-copy-id {host}"
    return f"ssh does not reach it: {last}"
