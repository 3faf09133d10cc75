"""Write docs/schema from the code: one JSON schema for each value of --json and of the web API."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent / "schema"

TYPES = {
    "action-1": "stoker.web.api:Action",
    "bookings-1": "stoker.features.lab.bookings:Bookings",
    "change-1": "stoker.app.control.sentences:ChangeReport",
    "changes-1": "stoker.app.views.feed:Changes",
    "cluster-check-1": "stoker.app.service.doctor:Check",
    "cluster-status-1": "stoker.features.slurm.status:Clusters",
    "code-diff-1": "stoker.features.freeze.code_view:CodeDiff",
    "dry-run-1": "stoker.cli.screens.dry_run:DryRun",
    "engine-check-1": "stoker.app.service.doctor:Check",
    "engine-config-1": "stoker.cli.screens.engine:ConfigShown",
    "engine-status-1": "stoker.app.service.engine_status:EngineOverview",
    "gpu-samples-1": "stoker.app.views.samples:GpuSamples",
    "gpus-1": "stoker.app.views.gpus:Gpus",
    "history-1": "stoker.app.views.history:History",
    "history-page-1": "stoker.app.views.pages:HistoryPage",
    "jobs-1": "stoker.app.views.job_details:SelectedJobs",
    "jobs-page-1": "stoker.app.views.pages:JobsPage",
    "lab-1": "stoker.features.lab.view:Lab",
    "lab-page-1": "stoker.features.lab.page:LabPage",
    "lab-usage-1": "stoker.features.lab.usage:LabUsage",
    "log-1": "stoker.cli.screens.logs:LogLine",
    "log-search-1": "stoker.app.views.log:LogSearch",
    "log-part-1": "stoker.app.views.log:LogText",
    "report-1": "stoker.features.report.report:Report",
    "run-1": "stoker.app.views.run:RunResult",
    "series-1": "stoker.app.views.samples:Series",
    "servers-1": "stoker.features.servers.state:ServerStates",
    "servers-check-1": "stoker.app.service.doctor:Check",
    "session-1": "stoker.web.api:Session",
    "simulate-1": "stoker.features.simulate.report:Simulation",
    "software-1": "stoker.features.freeze.software_view:SelectedSoftware",
    "status-1": "stoker.app.views.model:Status",
    "submit-1": "stoker.cli.commands.submit:SubmitResult",
    "sweep-change-1": "stoker.features.sweep.change:SweepChange",
    "sweep-page-1": "stoker.features.sweep.api:SweepPage",
    "sweep-status-1": "stoker.features.sweep.view:SweepView",
    "sweeps-1": "stoker.features.sweep.view:SweepList",
    "submit-plan-1": "stoker.cli.screens.dry_run:SubmitPlan",
    "sweep-1": "stoker.features.sweep.commands.sweep:SubmittedSweep",
    "sweep-estimate-1": "stoker.features.sweep.estimate:Estimate",
    "timeline-1": "stoker.app.views.timeline:Timeline",
    "usage-1": "stoker.app.views.usage:Usage",
    "wait-1": "stoker.cli.commands.wait:WaitResult",
}
"""Names of the schemas and the types of the printed values."""


def schema_text(place: str) -> str:
    """The schema of a type, as text of its file."""
    module, _, name = place.partition(":")
    return json.dumps(msgspec.json.schema(getattr(importlib.import_module(module), name)), indent=2) + "\n"


def main() -> None:
    """Write all files."""
    for name, place in TYPES.items():
        (FOLDER / f"stoker.{name}.json").write_text(schema_text(place))


if __name__ == "__main__":
    main()
