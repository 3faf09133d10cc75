"""Start a job that a feature prepared at submit: whether it can start, what it needs on a node, and its order."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.core.launch import LaunchOrder
from stoker.core.spec import JobSpec
from stoker.features import FEATURES, load
from stoker.store.paths import Paths


def prepared_start(order: LaunchOrder, spec: JobSpec, base: Mapping[str, str], paths: Paths) -> LaunchOrder:
    """The order of an attempt of a prepared job; `base` is the environment that it was submitted with."""
    for feature in FEATURES.values():
        if feature.start:
            order = load(feature.start)(order, spec, base, paths)
    return order


def obstacle_to(spec: JobSpec, paths: Paths) -> str:
    """Why a prepared job cannot start; empty if it can."""
    reasons = (load(feature.obstacle)(spec, paths) for feature in FEATURES.values() if feature.obstacle)
    return next(filter(None, reasons), "")


def bring_prepared(spec: JobSpec, shared: Paths, here: Paths) -> None:
    """Bring to this machine what a prepared job needs, from a directory that machines share."""
    for feature in FEATURES.values():
        if feature.bring:
            load(feature.bring)(spec, shared, here)
