"""The cluster of a command: worker processes that it starts, an existing cluster, or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dsgd.errors import InvalidParameterError

if TYPE_CHECKING:
    from distributed import Client


@contextmanager
def connected(workers: int, scheduler: str | None) -> Iterator[Client | None]:
    """Give a client for the time of a command.

    Parameters
    ----------
    workers : int
        Worker processes to start on this machine, one thread each; 0 starts none.
    scheduler : str or None
        Address of a scheduler that runs already, such as ``tcp://10.0.0.5:8786``.

    Yields
    ------
    distributed.Client or None
        None if neither was given: train in this process.

    Raises
    ------
    InvalidParameterError
        Both were given.
    ClusterUnreachableError
        No scheduler answers at the address.
    """
    if workers and scheduler:
        raise InvalidParameterError(
            f"--workers {workers} starts a cluster and --scheduler {scheduler} uses one that runs: leave one out"
        )
    if scheduler:
        from dsgd.runtime import connect_client

        with connect_client(scheduler) as client:
            yield client
    elif workers:
        from dsgd.runtime import client_for

        with client_for(n_workers=workers) as client:
            yield client
    else:
        yield None
