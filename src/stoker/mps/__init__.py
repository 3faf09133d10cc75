"""NVIDIA MPS: one control daemon for each GPU and user, from its first client to its last."""
