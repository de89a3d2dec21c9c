"""The study of transports: what copies cost between two processes, over every way, and what zero copy gains over RPC.

`study` declares it. `parties` has what both ends do between messages. `pairs` carries messages between two ranks of a
gang, `slots` without copies, `dask_ways` over Dask's graph, actors and RPC, `over_mpi` over MPI, and `alone` not at
all. `counting` counts copies and allocations.
"""

from dsgd.study.transports.study import STUDY, WAYS, WayCell, missing_parts

__all__ = ["STUDY", "WAYS", "WayCell", "missing_parts"]
