"""Fixtures of tests of the API."""

from support.web import client, queue, stranger

__all__ = ["client", "queue", "stranger"]
