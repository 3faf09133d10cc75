"""Serve: the engine as a process, notifications, and waiting for jobs."""
