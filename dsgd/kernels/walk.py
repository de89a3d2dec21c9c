"""The walk of an epoch over the rows of a rank: blocks of neighbours, one after the other, in an order of their own.

What kernels are told to walk are places in that order (`dsgd.local.order` makes it). Inside a block memory is read from
one end to the other.
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import kernel, scalar
from dsgd.kernels.rng import draw, mix64
from dsgd.types import IntMatrix

__all__ = ["BEGINS", "SHIFTS", "block_at", "lay_out", "rows_ahead"]

# Rows of the matrix `order` (int64): the place at which each block begins, and how far its rows lie from their places.
# Its last column stands behind the last block: how many rows there are, and whether their order was drawn.
BEGINS, SHIFTS = range(2)

# Of the rows of an epoch whose order is drawn, a 64th is the tail; where that is under four for each output, so many
# are, an eighth at most.
_OF_EPOCH, _LEAST_OF_OUTPUT, _MOST_OF_EPOCH = 64, 4, 8

_HALF = np.uint64(32)


@scalar
def block_at(order: IntMatrix, place: int) -> int:
    """Return the block that a place of the walk is in."""
    low, high = 0, order.shape[1] - 1
    while high - low > 1:
        middle = (low + high) // 2
        if order[BEGINS, middle] <= place:
            low = middle
        else:
            high = middle
    return low


@scalar
def rows_ahead(order: IntMatrix, block: int, place: int, stop: int) -> tuple[np.uint64, np.uint64, int, int]:
    """Return the rows (first, last) of a block from a place on, `stop` at most, and the place and block behind them."""
    end = order[BEGINS, block + 1]
    shift = order[SHIFTS, block]
    if stop < end:
        return np.uint64(place + shift), np.uint64(stop + shift), stop, block
    return np.uint64(place + shift), np.uint64(end + shift), end, block + 1


@scalar
def tail_at(order: IntMatrix, n_outputs: np.uint64) -> int:
    """Return the place where the tail of an epoch begins, for so many outputs with orders of their own."""
    tail: int = order[BEGINS, order.shape[1] - 1]
    if n_outputs > np.uint64(1) and order[SHIFTS, order.shape[1] - 1] != 0:
        n_least: int = min(_LEAST_OF_OUTPUT * int(n_outputs), tail // _MOST_OF_EPOCH)
        tail -= max(tail // _OF_EPOCH, n_least)
    return tail


@scalar
def row_of_output(order: IntMatrix, place: int, tail: int, output: int, n_outputs: np.uint64) -> np.uint64:
    """Return the row that an output walks at a place of the tail, whose places it goes round from one of its own on."""
    length = order[BEGINS, order.shape[1] - 1] - tail
    place = tail + (place - tail + length * np.int64(output) // np.int64(n_outputs)) % length
    return np.uint64(place + order[SHIFTS, block_at(order, place)])


@kernel
def lay_out(order: IntMatrix, n_rows: int, seed: np.uint64 | None, epoch: int) -> None:
    """Write into `order` a walk over rows that are cut into blocks as even as can be.

    Parameters
    ----------
    order : array of int64, shape (2, n_blocks + 1)
        See `BEGINS` and `SHIFTS`; overwritten.
    n_rows : int
        Rows of all blocks.
    seed : uint64 or None
        Of the orders of all epochs; None leaves the blocks as they lie.
    epoch : int
        The epoch, whose order is drawn (Fisher and Yates).
    """
    n_blocks = order.shape[1] - 1
    blocks = order[SHIFTS]
    for k in range(n_blocks):
        blocks[k] = k
    if seed is not None:
        key = draw(mix64(seed), np.uint64(epoch))
        for k in range(n_blocks - 1, 0, -1):
            other = np.int64(((draw(key, np.uint64(k)) >> _HALF) * np.uint64(k + 1)) >> _HALF)
            blocks[k], blocks[other] = blocks[other], blocks[k]
    place = 0
    for k in range(n_blocks):
        first, last = n_rows * blocks[k] // n_blocks, n_rows * (blocks[k] + 1) // n_blocks
        order[BEGINS, k], order[SHIFTS, k] = place, first - place
        place += last - first
    order[BEGINS, n_blocks], order[SHIFTS, n_blocks] = place, 0 if seed is None else 1
