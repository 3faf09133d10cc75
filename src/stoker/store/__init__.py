"""Everything in the state directory."""
