"""The older library's class that test code inherits from."""

from stoker.features.compat.gpu_task.instance import GPUTask

__all__ = ["GPUTask"]
