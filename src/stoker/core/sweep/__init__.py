"""Sweeps: parameter spaces, the points of a search, command templates, and the record of a sweep."""
