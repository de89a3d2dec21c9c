"""The numbers of gangs for Prometheus: what they are called, and how they come to the pages of Dask.

Dask's schedulers and workers have a page ``/metrics`` that shows what is registered with ``prometheus_client``. So
collectors of ours are registered beside those of Dask, once for a process. Nothing happens where the package is not
installed: then Dask has no such page either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Final, Literal, NamedTuple

from dsgd.ledger import PHASES


class Metric(NamedTuple):
    """One number, or one for each value of a label."""

    name: str
    place: Literal["scheduler", "workers"]
    text: str
    label: str = ""


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


class Collector:
    """The numbers of the sources of this process, in the words of ``prometheus_client``."""

    def __init__(self, numbers: Callable[[Sequence[Any]], Mapping[str, float | Mapping[str, float]]]) -> None:
        self._numbers, self._sources, self._is_registered = numbers, list[Any](), False

    def expose(self, source: object) -> None:
        """Show the numbers of a source, too."""
        self._sources.append(source)
        if self._is_registered or find_spec("prometheus_client") is None:
            return
        import prometheus_client

        prometheus_client.REGISTRY.register(self)
        self._is_registered = True

    def withdraw(self, source: object) -> None:
        """Show the numbers of a source no more: it closes."""
        self._sources = [each for each in self._sources if each is not source]

    def describe(self) -> list[Any]:
        """Return nothing; without it the package would collect now, and refuse names that another collector has."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the present numbers."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, value in (self._numbers(self._sources) if self._sources else {}).items():
            metric = METRICS[name]
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(name.removesuffix("_total"), metric.text, labels=[metric.label] if metric.label else [])
            for label, each in (value if isinstance(value, Mapping) else {"": value}).items():
                family.add_metric([label] if metric.label else [], each)
            yield family


def _of_scheduler(registries: Sequence[Any]) -> Mapping[str, float | Mapping[str, float]]:
    """Return the numbers of a scheduler; of several in one process, as in tests, those of the latest."""
    registry = registries[-1]
    views, counts = registry.overview(), registry.counts
    states = Counter(view.state for view in views)
    return {
        "dsgd_jobs": {state: states[state] for state in ("queued", "running", "stopping")},
        "dsgd_jobs_ended_total": {outcome: registry.n_ended[outcome] for outcome in ("done", "failed")},
        "dsgd_failures_total": dict(counts.failures),
        "dsgd_gangs_formed_again_total": counts.formed_again,
        "dsgd_stragglers_total": counts.stragglers,
        "dsgd_ranks": sum(view.n_ranks for view in views if view.state == "running"),
        "dsgd_leased_workers": len(registry.leases),
        "dsgd_user_workers": registry.workers_of_users(),
        "dsgd_queue_seconds": max((view.elapsed_s for view in views if view.state == "queued"), default=0.0),
    }


def _of_workers(meters: Sequence[Any]) -> Mapping[str, float | Mapping[str, float]]:
    """Return the numbers of all workers of this process; see `dsgd.runtime.worker.store.RankMeters`."""
    totals: Counter[str] = sum((each.totals() for each in meters), Counter())
    kinds = {"algorithm": "", "control": "control_"}
    return {
        "dsgd_worker_ranks": sum(each.n_running for each in meters),
        "dsgd_rounds_total": totals["rounds"],
        "dsgd_phase_seconds_total": {phase: totals[f"{phase}_s"] for phase in PHASES},
        "dsgd_sent_bytes_total": {kind: totals[f"{prefix}bytes_sent"] for kind, prefix in kinds.items()},
        "dsgd_messages_total": {kind: totals[f"{prefix}messages"] for kind, prefix in kinds.items()},
        "dsgd_refused_total": sum((each.refused for each in meters), Counter()),
    }


OF_SCHEDULER: Final = Collector(_of_scheduler)
OF_WORKERS: Final = Collector(_of_workers)
