"""Parse the text of job logs."""
