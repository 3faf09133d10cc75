"""What a deep-learning framework makes of the environment: what it grabs, and what it keeps to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from stoker.core.errors import UsageError
from stoker.core.units import parse_size

_FRACTION = "per_process_memory_fraction"
_KNOWS_FRACTION = (2, 10)


class UnknownOption(Exception):
    """The framework refuses to start; the message is its own."""


class Limits(NamedTuple):
    """Bytes that the process may have, by the number that a device has within it."""

    mps: Mapping[int, int] = {}
    """What the MPS server refuses; the framework does not know."""
    fraction: float | None = None
    """The part of each device at which PyTorch's allocator stops by itself."""

    def of(self, ordinal: int, total: int) -> int | None:
        """The smaller one of both, where there is any."""
        own = None if self.fraction is None else int(self.fraction * total)
        return min((limit for limit in (own, self.mps.get(ordinal)) if limit is not None), default=None)

    def is_own(self, ordinal: int, total: int) -> bool:
        """Whether the framework's own limit is the one that counts."""
        return self.fraction is not None and self.of(ordinal, total) == int(self.fraction * total)


def limits(environment: Mapping[str, str], framework: str, version: Sequence[int]) -> Limits:
    """What the environment allows; a PyTorch that is too old for its option does not start."""
    conf = environment.get("PYTORCH_ALLOC_CONF") or environment.get("PYTORCH_CUDA_ALLOC_CONF", "")
    fraction = _fraction(conf) if framework == "torch" else None
    if fraction is not None and tuple(version) < _KNOWS_FRACTION:
        raise UnknownOption(f"RuntimeError: Unrecognized CachingAllocator option: {_FRACTION}")
    return Limits(_pinned(environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")), fraction)


def grab(environment: Mapping[str, str], framework: str) -> float:
    """The part of each device that the framework takes before it has done anything."""
    if framework == "tf" and environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() != "true":
        return 1.0
    if framework == "jax" and environment.get("XLA_PYTHON_CLIENT_PREALLOCATE", "").lower() not in {"false", "0"}:
        older = environment.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "")
        return _number(environment.get("XLA_CLIENT_MEM_FRACTION", "") or older) or 0.75
    return 0.0


def _pinned(text: str) -> dict[int, int]:
    """The limits of `0=8G,1=4G`; anything else limits nothing."""
    found = {}
    for part in text.split(","):
        ordinal, _, size = part.partition("=")
        with suppress(ValueError, UsageError):
            found[int(ordinal)] = parse_size(size)
    return found


def _fraction(conf: str) -> float | None:
    settings = dict(part.strip().partition(":")[::2] for part in conf.split(","))
    return _number(settings.get(_FRACTION, ""))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
