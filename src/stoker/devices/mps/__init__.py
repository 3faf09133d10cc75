"""NVIDIA MPS: one daemon per GPU and user."""
