"""Replay a trace of jobs through the planner."""
