"""Fixtures that every system test may ask for."""

from support.background import background
from support.cli import stoker

__all__ = ["background", "stoker"]
