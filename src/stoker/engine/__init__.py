"""The engine: one loop for every site."""
