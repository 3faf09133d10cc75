"""The result of a trial as the store keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import isfinite, nan
from typing import Any

import msgspec
from msgspec import Struct

from stoker.features.sweep.model.objective import Curve, Objective, problem_of, thinned, value_of

StoredPoint = tuple[float, float | None]


class TrialResult(Struct, frozen=True, omit_defaults=True):
    """The values that were read of a trial. JSON has no nan and inf: they are stored as null and read as nan."""

    attempt: int
    """The attempt of its job that was read."""
    curves: dict[str, tuple[StoredPoint, ...]] = {}
    """Values by step of each objective."""
    values: dict[str, float | None] = {}
    """The value of each objective; missing if it never appeared."""
    over: bool = False
    """Whether the job had ended when this was written."""
    stopped: bool = False
    """Whether the trial was stopped early; its values are then those of its last step."""
    message: str = ""
    """Why the trial was stopped, or has no usable values; empty if it has."""
    notice: str = ""
    """A note for the user about the text that was read."""

    @property
    def is_usable(self) -> bool:
        """Whether it has all values, and ended by itself."""
        return self.over and not self.stopped and not self.message

    def curve(self, name: str) -> Curve:
        """The values of an objective by step."""
        return tuple((step, nan if value is None else value) for step, value in self.curves.get(name, ()))


class BriefResult(Struct, frozen=True):
    """A result whose curves are not decoded, which would take longer than all the rest."""

    attempt: int
    curves: dict[str, msgspec.Raw] = {}
    values: dict[str, float | None] = {}
    over: bool = False
    message: str = ""
    notice: str = ""

    def last_step(self, name: str) -> float | None:
        """The last step of an objective; None without a curve."""
        curve = bytes(self.curves.get(name, b""))
        _, bracket, point = curve.rpartition(b"[")
        return float(point.partition(b",")[0]) if bracket and curve != b"[]" else None


def made_result(
    objectives: Sequence[Objective], curves: Mapping[str, Curve], attempt: int, notice: str = ""
) -> TrialResult:
    """The result of a trial that runs, or ran, so far."""
    values = {objective.name: value_of(objective, curves.get(objective.name, ())) for objective in objectives}
    return TrialResult(
        attempt,
        {name: tuple((step, _stored(value)) for step, value in thinned(curve)) for name, curve in curves.items()},
        {name: _stored(value) for name, value in values.items() if value is not None},
        notice=notice,
    )


def ended_result(result: TrialResult, objectives: Sequence[Objective], state: str, why: str) -> TrialResult:
    """The result of a trial whose job ended in a state, and why, in words."""
    if state == "done":
        problems = [
            problem for objective in objectives if (problem := problem_of(objective, _read(result, objective.name)))
        ]
        message = "; ".join(filter(None, [*problems[:1], result.notice if problems else ""]))
        return msgspec.structs.replace(result, over=True, stopped=False, message=message)
    return msgspec.structs.replace(result, over=True, stopped=state == "stopped", message=why or state)


def read_result(body: Mapping[str, Any]) -> TrialResult:
    """A result as the store has it."""
    return msgspec.convert(body, TrialResult)


def decode_result(body: str) -> TrialResult:
    return msgspec.json.decode(body, type=TrialResult)


@cache
def brief_results() -> msgspec.json.Decoder[BriefResult]:
    return msgspec.json.Decoder(BriefResult)


def _read(result: TrialResult, name: str) -> float | None:
    value = result.values.get(name, "missing")
    return None if value == "missing" else nan if value is None else float(value)


def _stored(value: float) -> float | None:
    return value if isfinite(value) else None
