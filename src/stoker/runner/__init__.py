"""Processes that outlive the engine."""
