"""The order of an epoch: blocks of consecutive rows, visited in a random order of the blocks.

Kernels get places in that order (`dsgd.local.order` makes it). Inside a block, memory is read from one end to the
other.
"""

from __future__ import annotations

import numpy as np

from dsgd.kernels.jit import kernel, scalar
from dsgd.kernels.rng import draw, mix64
from dsgd.types import IntMatrix

# Rows of the matrix `order` (int64): the place at which each block begins, and how far its rows lie from their places.
# Its last column stands behind the last block: how many rows there are, and whether their order was drawn.
BEGINS, SHIFTS = range(2)

# The tail of an epoch whose order is drawn: to look up a row for one output takes as long as a step does for so many
# entries of a row, and a step as long as for its own and so many more. A tail that is a tenth of the second over the
# first adds a tenth to the time of an epoch. It is half of the rows at most, no more than lie in a cache until the last
# output has read them, and a 64th at least.
_LOOKUP, _BESIDE, _TIMES = 32, 25, 10
_MOST, _ENTRIES, _LEAST = 2, 2**17, 64

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
def tail_at(order: IntMatrix, n_outputs: np.uint64, n_features: np.uint64) -> int:
    """Return the place where the tail of an epoch begins, for so many outputs with orders of their own."""
    tail: int = order[BEGINS, order.shape[1] - 1]
    if n_outputs > np.uint64(1) and order[SHIFTS, order.shape[1] - 1] != 0:
        width: int = max(1, int(n_features))
        n_cheap = tail * (width + _BESIDE) // (_LOOKUP * _TIMES)
        tail -= max(tail // _LEAST, min(tail // _MOST, n_cheap, _ENTRIES // width))
    return tail


@scalar
def block_near(order: IntMatrix, place: int, blocks_per_row: float) -> int:
    """Return what `block_at` does, sooner: blocks are nearly even, so it is near where it would be if they were."""
    block: int = min(order.shape[1] - 2, int(place * blocks_per_row))
    while order[BEGINS, block] > place:
        block -= 1
    while order[BEGINS, block + 1] <= place:
        block += 1
    return block


@scalar
def row_of_output(order: IntMatrix, place: int, tail: int, lead: int, blocks_per_row: float) -> np.uint64:
    """Return the row at a place of the tail for an output that goes round it from `lead` places further on."""
    n_rows = order[BEGINS, order.shape[1] - 1]
    place += lead
    if place >= n_rows:
        place -= n_rows - tail
    return np.uint64(place + order[SHIFTS, block_near(order, place, blocks_per_row)])


@kernel
def lay_out(order: IntMatrix, n_rows: int, seed: np.uint64, epoch: int, is_drawn: bool) -> None:
    """Write into `order` a walk over rows that are cut into blocks as even as can be.

    - `order`, shape (2, n_blocks + 1): see `BEGINS` and `SHIFTS`; overwritten.
    - `seed`: of the orders of all epochs.
    - `epoch`: the epoch, whose order is drawn (Fisher and Yates).
    - `is_drawn`: whether it is; else the blocks stay in their order.
    """
    n_blocks = order.shape[1] - 1
    blocks = order[SHIFTS]
    for k in range(n_blocks):
        blocks[k] = k
    if is_drawn:
        key = draw(mix64(seed), np.uint64(epoch))
        for k in range(n_blocks - 1, 0, -1):
            other = np.int64(((draw(key, np.uint64(k)) >> _HALF) * np.uint64(k + 1)) >> _HALF)
            blocks[k], blocks[other] = blocks[other], blocks[k]
    place = 0
    for k in range(n_blocks):
        first, last = n_rows * blocks[k] // n_blocks, n_rows * (blocks[k] + 1) // n_blocks
        order[BEGINS, k], order[SHIFTS, k] = place, first - place
        place += last - first
    order[BEGINS, n_blocks], order[SHIFTS, n_blocks] = place, int(is_drawn)
