"""The transport that carries arrays by gloo, which comes with torch.

Problem: some clusters have a gloo that is tuned for their network, or are to be compared with it.

Every gang has a process group of its own, beside torch's default one, so several gangs may share a process. Its ranks
find each other through a store that rank 0 opens on a port of its own. gloo neither authenticates nor encrypts: use it
in a trusted network. If a peer stops in the middle of an array, the wait ends at the deadline; an abort does not end it
sooner.

torch's other library, NCCL, moves arrays between graphics cards alone; models here live in the memory of the host, so
it is not offered.

Source: ``torch.distributed.ProcessGroupGloo`` of torch 2.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from dsgd.comm.abort import AbortFlag
from dsgd.comm.sockets.link import Link
from dsgd.comm.sockets.listener import Listener, split_address
from dsgd.comm.wires import carried
from dsgd.errors import ClusterError
from dsgd.types import AnyArray

__all__ = ["GlooCarrier", "connect"]

_SET_UP_S: Final = 30.0
_TAG: Final = 0
_PORT: Final = struct.Struct("<H")


class _Pending:
    """An array on its way; holds what must not be freed meanwhile."""

    def __init__(self, work: Any, tensor: Any) -> None:
        self._work, self._tensor = work, tensor

    def wait(self, limit_s: float) -> None:
        try:
            self._work.wait(timedelta(seconds=limit_s))
        except RuntimeError as error:
            if "Timed out" in str(error):
                raise TimeoutError("gloo made no progress") from error
            raise ConnectionAbortedError(str(error)) from error


class GlooCarrier:
    """Moves arrays between the ranks of a process group of gloo; a `dsgd.comm.wires.carried.Carrier`.

    Parameters
    ----------
    group : ProcessGroupGloo or ProcessGroup
        The group; peers are numbers in it.
    as_tensor : callable
        ``torch.from_numpy``; this module is loaded without torch.
    """

    def __init__(self, group: Any, as_tensor: Any) -> None:
        self._group, self._as_tensor = group, as_tensor

    def send(self, peer: int, array: AnyArray) -> _Pending:
        """Begin to send an array."""
        tensor = self._as_tensor(array.reshape(-1).view("u1"))
        return _Pending(self._group.send([tensor], peer, _TAG), tensor)

    def receive(self, peer: int, array: AnyArray) -> _Pending:
        """Begin to receive into an array."""
        tensor = self._as_tensor(array.reshape(-1).view("u1"))
        return _Pending(self._group.recv([tensor], peer, _TAG), tensor)

    def close(self) -> None:
        """Let go of the group."""
        self._group = None


def connect(listener: Listener, rank: int, addresses: Sequence[str], **options: Any) -> carried.CarriedTransport:
    """Join the gang, and let gloo carry the arrays.

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
        torch is not installed here, or has no gloo.
    InvalidParameterError, ProtocolError, GangTimeoutError, AbortedError
        See `dsgd.comm.wires.tcp.connect`.
    """
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        raise ClusterError(f'transport="gloo" needs torch on every worker: {error}.') from error
    if not (dist.is_available() and dist.is_gloo_available()):
        raise ClusterError('transport="gloo" needs a torch that was built with gloo.')
    size, limit = len(addresses), timedelta(seconds=_SET_UP_S)
    own, first = split_address(addresses[rank])[0], split_address(addresses[0])[0]

    def make(links: dict[int, Link], abort: AbortFlag, job: int) -> GlooCarrier:
        options = {"timeout": limit, "wait_for_workers": False}
        store = dist.TCPStore(first, 0, size, is_master=True, **options) if rank == 0 else None
        port = _PORT.unpack(carried.tell_all(links, rank, _PORT.pack(0 if store is None else store.port))[0])[0]
        if store is None:
            store = dist.TCPStore(first, port, size, is_master=False, **options)
        settings = dist.ProcessGroupGloo._Options()
        settings._devices = [dist.ProcessGroupGloo.create_device(hostname=own)]
        settings._timeout = limit
        group = dist.ProcessGroupGloo(dist.PrefixStore(f"{job:x}", store), rank, size, settings)
        return GlooCarrier(group, torch.from_numpy)

    return carried.connect(listener, rank, addresses, "gloo", make, **options)
