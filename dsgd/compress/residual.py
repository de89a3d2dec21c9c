"""Compressors that send the largest entries of what they remember: deep gradient compression and gTop-k."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from dsgd.compress.base import AbstractMemory
from dsgd.compress.sparse import AbstractSparse, encode_at, largest, n_entries, sparse_bytes, staged
from dsgd.handover import ALIKE, OWN, SUMMED
from dsgd.kernels import bits as kernels
from dsgd.types import ByteVector, FloatVector, IntVector
from dsgd.validation import check_number, number


@dataclass
class DGCMemory(AbstractMemory):
    """The state of `DGC`."""

    # The momentum of what has not been sent.
    velocity: FloatVector = field(metadata=SUMMED)
    # What has not been sent, in the unit of the vectors.
    residual: FloatVector = field(metadata=SUMMED)
    # Vectors so far, for the warm-up.
    n_seen: IntVector = field(metadata=ALIKE)
    # The longest vector that is not clipped.
    limit: FloatVector = field(metadata=OWN)


@dataclass(frozen=True)
class DGC(AbstractSparse[DGCMemory]):
    """Accumulate vectors with momentum and send the largest entries of what has gathered.

    Problem: with momentum applied after a sparse sum, an entry that waited a hundred rounds in memory arrives as one
    push, where plain SGD would have given it a hundred, each carried on by momentum.

    Update, with velocity u and memory r of a rank, momentum m, and g its vector::

        g <- g min(1, c P**-1/2 / ||g||)       clipping, before anything is added up
        u <- m u + g,  r <- r + u              (Nesterov: u <- m (u + g), r <- r + u + g)
        send the k largest |r|;  r <- 0 there, and with masking u <- 0 there

    The sum is applied unchanged: the step has no momentum of its own. With density 1 this is SGD with momentum without
    masking, and plain SGD with it.

    Cost per payload: `dsgd.compress.sparse.sparse_bytes`; two vectors of memory. Source: Lin, Han, Mao, Wang and Dally
    2018. Theirs cuts what passes a sampled threshold to the entries of lowest place; here the k largest are found
    exactly.

    Parameters
    ----------
    density : float, default 0.001
        Share of the entries that is sent.
    momentum : float, default 0.9
        Share of the velocity that is kept when a vector comes.
    nesterov : bool, default False
        Whether momentum looks ahead.
    masking : bool, default True
        Whether the velocity of an entry is forgotten when it is sent.
    clip : float or None, default None
        The longest mean gradient that one would let pass; a rank of P lets its share pass up to ``clip / P**1.5``.
    warm_up : tuple of float, default ()
        Densities to begin with, as (0.25, 0.0625, 0.015625, 0.004), each for `warm_up_rounds` vectors.
    warm_up_rounds : int, default 1000
        See `warm_up`.

    Raises
    ------
    InvalidParameterError
        A parameter is out of its range.
    """

    density: float = number(0.001, low=0.0, high=1.0, open_low=True)
    momentum: float = number(0.9, low=0.0, high=1.0, open_high=True)
    nesterov: bool = False
    masking: bool = True
    clip: float | None = number(None, low=0.0, open_low=True)
    warm_up: tuple[float, ...] = ()
    warm_up_rounds: int = number(1000, low=1)
    remembers = True

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        super().__post_init__()
        for density in self.warm_up:
            check_number("DGC(warm_up=...)", density, low=0.0, high=1.0, open_low=True)

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> DGCMemory:
        """Return a velocity and a memory of zeros; see `AbstractCompressor.init`."""
        limit = np.inf if self.clip is None else self.clip * size**-1.5
        return DGCMemory(np.zeros(n, dtype), np.zeros(n, dtype), np.zeros(1, np.int64), np.array([limit]))

    def density_at(self, n_seen: int) -> float:
        """Return the density for the vector that comes after so many."""
        return staged(self.density, self.warm_up, self.warm_up_rounds, n_seen)

    def encode(self, vector: FloatVector, memory: DGCMemory) -> ByteVector:
        """Return the payload of the largest entries gathered; see `AbstractCompressor.encode`."""
        n, scratch = vector.shape[0], memory.scratch
        velocity, residual, kind = memory.velocity, memory.residual, vector.dtype.type
        gained = scratch.take("gained", n, vector.dtype)
        gained[:] = vector
        if self.clip is not None:
            # Squares of float32 are soon too large for it.
            length = float(np.linalg.norm(vector.astype(np.float64, copy=False)))
            if length > memory.limit[0]:
                gained *= kind(memory.limit[0] / length)
        if self.nesterov:
            velocity += gained
            velocity *= kind(self.momentum)
            residual += gained
        else:
            velocity *= kind(self.momentum)
            velocity += gained
        residual += velocity
        k = n_entries(n, self.density_at(int(memory.n_seen[0])))
        memory.n_seen += 1
        places = largest(residual, k, k, 0, scratch)
        payload = encode_at(residual, places, scratch)
        kernels.put_at(residual, places, 0.0)
        if self.masking:
            kernels.put_at(velocity, places, 0.0)
        return payload

    def payload_bytes(self, n: int, itemsize: int) -> int | None:
        """Return the bytes of k entries, None with a warm-up; see `AbstractCompressor.payload_bytes`."""
        return None if self.warm_up else sparse_bytes(n_entries(n, self.density), n, itemsize)


@dataclass
class GTopKMemory(AbstractMemory):
    """The state of `GTopK`."""

    # What has not been sent, in the unit of the vectors.
    residual: FloatVector = field(metadata=SUMMED)
    # Vectors so far, for the warm-up.
    n_seen: IntVector = field(metadata=ALIKE)


@dataclass(frozen=True)
class GTopK(AbstractSparse[GTopKMemory]):
    """Sum only the k entries that are largest over all ranks.

    Problem: if all ranks gather the k entries of each of P ranks, these are up to k P different entries: what a rank
    receives grows with the number of ranks.

    Update, with r the memory of a rank: ``a = r + v``; it chooses its k largest entries and keeps the others, ``r = a``
    without the chosen. Then pairs of ranks add their sets of k entries and keep the k largest of the sum; after log2 P
    steps all ranks have the same k entries, which are the sum. Entries that a merge drops go back to a memory:

    - ``"conserving"``: the rank that merges, of several the lowest, adds it to its memory. Nothing is lost.
    - ``"put-back"``, as published: a rank takes back those of its own entries that are not among the last k. An entry
      that was dropped in one branch of the tree and came in by another is then neither applied nor kept.

    Training may begin with larger densities, as published: one in four entries, then fewer from epoch to epoch. Cost
    per rank: by a butterfly log2 P messages of k entries; by a tree as many up and as many down. `route` chooses; a
    number of ranks that is no power of two folds the surplus in and out. See `dsgd.collectives.payloads`.

    Source: Shi, Wang, Zhao, Tang, Wang, Tang and Chu 2019 (tree, put-back); the butterfly is the exchange of their cost
    formula. Momentum is that of the step after the sum, as in their code, where momentum of each rank (that of `DGC`)
    is switched off.

    Parameters
    ----------
    density : float, default 0.001
        Share of the entries that is sent, and that comes out.
    dropped : {"conserving", "put-back"}, default "conserving"
        What becomes of entries that a merge drops.
    route : {"butterfly", "tree"}, default "butterfly"
        How ranks are paired in merges.
    warm_up : tuple of float, default ()
        Densities to begin with, as (0.25, 0.0625, 0.015625, 0.004), each for `warm_up_rounds` vectors.
    warm_up_rounds : int, default 1000
        See `warm_up`; as published, the vectors of an epoch.

    Raises
    ------
    InvalidParameterError
        A density is not in (0, 1], `warm_up_rounds` is not a positive integer, or there is no such choice.
    """

    density: float = number(0.001, low=0.0, high=1.0, open_low=True)
    dropped: Literal["conserving", "put-back"] = "conserving"
    route: Literal["butterfly", "tree"] = "butterfly"
    warm_up: tuple[float, ...] = ()
    warm_up_rounds: int = number(1000, low=1)
    remembers = True

    def __post_init__(self) -> None:
        """Refuse a density that is no share."""
        super().__post_init__()
        for density in self.warm_up:
            check_number("GTopK(warm_up=...)", density, low=0.0, high=1.0, open_low=True)

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> GTopKMemory:
        """Return a memory of zeros; see `AbstractCompressor.init`."""
        return GTopKMemory(np.zeros(n, dtype), np.zeros(1, np.int64))

    def density_at(self, n_seen: int) -> float:
        """Return the density for the vector that comes after so many."""
        return staged(self.density, self.warm_up, self.warm_up_rounds, n_seen)

    def encode(self, vector: FloatVector, memory: GTopKMemory) -> ByteVector:
        """Return the payload of the largest entries, and keep the rest; see `AbstractCompressor.encode`."""
        memory.residual += vector
        k = n_entries(vector.shape[0], self.density_at(int(memory.n_seen[0])))
        memory.n_seen += 1
        places = largest(memory.residual, k, k, 0, memory.scratch)
        payload = encode_at(memory.residual, places, memory.scratch)
        kernels.put_at(memory.residual, places, 0.0)
        return payload

    def payload_bytes(self, n: int, itemsize: int) -> int | None:
        """Return the bytes of k entries, None with a warm-up; see `AbstractCompressor.payload_bytes`."""
        return None if self.warm_up else self.frame_bytes(n, itemsize)

    def frame_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of k of n entries of `itemsize` bytes, after the warm-up."""
        return sparse_bytes(n_entries(n, self.density), n, itemsize)
