"""What is in this machine, seen as a snapshot: one module per kind of device."""
