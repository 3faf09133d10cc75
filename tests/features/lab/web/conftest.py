"""Fixtures of the tests of the lab."""

from support.web import queue

__all__ = ["queue"]
