"""Ranks of a test that mpiexec starts; the first prints what came out, as JSON."""

from __future__ import annotations

import json
import sys

import numpy as np
from mpi4py import MPI

from dsgd.collectives import Group
from dsgd.comm.wires import mpi, tcp
from dsgd.errors import DsgdError
from gangs import TOKEN, sum_of


def main(sizes: list[int]) -> None:
    """Join, sum vectors of these sizes, and then fall out of step."""
    world = MPI.COMM_WORLD
    with tcp.Listener() as listener:
        addresses = world.allgather(listener.address)
        # Ranks of the gang need not be numbered as MPI numbers them.
        rank = world.Get_size() - 1 - world.Get_rank()
        options = {"job_id": "test", "epoch": 0, "token": TOKEN, "timeout_s": 20.0}
        transport = mpi.connect(listener, rank, addresses[::-1], **options)
    group = Group(transport)
    found: dict[str, object] = {"sums": [sum_of(group, n, seed).hex() for seed, n in enumerate(sizes)]}
    if rank == 0:
        try:
            transport.recv(1, np.zeros(4), op=1)
        except DsgdError as error:
            found["error"] = f"{type(error).__name__}: {error}"
    elif rank == 1:
        transport.send(0, np.zeros(5), op=1)
    transport.close()
    if rank == 0:
        sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]])
