"""Text of the views of sweeps."""
