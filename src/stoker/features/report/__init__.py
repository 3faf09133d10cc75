"""One file about a run, a batch or a period."""
