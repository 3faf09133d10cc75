"""The lab: one view of a machine for all of its users, and rules that they agree on."""
