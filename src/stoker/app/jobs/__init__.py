"""Ask: options, configuration, job files and scripts become jobs."""
