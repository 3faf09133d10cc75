"""Figures of the queue in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker.app.views.model import DeviceLine, Status
from stoker.app.views.status import status_of
from stoker.store import past_jobs
from stoker.store.past_jobs import Period
from stoker.store.paths import host_name
from stoker.web.api import ServedQueue, explained

TYPE = "text/plain; version=0.0.4; charset=utf-8"

_OF_DEVICES: dict[str, tuple[str, str, float]] = {
    "memory_bytes": ("memory_bytes", "Memory of the GPU.", 1),
    "memory_used_bytes": ("used_bytes", "Memory in use by all processes.", 1),
    "memory_jobs_bytes": ("ours_bytes", "Memory in use by jobs of this queue.", 1),
    "memory_reserved_bytes": ("reserved_bytes", "Memory reserved for jobs of this queue.", 1),
    "memory_others_bytes": ("others_bytes", "Memory used or claimed by others.", 1),
    "utilisation_ratio": ("utilisation_percent", "Utilisation of the GPU, from 0 to 1.", 0.01),
    "temperature_celsius": ("temperature_celsius", "Temperature of the GPU.", 1),
    "power_watts": ("power_watts", "Power draw of the GPU.", 1),
}
"""Metrics of GPUs: field of `DeviceLine`, help, factor."""


class Figures(Collector):
    """The figures of one moment."""

    def __init__(self, status: Status, ended: dict[str, int]) -> None:
        self._status = status
        self._ended = ended

    def collect(self) -> Iterator[Metric]:
        status = self._status
        yield _gauge("engine_up", "Whether the engine in the background runs.", float(status.engine.running))
        counts = status.counts
        open_jobs = {"active": counts.active, "waiting": counts.waiting, "held": counts.held}
        yield _labelled("jobs", "Open jobs.", "state", open_jobs)
        yield _labelled("jobs_ended", "Ended jobs that the queue remembers.", "result", self._ended)
        if status.expected_empty is not None:
            empty = status.expected_empty.timestamp()
            yield _gauge("queue_expected_empty_timestamp_seconds", "When the queue will be empty.", empty)
        for name, (field, text, factor) in _OF_DEVICES.items():
            yield _of_devices(name, text, [(line, getattr(line, field), factor) for line in status.devices])
        yield _of_devices(
            "jobs", "Jobs of this queue on the GPU.", [(line, len(line.jobs), 1) for line in status.devices]
        )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"stoker_{name}", text, value=value)


def _labelled(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(f"stoker_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _of_devices(name: str, text: str, values: list[tuple[DeviceLine, float | None, float]]) -> Metric:
    family = GaugeMetricFamily(f"stoker_gpu_{name}", text, labels=["gpu", "uuid", "model"])
    for line, value, factor in values:
        if value is not None:
            family.add_metric([line.label, line.id, line.model], value * factor)
    return family


def route(service: ServedQueue) -> Route:
    def metrics(_request: Request) -> Response:
        with service.read_facts() as facts:
            ended = past_jobs.past_counts(facts.store, Period())
            status = status_of(facts, host_name(), 0)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Figures(status, ended))
        return Response(generate_latest(registry), media_type=TYPE)

    return Route("/metrics", explained(metrics, service))
