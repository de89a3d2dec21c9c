"""gTop-k: the k largest entries over all ranks, merged pair by pair.

Problem: if all ranks gather the k entries of each of P ranks, these are up to k P different entries: what a rank
receives grows with the number of ranks.

Update, with r the memory of a rank: ``a = r + v``; it chooses its k largest entries and keeps the others, ``r = a``
without the chosen. Then pairs of ranks add their sets of k entries and keep the k largest of the sum; after log2 P
steps all ranks have the same k entries, which are the sum. Entries that a merge drops go back to a memory:

- ``"conserving"``: the rank that merges, of several the lowest, adds it to its memory. Nothing is lost.
- ``"put-back"``, as published: a rank takes back those of its own entries that are not among the last k. An entry that
  was dropped in one branch of the tree and came in by another is then neither applied nor kept.

Cost per rank: by a butterfly log2 P messages of k entries; by a tree as many up and as many down. `route` chooses; a
number of ranks that is no power of two folds the surplus in and out. See `dsgd.collectives.compressed.gtopk`.

Source: Shi, Wang, Zhao, Tang, Wang, Tang and Chu 2019 (tree, put-back); the butterfly is the exchange of their cost
formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dsgd.compress.adacomp import ResidualMemory
from dsgd.compress.sparse import AbstractSparse, check_density, encode_at, largest, n_entries, sparse_bytes
from dsgd.kernels import bits as kernels
from dsgd.types import ByteVector, FloatVector
from dsgd.validation import check_choice

__all__ = ["GTopK"]


@dataclass(frozen=True)
class GTopK(AbstractSparse[ResidualMemory]):
    """Sum only the k entries that are largest over all ranks.

    Parameters
    ----------
    density : float, default 0.001
        Share of the entries that is sent, and that comes out.
    dropped : {"conserving", "put-back"}, default "conserving"
        What becomes of entries that a merge drops.
    route : {"butterfly", "tree"}, default "butterfly"
        How ranks are paired in merges.

    Raises
    ------
    InvalidParameterError
        `density` is not in (0, 1], or there is no such choice.
    """

    density: float = 0.001
    dropped: Literal["conserving", "put-back"] = "conserving"
    route: Literal["butterfly", "tree"] = "butterfly"
    remembers = True

    def __post_init__(self) -> None:
        """Refuse a density that is no share."""
        check_density("GTopK(density=...)", self.density)
        check_choice("GTopK(dropped=...)", self.dropped, ("conserving", "put-back"))
        check_choice("GTopK(route=...)", self.route, ("butterfly", "tree"))

    def init(self, n: int, dtype: Any, seed: int, rank: int = 0, size: int = 1) -> ResidualMemory:
        """Return a memory of zeros; see `AbstractCompressor.init`."""
        return ResidualMemory(np.zeros(n, dtype))

    def encode(self, vector: FloatVector, memory: ResidualMemory) -> ByteVector:
        """Return the payload of the largest entries, and keep the rest; see `AbstractCompressor.encode`."""
        memory.residual += vector
        k = n_entries(vector.shape[0], self.density)
        places = largest(memory.residual, k, k, 0, memory.scratch)
        payload = encode_at(memory.residual, places, memory.scratch)
        kernels.put_at(memory.residual, places, 0.0)
        return payload

    def payload_bytes(self, n: int, itemsize: int) -> int:
        """Return the bytes of k entries; see `AbstractCompressor.payload_bytes`."""
        return sparse_bytes(n_entries(n, self.density), n, itemsize)
