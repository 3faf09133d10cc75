"""The class of the older GPUTaskScheduler that test code inherits from.

It imports nothing: every instance's process waits for it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class GPUTask:
    """One test instance: its parameters, its folder, and what is to be done with them."""

    def __init__(self, config: dict[str, Any], work_dir: str) -> None:
        self._config = config
        self._work_dir = work_dir

    def required_env(self) -> dict[str, str]:
        """Variables that the instance needs besides its GPUs; they are set before its process starts."""
        return {}

    def main(self) -> None:
        """The test code."""
