"""The older library GPUTaskScheduler: its classes as its users know them, on the engine of Stoker."""
