"""The transport that carries arrays by UCX, through ucxx.

Problem: UCX knows networks with remote memory access (InfiniBand, RoCE, AWS EFA) and chooses among them, TCP and shared
memory; a cluster that has such a network has it from UCX.

Every gang has a context and a worker of UCX of its own, which chooses its ways as UCX's environment says (``UCX_TLS``,
``UCX_NET_DEVICES``). Ranks exchange the addresses of their workers over TCP. UCX makes no progress by itself, so
transfers are polled, ever more slowly; an abort is noticed between two polls, the death of a peer in the middle of an
array at the deadline. A send that UCX has begun cannot be cancelled and would keep its connection open for ever, so an
array of more than a kilobyte is sent only after its receiver has said that it waits for it. UCX neither authenticates
nor encrypts: use it in a trusted network.

Cost: beyond that of `dsgd.comm.wires.carried`, one message of a byte for an array of more than a kilobyte.

Source: the tag interface of UCX 1.12 and later (``ucp_tag_send_nbx``, ``ucp_tag_recv_nbx``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from dsgd.comm.abort import AbortFlag
from dsgd.comm.sockets.link import Link
from dsgd.comm.sockets.listener import Listener
from dsgd.comm.wires import carried
from dsgd.errors import ClusterError
from dsgd.types import AnyArray

__all__ = ["connect"]

# What UCX sends without asking the other end whether it is wanted.
_EAGER_BYTES: Final = 1024
_READY: Final = 1 << 32  # beyond any rank
_DRAIN_LOOKS: Final = 100


class _Pending:
    """An array on its way; holds what must not be freed meanwhile."""

    def __init__(self, carrier: _UCX, array: AnyArray, peer: int, request: Any, ready: Any = None) -> None:
        self.carrier, self.array, self.peer = carrier, array, peer
        self.request = request
        self.ready = ready

    def wait(self, limit_s: float) -> None:
        carrier = self.carrier
        if not carried.look_until(self._is_over, limit_s, carrier.abort):
            carrier.drop_all()
            raise TimeoutError("UCX made no progress")
        try:
            self.request.check_error()
        except carrier.library.UCXError as error:
            raise ConnectionAbortedError(f"UCX: {error}") from error

    def _is_over(self) -> bool:
        self.carrier.step()
        return self.request is not None and bool(self.request.completed)


class _UCX:
    """A worker of UCX and its connections."""

    def __init__(self, library: Any, as_buffer: Any, rank: int, abort: AbortFlag) -> None:
        self.library, self.abort = library, abort
        self._as_buffer, self._rank = as_buffer, rank
        self._worker = library.UCXWorker(library.UCXContext())
        self._ends: dict[int, Any] = {}
        self._held: list[_Pending] = []
        self._byte = np.zeros(1, dtype=np.uint8)

    def join(self, links: dict[int, Link]) -> None:
        """Connect with all peers."""
        library = self.library
        told = carried.tell_all(links, self._rank, bytes(library.UCXAddress.create_from_worker(self._worker)))
        for peer in links:
            address = library.UCXAddress.create_from_buffer(told[peer])
            # With error handling UCX would give up shared memory; the connections over TCP notice who dies.
            self._ends[peer] = library.UCXEndpoint.create_from_worker_address(self._worker, address, False)

    def send(self, peer: int, array: AnyArray) -> _Pending:
        if array.nbytes <= _EAGER_BYTES:
            return _Pending(self, array, peer, self._send(peer, array, self._rank))
        held = _Pending(self, array, peer, None, self._receive(peer, np.zeros(1, dtype=np.uint8), _READY | peer))
        self._held.append(held)
        return held

    def receive(self, peer: int, array: AnyArray) -> _Pending:
        pending = _Pending(self, array, peer, self._receive(peer, array, peer))
        if array.nbytes > _EAGER_BYTES:
            pending.ready = self._send(peer, self._byte, _READY | self._rank)
        return pending

    def step(self) -> None:
        """Let UCX make progress, and send the arrays that receivers wait for."""
        self._worker.progress()
        for held in list(self._held):
            if held.ready.completed:
                held.request = self._send(held.peer, held.array, self._rank)
                self._held.remove(held)

    def drop_all(self) -> None:
        """Let UCX forget the arrays that are under way."""
        self._held.clear()
        self._worker.cancel_inflight_requests()
        for _ in range(_DRAIN_LOOKS):
            self._worker.progress()

    def close(self) -> None:
        self.drop_all()
        # UCX closes its connections with the last reference to them, and its ports with that to the worker.
        self._ends.clear()
        self._worker = None

    def _send(self, peer: int, array: AnyArray, tag: int) -> Any:
        return self._ends[peer].tag_send(self._as_buffer(array), self.library.UCXXTag(tag))

    def _receive(self, peer: int, array: AnyArray, tag: int) -> Any:
        return self._ends[peer].tag_recv(self._as_buffer(array), self.library.UCXXTag(tag))


def connect(listener: Listener, rank: int, addresses: Sequence[str], **options: Any) -> carried.CarriedTransport:
    """Join the gang, and let UCX carry the arrays.

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
        ucxx is not installed here, or UCX finds no way that it may use.
    InvalidParameterError, ProtocolError, GangTimeoutError, AbortedError
        See `dsgd.comm.wires.tcp.connect`.
    """
    try:
        from ucxx._lib import libucxx
        from ucxx._lib.arr import Array
    except ImportError as error:
        raise ClusterError(f'transport="ucx" needs ucxx on every worker: {error}.') from error

    def make(links: dict[int, Link], abort: AbortFlag, job: int) -> _UCX:
        try:
            carrier = _UCX(libucxx, Array, rank, abort)
            carrier.join(links)
        except libucxx.UCXError as error:
            raise ClusterError(f'transport="ucx": UCX cannot be used on a worker: {error}.') from error
        return carrier

    return carried.connect(listener, rank, addresses, "ucx", make, **options)
