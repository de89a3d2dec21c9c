"""Numbers of gangs and detached fits for Prometheus, on the page ``/metrics`` of Dask's scheduler.

That page shows what is registered with ``prometheus_client``, so a collector of ours is registered beside those of
Dask, once for a process. Nothing happens where the package is not installed: then Dask has no such page either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Final

from dsgd.runtime.scheduler.detached import DetachedFits
from dsgd.runtime.scheduler.registry import Registry

__all__ = ["GangCollector", "expose", "withdraw"]

_JOB_STATES: Final = ("queued", "running", "stopping")
_FIT_STATES: Final = ("queued", "running", "done", "failed", "cancelled")


class GangCollector:
    """What ``prometheus_client`` asks for numbers when somebody reads the page.

    Attributes
    ----------
    source : tuple of (Registry, DetachedFits) or None
        What the numbers are of; None if the scheduler has closed.
    """

    def __init__(self) -> None:
        self.source: tuple[Registry, DetachedFits] | None = None

    def describe(self) -> list[Any]:
        """Return nothing: what there is to collect is known to nobody else."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the present numbers."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        if self.source is None:
            return
        registry, fits = self.source
        views = [view for view in registry.overview() if view.job_id in registry.jobs]
        states = Counter(view.state for view in views)
        jobs = GaugeMetricFamily("dsgd_jobs", "Jobs that wait for workers, run, or stop", labels=["state"])
        for state in _JOB_STATES:
            jobs.add_metric([state], states[state])
        yield jobs
        ended = CounterMetricFamily("dsgd_jobs_ended", "Jobs that have ended", labels=["outcome"])
        for outcome in ("done", "failed"):
            ended.add_metric([outcome], registry.n_ended[outcome])
        yield ended
        running = [view for view in views if view.state == "running"]
        waits = [view.elapsed_s for view in views if view.state == "queued"]
        of_fits = Counter(fit.state for fit in fits.fits.values())
        yield GaugeMetricFamily("dsgd_ranks", "Ranks of running jobs", sum(view.n_ranks for view in running))
        yield GaugeMetricFamily("dsgd_leased_workers", "Workers that jobs hold", len(registry.leases))
        yield GaugeMetricFamily(
            "dsgd_queue_seconds", "How long the oldest job in the queue has waited", max(waits, default=0.0)
        )
        detached = GaugeMetricFamily("dsgd_detached_fits", "Detached fits that are not forgotten", labels=["state"])
        for state in _FIT_STATES:
            detached.add_metric([state], of_fits[state])
        yield detached


_collector: Final = GangCollector()
_is_registered: Final[list[bool]] = []


def expose(registry: Registry, fits: DetachedFits) -> None:
    """Show the numbers of a scheduler; several in one process, as in tests, show those of the latest."""
    if find_spec("prometheus_client") is None:
        return
    import prometheus_client

    _collector.source = registry, fits
    if not _is_registered:
        prometheus_client.REGISTRY.register(_collector)
        _is_registered.append(True)


def withdraw(registry: Registry) -> None:
    """Show the numbers of a scheduler no more: it closes."""
    if _collector.source is not None and _collector.source[0] is registry:
        _collector.source = None
