"""Stoker keeps GPUs fed."""

__version__ = "0.1.0"
