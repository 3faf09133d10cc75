"""Where jobs are placed and run."""
