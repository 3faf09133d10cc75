"""The older library's scheduler."""

from stoker.compat.gpu_task_config import ConfigManager
from stoker.compat.gpu_task_scheduler import GPUTaskScheduler, InstancesFailed

__all__ = ["ConfigManager", "GPUTaskScheduler", "InstancesFailed"]
