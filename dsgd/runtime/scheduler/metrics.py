"""Numbers of gangs on the page ``/metrics`` of Dask's scheduler; see `dsgd.runtime.metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from dsgd.runtime.metrics import as_family, register
from dsgd.runtime.scheduler.registry import Registry

_JOB_STATES: Final = ("queued", "running", "stopping")


class GangCollector:
    """The numbers of a scheduler."""

    def __init__(self) -> None:
        self.source: Registry | None = None

    def describe(self) -> list[Any]:
        """Return nothing: what there is to collect is known to nobody else."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the present numbers."""
        if self.source is None:
            return
        registry = self.source
        views = registry.overview()
        states = Counter(view.state for view in views)
        running = [view for view in views if view.state == "running"]
        waits = [view.elapsed_s for view in views if view.state == "queued"]
        counts = registry.counts
        yield as_family("dsgd_jobs", {state: states[state] for state in _JOB_STATES})
        yield as_family("dsgd_jobs_ended_total", {outcome: registry.n_ended[outcome] for outcome in ("done", "failed")})
        yield as_family("dsgd_failures_total", dict(counts.failures))
        yield as_family("dsgd_gangs_formed_again_total", counts.formed_again)
        yield as_family("dsgd_stragglers_total", counts.stragglers)
        yield as_family("dsgd_ranks", sum(view.n_ranks for view in running))
        yield as_family("dsgd_leased_workers", len(registry.leases))
        yield as_family("dsgd_user_workers", registry.workers_of_users())
        yield as_family("dsgd_queue_seconds", max(waits, default=0.0))


_collector: Final = GangCollector()


def expose(registry: Registry) -> None:
    """Show the numbers of a scheduler; several in one process, as in tests, show those of the latest."""
    _collector.source = registry
    register(_collector)


def withdraw(registry: Registry) -> None:
    """Show the numbers of a scheduler no more: it closes."""
    if _collector.source is registry:
        _collector.source = None
