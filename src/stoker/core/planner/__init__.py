"""Decide for every waiting job: start it on these devices, or wait for this reason."""
