"""The older library's scheduler."""

from stoker.features.compat.gpu_task.config import ConfigManager
from stoker.features.compat.gpu_task.scheduler import GPUTaskScheduler, InstancesFailed

__all__ = ["ConfigManager", "GPUTaskScheduler", "InstancesFailed"]
