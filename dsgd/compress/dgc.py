"""Deep gradient compression: top-k of gradients with local momentum and its correction.

Problem: with momentum applied after a sparse sum, an entry that waited a hundred rounds in memory arrives as one push,
where plain SGD would have given it a hundred, each carried on by momentum.

Update, with velocity u and memory r of a rank, momentum m, and g its vector::

    g <- g min(1, c P**-1/2 / ||g||)       clipping, before anything is added up
    u <- m u + g,  r <- r + u              (Nesterov: u <- m (u + g), r <- r + u + g)
    send the k largest |r|;  r <- 0 there, and with masking u <- 0 there

and the sum is applied unchanged: the step has no momentum of its own. With density 1 this is SGD with momentum without
masking, and plain SGD with it.

Cost per payload: `dsgd.compress.sparse.sparse_bytes`; two vectors of memory.

Source: Lin, Han, Mao, Wang and Dally 2018. Theirs cuts what passes a sampled threshold to the entries of lowest place;
here the k largest are found exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsgd.compress.base import AbstractMemory
from dsgd.compress.sparse import AbstractSparse, check_density, encode_at, largest, n_entries, sparse_bytes, staged
from dsgd.handover import ALIKE, OWN, SUMMED
from dsgd.kernels import bits as kernels
from dsgd.types import ByteVector, FloatVector, IntVector
from dsgd.validation import check_bool, check_numbers

__all__ = ["DGC", "DGCMemory"]


@dataclass
class DGCMemory(AbstractMemory):
    """The state of `DGC`.

    Parameters
    ----------
    velocity : array, shape (n,)
        The momentum of what has not been sent.
    residual : array, shape (n,)
        What has not been sent, in the unit of the vectors.
    n_seen : array of int64, shape (1,)
        Vectors so far, for the warm-up.
    limit : array of float64, shape (1,)
        The longest vector that is not clipped.
    """

    velocity: FloatVector = field(metadata=SUMMED)
    residual: FloatVector = field(metadata=SUMMED)
    n_seen: IntVector = field(metadata=ALIKE)
    limit: FloatVector = field(metadata=OWN)


@dataclass(frozen=True)
class DGC(AbstractSparse[DGCMemory]):
    """Accumulate vectors with momentum and send the largest entries of what has gathered.

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

    density: float = 0.001
    momentum: float = 0.9
    nesterov: bool = False
    masking: bool = True
    clip: float | None = None
    warm_up: tuple[float, ...] = ()
    warm_up_rounds: int = 1000
    remembers = True

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        for density in (self.density, *self.warm_up):
            check_density("DGC(density=...), DGC(warm_up=...)", density)
        check_numbers(self, "momentum", low=0.0, high=1.0, open_high=True)
        check_bool("DGC(nesterov=...)", self.nesterov)
        check_bool("DGC(masking=...)", self.masking)
        check_numbers(self, "clip", low=0.0, open_low=True, optional=True)
        check_numbers(self, "warm_up_rounds", low=1, integer=True)

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
