"""The older library's scheduler."""

from stoker.compat.gpu_task.config import ConfigManager
from stoker.compat.gpu_task.scheduler import GPUTaskScheduler, InstancesFailed

__all__ = ["ConfigManager", "GPUTaskScheduler", "InstancesFailed"]
