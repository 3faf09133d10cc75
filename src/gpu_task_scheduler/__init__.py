"""The import name of the older GPUTaskScheduler: re-exports only."""
