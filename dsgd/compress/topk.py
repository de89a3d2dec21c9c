"""The k entries of largest magnitude.

Update: ``decode(encode(v))`` is v where ``|v_i|`` is among the k largest, ties in favour of the lower place, and zero
elsewhere, with ``k = ceil(density n)``.

Cost per payload: `dsgd.compress.sparse.sparse_bytes`, about ``k (s + 1.6 / 8 + log2(1 / density) / 8)`` bytes for
values of s bytes. Summed over P ranks by an all-gather, each rank receives P - 1 of them.

It is biased, and without error feedback it stalls: wrap it in `ErrorFeedback`.

Source: Aji and Heafield 2017; Stich, Cordonnier and Jaggi 2018 (with memory); the sampled threshold as in Lin et al.
2018.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsgd.compress.base import AbstractMemoryless, NoMemory
from dsgd.compress.sparse import AbstractSparse, check_density, encode_at, largest, n_entries, sparse_bytes
from dsgd.types import ByteVector, FloatVector
from dsgd.validation import check_bool

__all__ = ["TopK"]

#: With a sampled threshold, how many more than k entries may pass it.
_SLACK = 1.3


@dataclass(frozen=True)
class TopK(AbstractSparse[NoMemory], AbstractMemoryless):
    """Send the entries of largest magnitude.

    Parameters
    ----------
    density : float, default 0.01
        Share of the entries that is sent.
    exact : bool, default True
        Whether exactly k are sent. Otherwise all that pass a threshold found on a sample, if they are between k and
        1.3 k: one pass over the vector, and payloads of different lengths.

    Raises
    ------
    InvalidParameterError
        `density` is not in (0, 1].
    """

    density: float = 0.01
    exact: bool = True
    needs_feedback = True

    def __post_init__(self) -> None:
        """Refuse a density that is no share."""
        check_density("TopK(density=...)", self.density)
        check_bool("TopK(exact=...)", self.exact)

    def encode(self, vector: FloatVector, memory: NoMemory) -> ByteVector:
        """Return the payload of the largest entries; see `AbstractCompressor.encode`."""
        k = n_entries(vector.shape[0], self.density)
        places = largest(vector, k, k if self.exact else int(_SLACK * k), 0, memory.scratch)
        return encode_at(vector, places, memory.scratch)

    def payload_bytes(self, n: int, itemsize: int) -> int | None:
        """Return the bytes of k entries; see `AbstractCompressor.payload_bytes`."""
        return sparse_bytes(n_entries(n, self.density), n, itemsize) if self.exact else None
