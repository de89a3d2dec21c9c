"""The transport that carries arrays by MPI, for workers started by ``mpiexec``.

Problem: on a supercomputer the fast network is MPI's, and Dask's workers are its processes already (dask-mpi, or
``mpiexec dask worker``).

The processes of the gang find out over TCP which rank of ``MPI.COMM_WORLD`` each of them is. MPI waits without a
deadline and cannot be interrupted, so transfers are polled, ever more slowly; an abort is noticed between two polls.
MPI encrypts nothing, and when one of its processes dies it usually ends all others.

Source: MPI 4.1, nonblocking communication, through mpi4py.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from dsgd.comm.abort import AbortFlag
from dsgd.comm.sockets.link import Link
from dsgd.comm.sockets.listener import Listener
from dsgd.comm.wires import carried
from dsgd.errors import ClusterError
from dsgd.types import AnyArray

__all__ = ["connect"]

_NUMBER: Final = struct.Struct("<q")
_MAX_TAG: Final = 32_767  # what every MPI must allow


class _Pending:
    """An array on its way; holds what must not be freed meanwhile."""

    def __init__(self, request: Any, array: AnyArray, abort: AbortFlag) -> None:
        self._request, self._array, self._abort = request, array, abort

    def wait(self, limit_s: float) -> None:
        if not carried.look_until(self._request.Test, limit_s, self._abort):
            self._request.Cancel()
            raise TimeoutError("MPI made no progress")


class _World:
    """``MPI.COMM_WORLD``, as far as it belongs to the gang."""

    def __init__(self, world: Any, places: list[int], tag: int, abort: AbortFlag) -> None:
        self._world, self._places, self._tag, self._abort = world, places, tag, abort

    def send(self, peer: int, array: AnyArray) -> _Pending:
        return _Pending(self._world.Isend(array, self._places[peer], self._tag), array, self._abort)

    def receive(self, peer: int, array: AnyArray) -> _Pending:
        return _Pending(self._world.Irecv(array, self._places[peer], self._tag), array, self._abort)

    def close(self) -> None:
        """Do nothing: the world outlives the gang."""


def connect(listener: Listener, rank: int, addresses: Sequence[str], **options: Any) -> carried.CarriedTransport:
    """Join the gang, and let MPI carry the arrays.

    Parameters
    ----------
    listener, rank, addresses, **options
        See `dsgd.comm.wires.carried.connect`.

    Returns
    -------
    CarriedTransport
        Connected with all other ranks.

    Raises
    ------
    ClusterError
        mpi4py is not installed here, the processes are not those of one ``mpiexec``, or MPI may not be used from
        several threads.
    InvalidParameterError, ProtocolError, GangTimeoutError, AbortedError
        See `dsgd.comm.wires.tcp.connect`.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ClusterError(f'transport="mpi" needs mpi4py and an MPI library on every worker: {error}.') from error
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ClusterError('transport="mpi" needs an MPI that threads other than the first may call.')
    world = MPI.COMM_WORLD

    def make(links: dict[int, Link], abort: AbortFlag, job: int) -> _World:
        told = carried.tell_all(links, rank, _NUMBER.pack(world.Get_rank()))
        places = [_NUMBER.unpack(said)[0] for said in told]
        if len(set(places)) < len(places):
            raise ClusterError(
                'transport="mpi" needs one MPI process per worker: start them all with one mpiexec (dask-mpi). '
                f"Got processes that are numbers {places} of their worlds."
            )
        return _World(world, places, job % _MAX_TAG, abort)

    return carried.connect(listener, rank, addresses, "mpi", make, **options)
