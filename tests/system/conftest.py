"""Fixtures that every system test may ask for."""

from support.cli import stoker

__all__ = ["stoker"]
