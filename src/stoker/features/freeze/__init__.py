"""Frozen code: a job runs the code that was there when it was submitted."""
