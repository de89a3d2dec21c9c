"""Installing the scheduler plugin and the worker plugin on a cluster."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from dsgd.runtime.gang.versions import code_allowed
from dsgd.runtime.scheduler.plugin import GangSchedulerPlugin
from dsgd.runtime.worker.plugin import GangWorkerPlugin

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["register"]


def register(client: Client, there: Collection[str] = ()) -> None:
    """Install both plugins on the cluster, unless they are there.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.
    there : collection of str
        Names of the plugins that the cluster is known to have.

    Raises
    ------
    VersionMismatchError
        Another version of dsgd has jobs on the cluster.
    ClusterError
        The scheduler takes no code from clients.
    """
    with code_allowed():
        for kind in (GangSchedulerPlugin, GangWorkerPlugin):
            if kind.name not in there:
                client.register_plugin(kind())
