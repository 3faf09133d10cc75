"""The import name of the older simple_gpu_scheduler: re-exports only."""
