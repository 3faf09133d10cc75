"""Text output; the data comes from stoker.queue."""
