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

__all__ = ["AbstractTransport", "TransportName", "check_transport"]

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

    Attributes
    ----------
    rank : int
        This rank, from 0.
    size : int
        How many ranks the gang has.
    ledger : RankLedger
        Charged with wire and wait seconds, bytes and messages.
    hosts : tuple of int, length size
        A number for the host of each rank: messages between ranks with equal numbers are cheap. Equal on all ranks.
    processes : tuple of int, length size, or empty
        The process of each rank, if several processes have ranks and some have more than one; ranks of a process are
        consecutive. Empty if all ranks can reach each other. Equal on all ranks.
    wire : str
        How frames are sent: ``"inproc"``, ``"shm"``, ``"rpc"``, ``"tcp"``, or several of them: ``"shm+tcp"``.
    deadline_s : float
        Longest wait for a peer that makes no progress, in seconds; changed by `set_deadline`.
    concurrent : bool
        Whether a rank goes on as soon as it has handed a message over, so that all of its links can carry at once.
    is_virtual : bool
        Whether the clock of the ledger only moves when `exchange` and `worked` are called.
    shared_array : SharedArray or None
        Holds an array that ranks share, if all of them are threads of one process.
    mailbox : AbstractMailbox or None
        Sends frames to other ranks without waiting, in gangs that were made with mailboxes.
    window : Window or None
        Memory in which every rank sees the vectors of all others, for ranks with a core each.
    adder : callable or None
        Set if the wire can add up data as it arrives: takes the arguments of `exchange`, adds to `incoming` instead of
        overwriting it, and returns True; or does nothing and returns False if it cannot.
    offload : Offload or None
        Runs whole collectives of all ranks, if the wire can.
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

        Parameters
        ----------
        to, source : int or None
            The peers; they may differ (a ring) or be the same (a pair).
        outgoing, incoming : array or None
            C-contiguous; `incoming` is filled in place and must have the dtype and size that the peer sends.
        op : int
            Code of the operation, checked against the peer's.

        Raises
        ------
        AbortedError
            The job stopped, or the peer went away.
        GangTimeoutError
            Nothing came within the deadline; names the peer.
        ProtocolError
            The frame that came is not the one expected.
        """

    @abstractmethod
    def set_deadline(self, deadline_s: float) -> None:
        """Change the longest wait for a peer that makes no progress, from the next wait on.

        Parameters
        ----------
        deadline_s : float
            Seconds, positive.

        Raises
        ------
        InvalidParameterError
            The limit cannot be kept; see `check_limit`.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of sockets and buffers; may be called more than once."""

    def worked(self, *, rows: int = 0, entries: int = 0, params: int = 0, n_bytes: int = 0, epochs: int = 0) -> None:
        """Say that this rank has done work; real ranks do nothing, since their clocks have moved by themselves.

        A simulated rank is charged virtual seconds for it (`dsgd.sim`). Call it after each call of a kernel.

        Parameters
        ----------
        rows, entries : int, default 0
            Rows that a kernel has visited, and entries of these rows, once for each output.
        params : int, default 0
            Parameters of a model that were passed over: a step, an average, an entry each time it is coded.
        n_bytes : int, default 0
            Bytes of vectors that have arrived and were added up.
        epochs : int, default 0
            Epochs that have ended.
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
        """Send `outgoing` while adding the array from rank `source` to `total`.

        Parameters
        ----------
        to, source : int
            The peers.
        outgoing, total : array
            C-contiguous, in different memory.
        scratch : array, of the shape and dtype of `total`
            May be overwritten.
        op : int
            Code of the operation.
        """
        if self.adder is None or not self.adder(to, outgoing, source, total, op):
            self.exchange(to, outgoing, source, scratch, op)
            np.add(scratch, total, out=total)

    @final
    def recv(self, source: int, incoming: AnyArray, op: int = 0) -> None:
        """Receive an array from a peer."""
        self.exchange(None, None, source, incoming, op)
