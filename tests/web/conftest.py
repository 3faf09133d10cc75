"""Fixtures that every test of the web server may ask for."""

from support.web import client, queue, stranger

__all__ = ["client", "queue", "stranger"]
