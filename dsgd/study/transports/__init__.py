"""The study of transports: what copies cost between two processes, over every way, and what zero copy gains over RPC.

::

    study = demo_transport_study()
    runs = list(run_transport_study(study, "study/"))
    transport_page(study, [run.row for run in runs], missing_parts(study)).save("study/")

`grid` has the ways and what is run, `parties` what both ends do between messages. `pairs` carries messages between two
ranks of a gang, `slots` without copies, `dask_ways` over Dask's graph, actors and RPC, `over_mpi` over MPI, and `alone`
not at all. `counting` counts copies and allocations. `runner` makes the rows, `summary` holds ways against each other,
`report` draws the page. The command line and programs call what is exported here; begin with `runner`.
"""

from dsgd.study.transports.grid import WAYS, TransportRun, TransportStudy, demo_transport_study
from dsgd.study.transports.report import transport_page
from dsgd.study.transports.runner import missing_parts, run_transport_study
from dsgd.study.transports.summary import (
    WayCell,
    check_transport_claims,
    copies_table,
    memory_table,
    message_table,
    placement_table,
    summarise_transports,
    training_table,
    transport_verdict,
    unequal_models,
)

__all__ = [
    "WAYS",
    "TransportRun",
    "TransportStudy",
    "WayCell",
    "check_transport_claims",
    "copies_table",
    "demo_transport_study",
    "memory_table",
    "message_table",
    "missing_parts",
    "placement_table",
    "run_transport_study",
    "summarise_transports",
    "training_table",
    "transport_page",
    "transport_verdict",
    "unequal_models",
]
