"""The planner: which waiting jobs start on which devices, and why the others wait."""
