"""Replay a trace through the planner."""
