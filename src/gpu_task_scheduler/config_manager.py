"""The older library's reader of configurations."""

from stoker.compat.gpu_task.config import ConfigManager

__all__ = ["ConfigManager"]
