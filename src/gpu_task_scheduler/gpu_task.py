"""The older library's class that test code inherits from."""

from stoker.compat.gpu_task.task import GPUTask

__all__ = ["GPUTask"]
