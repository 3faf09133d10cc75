"""All that front ends share, in packages that import only those before them: jobs, control, views, service."""
