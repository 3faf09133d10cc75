"""The older library GPUTaskScheduler."""
