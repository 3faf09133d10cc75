"""GPUTask, the class that test code inherits from.

It imports nothing: the process of every instance waits for it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class GPUTask:
    """One test instance with its parameters and its folder."""

    def __init__(self, config: dict[str, Any], work_dir: str) -> None:
        self._config = config
        self._work_dir = work_dir

    def required_env(self) -> dict[str, str]:
        """Variables of the instance besides its GPUs; they are set before its process starts."""
        return {}

    def main(self) -> None:
        """The test code."""
