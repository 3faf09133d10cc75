"""The features of this installation: each is a directory here, and can be deleted together with its line below.

Nothing else in Stoker names a feature. This module holds names only, so importing it costs nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple


class FeatureCommand(NamedTuple):
    """A command of the command line."""

    module: str
    sentence: str
    """For the list of commands."""
    after: str
    """The command before it in that list."""


class Feature(NamedTuple):
    """The parts of a feature. A function is named by its module and its name, with a colon between them."""

    commands: Mapping[str, FeatureCommand] = {}
    reads: str = ""
    """Function that gives paths of the page's API and their endpoints."""
    site: str = ""
    """Function that gives the configuration of the site of a cluster."""
    nodes: str = ""
    """Function that shows the nodes of a cluster."""


FEATURES: dict[str, Feature] = {
    "sweep": Feature(
        commands={
            "sweep": FeatureCommand(
                "stoker.features.sweep.commands.sweep", "Submit many jobs from a parameter space.", "submit"
            )
        },
        reads="stoker.features.sweep.api:reads",
    ),
    "slurm": Feature(
        commands={
            "cluster": FeatureCommand(
                "stoker.features.slurm.command", "Manage Slurm clusters: the lab's, or your own.", "web"
            )
        },
        site="stoker.features.slurm.site:slurm_config",
        nodes="stoker.features.slurm.screen:show_nodes",
    ),
    "compat": Feature(),
    "simulate": Feature(
        commands={
            "simulate": FeatureCommand(
                "stoker.features.simulate.command", "Replay a trace of jobs to compare scheduling policies.", "web"
            )
        }
    ),
    "report": Feature(
        commands={
            "report": FeatureCommand(
                "stoker.features.report.command", "Write an HTML file about a run, a list or a period.", "history"
            )
        }
    ),
}


def feature_commands() -> dict[str, FeatureCommand]:
    """The commands of all features."""
    return {name: command for feature in FEATURES.values() for name, command in feature.commands.items()}


def load(what: str) -> Any:
    """The function of the first feature that offers this; None without such a feature."""
    path = next((path for feature in FEATURES.values() if (path := getattr(feature, what))), "")
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name) if path else None
