"""The ranks of a gang as one of them sees it."""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

import numpy as np

from dsgd.collectives.cost import Algorithm, choose_algorithm, is_hierarchical
from dsgd.collectives.hierarchical import Hierarchy
from dsgd.collectives.recursive_doubling import recursive_doubling
from dsgd.collectives.ring import ring_allgather, ring_allreduce, ring_scratch_length
from dsgd.collectives.tree import binomial_broadcast, direct_gather, dissemination_barrier
from dsgd.comm.base import AbstractTransport
from dsgd.comm.wire import check_array
from dsgd.errors import InvalidParameterError
from dsgd.ledger import RankLedger
from dsgd.types import AnyArray

__all__ = ["Algorithm", "Group"]

_COMBINE: Final = {"sum": np.add, "min": np.minimum, "max": np.maximum}


class Group:
    """Collectives over one transport; every rank calls the same ones in the same order.

    Parameters
    ----------
    transport : AbstractTransport
        Connects this rank with the others.
    algorithm : {"auto", "recursive_doubling", "ring", "hierarchical"}, default "auto"
        How `allreduce` works; ``"auto"`` takes recursive doubling for short vectors and the ring for long ones, and
        both in two levels (first inside each host) where the ranks are on several hosts and some share one.
    hosts : sequence of int, length world size, optional
        The host of each rank, the same on all of them; ``transport.hosts`` by default.

    Attributes
    ----------
    rank, size : int
        This rank, and how many there are.
    ledger : RankLedger
        The ledger of this rank.

    Raises
    ------
    InvalidParameterError
        There is no such algorithm, or `hosts` has not one entry per rank.

    Notes
    -----
    Vectors are C-contiguous arrays of any shape and of a dtype in `dsgd.comm.wire.DTYPE_CODES`. Scratch memory is kept
    from call to call, one buffer per dtype, so that rounds of equal size allocate nothing. Every method raises what
    `AbstractTransport.exchange` raises.
    """

    def __init__(
        self, transport: AbstractTransport, algorithm: Algorithm = "auto", hosts: Sequence[int] | None = None
    ) -> None:
        if algorithm not in get_args(Algorithm):
            choices = ", ".join(repr(name) for name in get_args(Algorithm))
            raise InvalidParameterError(f"Group(algorithm=...) must be one of {choices}. Got {algorithm!r}.")
        hosts = transport.hosts if hosts is None else hosts
        if len(hosts) != transport.size:
            raise InvalidParameterError(
                f"Group(hosts=...) must have one entry per rank ({transport.size}). Got {len(hosts)}."
            )
        self.transport = transport
        in_levels = algorithm == "hierarchical" or (algorithm == "auto" and is_hierarchical(hosts))
        self._hierarchy = Hierarchy(transport, hosts) if in_levels else None
        self.algorithm = algorithm
        self._scratch: dict[np.dtype[Any], AnyArray] = {}
        self._nothing = np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.uint8)
        # Infinities are summed as IEEE 754 says: a warning on one rank, raised as an error, would take the gang down.
        # To call something in a context made once takes a tenth of the time of ``with np.errstate(...)``.
        context = contextvars.copy_context()
        context.run(np.seterr, over="ignore", invalid="ignore")
        self._quietly = context.run

    @property
    def rank(self) -> int:
        """Number of this rank, from 0."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.transport.size

    @property
    def ledger(self) -> RankLedger:
        """The ledger of this rank."""
        return self.transport.ledger

    def allreduce(self, vector: AnyArray, op: Literal["sum", "min", "max"] = "sum") -> None:
        """Replace `vector` by the sum over ranks, or its entries' extremes, bitwise equal on all of them.

        Extremes always go by recursive doubling of all ranks: they are meant for short vectors. A NaN stays one.
        """
        if op not in _COMBINE:
            raise InvalidParameterError(f"allreduce(op=...) must be 'sum', 'min' or 'max'. Got {op!r}.")
        size = self.transport.size
        if size == 1:
            return
        flat = _flat(vector)
        n = flat.shape[0]
        algorithm = self.algorithm_for(n, flat.itemsize)
        if op == "sum" and self._hierarchy is not None:
            self._quietly(self._hierarchy.allreduce, flat, self._borrow(flat.dtype, n))
        elif op == "sum" and algorithm == "ring":
            scratch = self._borrow(flat.dtype, ring_scratch_length(n, size))
            self._quietly(ring_allreduce, self.transport, flat, scratch)
        else:
            self._quietly(recursive_doubling, self.transport, flat, self._borrow(flat.dtype, n), _COMBINE[op])

    def algorithm_for(self, n: int, itemsize: int) -> Algorithm:
        """Return how `allreduce` sums vectors of n elements of `itemsize` bytes."""
        if self._hierarchy is not None:
            return "hierarchical"
        return choose_algorithm(n, itemsize, self.size) if self.algorithm == "auto" else self.algorithm

    def broadcast(self, vector: AnyArray, root: int = 0) -> None:
        """Replace `vector` by that of rank `root`."""
        self._check_root("broadcast", root)
        if self.size > 1:
            binomial_broadcast(self.transport, _flat(vector), root)

    def allgather(self, vector: AnyArray) -> AnyArray:
        """Return the vectors of all ranks, shape (size, n); they all have the same length."""
        flat = _flat(vector)
        gathered = np.empty((self.size, flat.shape[0]), dtype=flat.dtype)
        gathered[self.rank] = flat
        if self.size > 1:
            ring_allgather(self.transport, list(gathered))
        return gathered

    def allgatherv(self, vector: AnyArray, lengths: Sequence[int] | None = None) -> list[AnyArray]:
        """Return the vectors of all ranks, of any lengths, in the order of ranks.

        Parameters
        ----------
        vector : array, shape (n,)
            This rank's, maybe empty; of one dtype on all ranks.
        lengths : sequence of int, one per rank, or None
            The lengths of all vectors where every rank knows them; else they are gathered first.

        Returns
        -------
        list of arrays
            One after another in one piece of memory.
        """
        flat = _flat(vector)
        if lengths is None:
            lengths = self.allgather(np.array([flat.shape[0]], dtype=np.int64)).ravel().tolist()
        if len(lengths) != self.size or lengths[self.rank] != flat.shape[0]:
            raise InvalidParameterError(
                f"allgatherv(lengths=...) must hold one length per rank, {flat.shape[0]} for rank {self.rank} of "
                f"{self.size}. Got {list(lengths)}."
            )
        ends = np.cumsum([0, *lengths])
        whole = np.empty(int(ends[-1]), dtype=flat.dtype)
        parts = [whole[ends[r] : ends[r + 1]] for r in range(self.size)]
        parts[self.rank][:] = flat
        if self.size > 1:
            ring_allgather(self.transport, parts)
        return parts

    def gather(self, vector: AnyArray, root: int = 0) -> list[AnyArray] | None:
        """Return the vectors of all ranks, of any lengths, on rank `root`, and None on the others."""
        self._check_root("gather", root)
        flat = _flat(vector)
        length = np.array([flat.shape[0]], dtype=np.int64)
        if self.rank != root:
            direct_gather(self.transport, length, None, root)
            direct_gather(self.transport, flat, None, root)
            return None
        lengths = [length.copy() for _ in range(self.size)]
        direct_gather(self.transport, length, lengths, root)
        parts = [flat if r == root else np.empty(int(n[0]), dtype=flat.dtype) for r, n in enumerate(lengths)]
        direct_gather(self.transport, flat, parts, root)
        return parts

    def barrier(self) -> None:
        """Return once every rank has called it."""
        dissemination_barrier(self.transport, *self._nothing)

    def _check_root(self, name: str, root: int) -> None:
        if not 0 <= root < self.size:
            raise InvalidParameterError(f"{name}(root=...) must be a rank from 0 to {self.size - 1}. Got {root}.")

    def _borrow(self, dtype: np.dtype[Any], n: int) -> AnyArray:
        scratch = self._scratch.get(dtype)
        if scratch is None or scratch.shape[0] < n:
            scratch = self._scratch[dtype] = np.empty(n, dtype=dtype)
        return scratch[:n]


def _flat(vector: AnyArray) -> AnyArray:
    # A view, never a copy: the result must land in the caller's memory. The transport checks vectors itself.
    if vector.ndim == 1:
        return vector
    check_array(vector)
    return vector.reshape(-1)
