"""The older library's reader of configurations."""

from stoker.features.compat.gpu_task.config import ConfigManager

__all__ = ["ConfigManager"]
