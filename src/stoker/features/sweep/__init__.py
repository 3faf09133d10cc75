"""Sweeps: parameter spaces, trials, and the tuner that chooses and stops them."""
