"""The interface of every transport."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal, final, get_args

import numpy as np

from dsgd.ledger import RankLedger
from dsgd.types import AnyArray
from dsgd.validation import check_choice

if TYPE_CHECKING:
    from dsgd.comm.mailbox import AbstractMailbox
    from dsgd.comm.memory.shared_array import SharedArray
    from dsgd.comm.memory.window import Window
    from dsgd.comm.offload import Offload

_Ours = Literal["auto", "spin", "shm", "tcp", "rpc"]
#: What a user may ask for: memory inside a host where possible; the same, polled; memory or an error; TCP alone; the
#: ports of the workers alone; or ``"package.module:function"``, a wire of another package.
TransportName = _Ours | str


def check_transport(where: str, transport: Any) -> None:
    """Raise `InvalidParameterError` unless `transport` is a wire of this package or may be one of another."""
    if not (isinstance(transport, str) and ":" in transport):
        check_choice(where, transport, (*get_args(_Ours), "package.module:function"))


class AbstractTransport(ABC):
    """Moves arrays between the ranks of one gang.

    Buffers belong to the caller and are reused from round to round: a transport neither keeps nor copies them beyond
    the call. Every frame says which job, sequence number, operation and dtype it belongs to, so that ranks which are
    not at the same point fail loudly (`ProtocolError`) and do not add up the wrong numbers.
    """

    rank: int
    size: int
    ledger: RankLedger
    hosts: tuple[int, ...]
    processes: tuple[int, ...] = ()
    wire: str
    deadline_s: float
    concurrent: bool = False
    is_virtual: bool = False
    shared_array: SharedArray | None = None
    mailbox: AbstractMailbox | None = None
    window: Window | None = None
    adder: Callable[[int, AnyArray, int, AnyArray, int], bool] | None = None
    offload: Offload | None = None

    @abstractmethod
    def exchange(
        self, to: int | None, outgoing: AnyArray | None, source: int | None, incoming: AnyArray | None, op: int = 0
    ) -> None:
        """Send `outgoing` to rank `to` while receiving `incoming` from rank `source`; either half may be None.

        Both directions proceed at once: two ranks that exchange large arrays never wait for each other's buffers.
        """

    @abstractmethod
    def set_deadline(self, deadline_s: float) -> None:
        """Change the longest wait for a peer that makes no progress, from the next wait on."""

    @abstractmethod
    def close(self) -> None:
        """Let go of sockets and buffers; may be called more than once."""

    def worked(self, *, rows: int = 0, entries: int = 0, params: int = 0, n_bytes: int = 0, epochs: int = 0) -> None:
        """Say that this rank has done work; real ranks do nothing, since their clocks have moved by themselves.

        A simulated rank is charged virtual seconds for it (`dsgd.sim`). Call it after each call of a kernel.
        """
        del rows, entries, params, n_bytes, epochs

    def helper(self, name: str) -> Executor:
        """Return an executor for one exchange at a time beside the work of this rank; the caller shuts it down."""
        return ThreadPoolExecutor(1, thread_name_prefix=name)

    @final
    def send(self, to: int, outgoing: AnyArray, op: int = 0) -> None:
        """Send an array to a peer."""
        self.exchange(to, outgoing, None, None, op)

    @final
    def exchange_and_add(
        self, to: int, outgoing: AnyArray, source: int, scratch: AnyArray, total: AnyArray, op: int = 0
    ) -> None:
        """Send `outgoing` while adding the array from rank `source` to `total`."""
        if self.adder is None or not self.adder(to, outgoing, source, total, op):
            self.exchange(to, outgoing, source, scratch, op)
            np.add(scratch, total, out=total)

    @final
    def recv(self, source: int, incoming: AnyArray, op: int = 0) -> None:
        """Receive an array from a peer."""
        self.exchange(None, None, source, incoming, op)
