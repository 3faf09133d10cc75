"""Pilots: Slurm tasks that run an ordinary engine, and get their jobs through files."""
