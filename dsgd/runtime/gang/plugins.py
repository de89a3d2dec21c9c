"""Installing the scheduler plugin and the worker plugin on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsgd.runtime.gang.versions import code_allowed
from dsgd.runtime.scheduler.plugin import GangSchedulerPlugin
from dsgd.runtime.worker.plugin import GangWorkerPlugin

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["register"]


def register(client: Client) -> None:
    """Put both plugins on the cluster, unless they are there.

    Raises
    ------
    VersionMismatchError
        Another version of dsgd has jobs on the cluster.
    ClusterError
        The scheduler takes no code from clients.
    """
    with code_allowed():
        client.register_plugin(GangSchedulerPlugin())
        client.register_plugin(GangWorkerPlugin())
