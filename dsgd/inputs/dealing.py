"""Which rows of an array go to which block: neighbours, or rows dealt at random.

Problem: rows are often in an order that means something (a series in time, one class after the other). Ranks that are
given neighbours then have rows of different kinds, and a model that is averaged seldom suffers: on ijcnn1, a series in
time, one average of the models of sixteen ranks is 1.8 points below one rank, and nothing below it where rows are
dealt. The methods that average models are stated for rows that are.

Update: a permutation of all rows, drawn from the seed, is cut into the rows of every rank, and these, in the order of
the array, into the blocks of the rank. So a block is read from one end of a part of the array to the other, and blocks
of all ranks lie beside each other in it: of an array in a file little is in memory at a time.

Cost: 8 bytes a row, and a copy of the rows of a block while it is sent.

Source: Zinkevich, Weimer, Smola and Li 2010, algorithm 3 ("randomly partition the examples").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dsgd.local import split
from dsgd.types import IntVector

__all__ = ["Deal"]


@dataclass(frozen=True)
class Deal:
    """The rows of every block; blocks are numbered rank by rank.

    Parameters
    ----------
    n_rows : int
        Rows of the array.
    n_ranks : int
        Ranks; their rows differ by one at most.
    pieces : int, default 1
        Blocks of each rank.
    seed : int or None, default None
        Of the permutation; None leaves neighbours together.
    """

    n_rows: int
    n_ranks: int
    pieces: int = 1
    seed: int | None = None

    @property
    def n_blocks(self) -> int:
        """How many blocks there are."""
        return self.n_ranks * self.pieces

    def rows(self, k: int) -> slice | IntVector:
        """Return the rows of block k, ascending, as an index of the array."""
        start, stop = split(self.n_rows, self.n_blocks, k)
        return slice(start, stop) if self.seed is None or self.n_ranks == 1 else self._order[start:stop]

    def reading_order(self) -> list[int]:
        """Return the numbers of the blocks in the order in which they lie in the array."""
        blocks = range(self.n_blocks)
        return list(blocks) if self.seed is None else sorted(blocks, key=lambda k: (k % self.pieces, k))

    @cached_property
    def _order(self) -> IntVector:
        order = np.random.default_rng(self.seed).permutation(self.n_rows)
        for rank in range(self.n_ranks):
            start, stop = split(self.n_rows, self.n_ranks, rank)
            order[start:stop].sort()
        return order
