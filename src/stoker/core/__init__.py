"""The pure heart: no clock, file, process, environment, randomness or logging in here; all come as arguments."""
