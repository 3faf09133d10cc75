"""Fixtures of system tests."""

from support.background import background
from support.cli import stoker

__all__ = ["background", "stoker"]
