"""Repeatable runs: the code of the submit, and a record of the software that it ran with."""
