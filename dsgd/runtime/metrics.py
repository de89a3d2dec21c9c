"""The numbers of gangs for Prometheus: what they are called, and how they come to the pages of Dask.

Dask's schedulers and workers have a page ``/metrics`` that shows what is registered with ``prometheus_client``. So
collectors of ours (`dsgd.runtime.scheduler.metrics`, `dsgd.runtime.worker.store`) are registered beside those of
Dask, once for a process. Nothing happens where the package is not installed: then Dask has no such page either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any, Final, Literal, NamedTuple, Protocol


class Metric(NamedTuple):
    """One number, or one for each value of a label."""

    name: str
    place: Literal["scheduler", "workers"]
    text: str
    label: str = ""

    @property
    def is_counter(self) -> bool:
        """Whether it only rises."""
        return self.name.endswith("_total")


#: All numbers, in the order of the documentation.
METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric("dsgd_jobs", "scheduler", "Jobs that wait for workers, run, or stop", "state"),
        Metric("dsgd_jobs_ended_total", "scheduler", "Jobs that have ended", "outcome"),
        Metric("dsgd_failures_total", "scheduler", "Jobs that have failed, by what stopped them", "kind"),
        Metric("dsgd_gangs_formed_again_total", "scheduler", "Failures that jobs have survived, and newcomers"),
        Metric("dsgd_stragglers_total", "scheduler", "Ranks found slow"),
        Metric("dsgd_ranks", "scheduler", "Ranks of running jobs"),
        Metric("dsgd_leased_workers", "scheduler", "Workers that jobs hold"),
        Metric("dsgd_user_workers", "scheduler", "Workers that the jobs of each user hold", "user"),
        Metric("dsgd_queue_seconds", "scheduler", "How long the oldest job in the queue has waited"),
        Metric("dsgd_worker_ranks", "workers", "Ranks and servers that run"),
        Metric("dsgd_rounds_total", "workers", "Synchronisations, counted by each rank"),
        Metric("dsgd_phase_seconds_total", "workers", "Seconds that ranks have spent", "phase"),
        Metric("dsgd_sent_bytes_total", "workers", "Bytes that ranks have sent", "kind"),
        Metric("dsgd_messages_total", "workers", "Messages that ranks have sent", "kind"),
        Metric("dsgd_refused_total", "workers", "Connections to ranks that were turned away", "reason"),
    )
}


class Collector(Protocol):
    """What ``prometheus_client`` asks for numbers when somebody reads the page."""

    def collect(self) -> Iterable[Any]:
        """Return the present numbers."""
        ...


def as_family(name: str, value: float | Mapping[str, float]) -> Any:
    """Return a number, or one for each value of a label, in the form of ``prometheus_client``."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    metric = METRICS[name]
    labels = [metric.label] if metric.label else []
    kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
    family = kind(name.removesuffix("_total"), metric.text, labels=labels)
    values = value if isinstance(value, Mapping) else {"": value}
    for label, each in values.items():
        family.add_metric([label] if labels else [], each)
    return family


_registered: Final[list[Collector]] = []


def register(collector: Collector) -> None:
    """Show the numbers of a collector on the page of this process; again changes nothing."""
    if find_spec("prometheus_client") is None or collector in _registered:
        return
    import prometheus_client

    # Without ``describe`` the package would collect now, and refuse names that another collector has.
    prometheus_client.REGISTRY.register(collector)
    _registered.append(collector)
