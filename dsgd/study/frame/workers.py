"""The worker processes of a study: those of an existing cluster, or temporary ones."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from dsgd.runtime import connect_client

if TYPE_CHECKING:
    from distributed import Client


@contextmanager
def cluster_of(ranks: int, scheduler: str | None = None, **options: Any) -> Iterator[Client]:
    """Give a client of a cluster."""
    if scheduler is not None:
        with connect_client(scheduler) as client:
            yield client
        return
    from distributed import Client, LocalCluster

    from dsgd.runtime.gang.client import QUIET_WORKER

    with _children_ignore_interrupts():
        started = LocalCluster(
            n_workers=ranks,
            threads_per_worker=1,
            processes=True,
            # No dashboard, and a free port for the page that the scheduler serves even so: 8787 may be taken.
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.ERROR,
            preload=[QUIET_WORKER],
            **options,
        )
    with started as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def cluster_where(needed: bool, ranks: int, scheduler: str | None = None) -> AbstractContextManager[Client | None]:
    """Give a client as `cluster_of` does if one is needed, else None, so that nothing is started for finished runs."""
    return cluster_of(ranks, scheduler) if needed else nullcontext()


def place_name(scheduler: str | None, network: object = None) -> str:
    """Return the name of the place of the ranks in rows: "simulated" on a network, "scheduler", or "local"."""
    return "simulated" if network is not None else "scheduler" if scheduler else "local"


@contextmanager
def _children_ignore_interrupts() -> Iterator[None]:
    """Start processes that ignore ctrl-C; this one handles it and closes them in order, without their tracebacks."""
    if threading.current_thread() is not threading.main_thread():  # signals can be set only there
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
