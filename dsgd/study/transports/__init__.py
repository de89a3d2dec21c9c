"""The study of transports: what copies cost between two processes, over every way, and what zero copy gains over RPC.

`study` declares it. `parties` has what both ends do between messages, and does it in one process. `pairs` carries
messages between two ranks of a gang, with slots without copies; `others` over Dask's graph, actors and RPC, and over
MPI. `counting` counts copies and allocations.
"""

from dsgd.study.transports.study import STUDY

__all__ = ["STUDY"]
