"""The commands below `stoker sweep`."""
