"""The ranks of a gang as one of them sees it."""

from __future__ import annotations

from typing import Literal

from dsgd.comm.base import AbstractTransport
from dsgd.ledger import RankLedger
from dsgd.types import AnyArray

__all__ = ["Algorithm", "Group"]

Algorithm = Literal["auto", "recursive_doubling", "ring"]


class Group:
    """Collectives over one transport; every rank calls the same ones in the same order.

    Parameters
    ----------
    transport : AbstractTransport
        Connects this rank with the others.
    algorithm : {"auto", "recursive_doubling", "ring"}, default "auto"
        How `allreduce` works; ``"auto"`` takes recursive doubling for short vectors and the ring for long ones.

    Attributes
    ----------
    rank, size : int
        This rank, and how many there are.
    ledger : RankLedger
        The ledger of this rank.
    """

    def __init__(self, transport: AbstractTransport, algorithm: Algorithm = "auto") -> None:
        self.transport = transport
        self.algorithm = algorithm

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.transport.size

    @property
    def ledger(self) -> RankLedger:
        """The ledger of this rank."""
        return self.transport.ledger

    def allreduce(self, vector: AnyArray) -> None:
        """Replace `vector` by the sum over ranks, bitwise equal on all of them."""
        raise NotImplementedError

    def broadcast(self, vector: AnyArray, root: int = 0) -> None:
        """Replace `vector` by that of rank `root`."""
        raise NotImplementedError

    def allgather(self, vector: AnyArray) -> AnyArray:
        """Return the vectors of all ranks, shape (size, n)."""
        raise NotImplementedError

    def barrier(self) -> None:
        """Return once every rank has called it."""
        raise NotImplementedError
