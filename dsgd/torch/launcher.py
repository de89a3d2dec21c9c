"""`launch`: running a function with a training loop of its own on every rank of a gang."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from dsgd.comm.base import TransportName
from dsgd.runtime.gang.client import client_for
from dsgd.runtime.gang.job import run_on_cluster
from dsgd.runtime.rank import GangResult
from dsgd.sim import SimulatedCluster
from dsgd.torch.current import run_function


def launch(
    function: Callable[..., Any],
    client: Any = None,
    *,
    n_ranks: int | None = None,
    transport: TransportName = "auto",
) -> GangResult:
    """Run a function on every rank of a gang.

    Parameters
    ----------
    function : callable
        Called as ``function(rank)``, or without arguments if it takes none. ``rank.number`` and ``rank.size`` say who
        it is; `Synchronizer` finds the rank by itself.
    client : distributed.Client, SimulatedCluster or None, default None
        Where: one rank per thread of the workers of a cluster; None takes the current client, or starts a worker
        process per core and closes them in the end.
    n_ranks : int or None, default None
        How many ranks; None is all there can be.
    transport : str, default "auto"
        The transport; see `dsgd.runtime.run_on_cluster`.

    Returns
    -------
    GangResult
        ``value`` is what the function returned on rank 0, ``ledger`` the seconds and bytes of all ranks.

    Raises
    ------
    RankError
        The function raised on some rank; the error is its cause.
    ClusterError
        The cluster cannot run it, see `dsgd.runtime.run_on_cluster`.
    """
    arguments = (function, bool(inspect.signature(function).parameters))
    if isinstance(client, SimulatedCluster):
        return client.run(run_function, [None] * client.ranks, arguments)
    with client_for(client, n_workers=n_ranks) as found:
        return run_on_cluster(
            run_function, [], client=found, pack=_nothing, args=arguments, n_ranks=n_ranks, transport=transport
        )


def _nothing(blocks: object, rank: int) -> None:
    """Pack nothing: the function finds its rows by itself."""
