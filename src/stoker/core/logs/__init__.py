"""Understand the text of job logs."""
