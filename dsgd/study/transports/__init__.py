"""The study of transports: what copies cost between two processes, over every way, and what zero copy gains over RPC.

`study` declares it. `parties` has what both ends do between messages, does it in one process, and counts copies and
allocations. `pairs` carries messages between two ranks of a gang, with slots without copies; `others` over Dask's
graph, actors and RPC, and over MPI.
"""

from dsgd.study.transports.study import STUDY

__all__ = ["STUDY"]
