"""Running a job: ranks as threads of this process, or in worker processes of a Dask cluster.

What needs Dask is loaded when it is first used, so that training in this process never pays for it.
"""

from typing import TYPE_CHECKING

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.runtime.checkpoints.checkpoint import Checkpoint
    from dsgd.runtime.deployment import Gang
    from dsgd.runtime.gang.client import client_for, client_of, close_own_cluster, connect_client
    from dsgd.runtime.gang.job import run_on_cluster
    from dsgd.runtime.logs import JsonFormatter, RankFilter
    from dsgd.runtime.rank import GangResult, Mail, Rank, RankProgram, Server, ServerProgram
    from dsgd.runtime.threads import run_on_threads
    from dsgd.runtime.timeouts import FailurePolicy, Restart, Shrink, Timeouts


__all__ = [
    "Checkpoint",
    "FailurePolicy",
    "Gang",
    "GangResult",
    "JsonFormatter",
    "Mail",
    "Rank",
    "RankFilter",
    "RankProgram",
    "Restart",
    "Server",
    "ServerProgram",
    "Shrink",
    "Timeouts",
    "client_for",
    "client_of",
    "close_own_cluster",
    "connect_client",
    "run_on_cluster",
    "run_on_threads",
]


__getattr__ = loaded_on_use(__name__)
