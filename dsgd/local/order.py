"""The order of the rows of a rank: in memory, and within each epoch.

With ``shuffle=True`` rows are sorted by a hash of (seed, content of the row, copy number). Whatever order rows come
in, however they were cut into blocks, dense or sparse: the same rows are walked in the same order, and an epoch reads
memory from one end to the other, which is several times faster than permuted access.

The content of a row is its fingerprint: the wrap-around sum over its nonzeros of a hash of (column, value), plus a hash
of the target. Rows of equal content are numbered; the number enters the hash, so copies are spread over the epoch.

Classes are spread evenly: in the order of their hashes the rows of a class lie at equal distances. So any first
m rows have m p of a class whose share is p, to less than 1 + K p with K classes, and a block has as many as others.
Several consecutive rows of one class would move the intercept and everything that the class has in common. Without such
runs the model after the last step is less noisy, for one more pass over the targets when rows are packed. Targets that
are not whole numbers in a small range are treated as values, not as classes.

The mean of the models of all steps has no such noise to lose, and evenly spread classes bias it: a row of a class comes
when the steps on that class are longest ago, so every class is stepped on from models that fit it less than their mean
does, by half a step on it. Least squares show it, of which the mean of constant steps is the solution if rows are
independent (Bach and Moulines 2013): with nine tenths in one of two classes the mean ends 7.3e-5 above the least
objective, and 9.4e-7 with the order of the hashes. So rows that are trained on with ``average`` stay in the latter.

An epoch walks blocks of neighbours, 256 at most, in an order of its own that (seed, epoch) draw, and a block from one
end to the other. A model that has seen the same rows in the same order again and again fits the order too: with one
order for all epochs scikit-learn's defaults reach 89.7 % on usps in place of 90.5 %, and stop earlier. Blocks are as
good as single rows there, since the rows of a block were drawn at random, and memory is read as if there were none.

Sample weights are copies. scikit-learn demands that a weight of 2 equals the row twice and a weight of 0 the row left
out, exactly; so a row of weight w is visited as often as the nearest whole number from 1 to 16 says, with equal parts
of w. Every visit takes a step on the penalty, too, so estimators scale weights to a mean of one over all visits: the
share of the penalty is then the same for weights of 1.4999 and of 1.5. Of equal rows, the visits of larger weight are
numbered first.

Cost: 24 bytes a visit while the order is made, and 8 more where there are sample weights; 8 bytes a visit after. The
order of an epoch is 4 kB and takes 3 us.

Source: two levels of shuffling, of blocks and in blocks: Xu et al. 2022 (CorgiPile). They shuffle the rows of the
blocks in memory in each epoch; here all rows are shuffled once. Strata: Zhao and Zhang 2014 (stratified sampling
removes the variance between strata), here by systematic sampling from each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsgd.kernels.epoch_order import BEGINS, SHIFTS, lay_out
from dsgd.kernels.rng import draw_each, mix64_each
from dsgd.kernels.rows import hash_contents
from dsgd.kernels.sorting import sort_hashes, spread_strata
from dsgd.types import FloatVector, IntMatrix, IntVector

__all__ = [
    "EPOCH_BLOCKS",
    "MAX_COPIES",
    "Words",
    "arrange",
    "content_keys",
    "count_visits",
    "epoch_order",
    "sort_keys",
    "spans",
    "visits",
    "walking_order",
    "word_type",
]

#: Into how many blocks an epoch is cut at most. Few rows are a block each.
EPOCH_BLOCKS = 256
#: As many are enough; where there are more, none has fewer than so many rows: at each, memory is read from a new place.
LEAST_BLOCKS, LEAST_ROWS = 64, 32

#: Targets are classes if they are whole numbers, of which the largest and the smallest are at most so far apart.
MOST_STRATA = 4096

#: A row is visited at most this many times an epoch, however large its weight.
MAX_COPIES = 16

Words = NDArray[np.uint64]


def visits(weights: FloatVector) -> tuple[IntVector, FloatVector] | None:
    """Return the row of every visit, ascending, and its weight; None if every row is visited once with weight one.

    Parameters
    ----------
    weights : array of float64, shape (n_rows,)
        Sample weights, not negative.
    """
    n_rows = weights.shape[0]
    if np.all(weights == 1.0):
        return None
    counts = count_visits(weights)
    source = np.repeat(np.arange(n_rows), counts)
    return source, np.repeat(weights / np.maximum(counts, 1), counts)


def count_visits(weights: FloatVector) -> IntVector:
    """Return how many visits `visits` makes of each row of these weights."""
    counts: IntVector = np.where(weights > 0.0, np.clip(np.rint(weights), 1, MAX_COPIES), 0).astype(np.int64)
    return counts


def content_keys(prints: Words, seed: int, targets: FloatVector | None = None) -> Words:
    """Return a hash of (seed, content) for every row, of fingerprints; the content includes `targets`, if given."""
    words = np.empty(0, np.uint64) if targets is None else targets.view(word_type(targets.dtype))
    key = mix64_each(np.full(1, (seed + 1) % 2**64, np.uint64))
    keys = np.empty_like(prints)
    hash_contents(prints, words, key[0], keys)
    return keys


def walking_order(
    prints: Words,
    targets: FloatVector,
    weighted: tuple[IntVector, FloatVector] | None,
    seed: int,
    *,
    spread_classes: bool = True,
) -> IntVector:
    """Return the visits in walking order: by the hash of (seed, content of the row, copy number), classes spread.

    Parameters
    ----------
    prints : array of uint64, shape (n_rows,)
        Fingerprints of the rows.
    targets : array, shape (n_rows,)
        Their targets.
    weighted : tuple or None
        As `visits` returns it.
    seed : int
        Seed of the order.
    spread_classes : bool, default True
        Whether the rows of a class lie at equal distances, if targets are classes.

    Returns
    -------
    array of int64, shape (n_visits,)
        Visits, counted with rows ascending.
    """
    order = _hash_order(prints, targets, weighted, seed)
    # Of the visits: a row of weight zero is not there.
    strata = _strata(targets if weighted is None else targets[weighted[0]]) if spread_classes else None
    if strata is None:
        return order
    counts = np.bincount(strata)
    streams = draw_each(mix64_each(np.full(1, seed % 2**64, np.uint64)), np.arange(counts.size, dtype=np.uint64))
    offsets = (streams >> np.uint64(40)) / 2.0**24
    keys = np.empty(order.shape[0], np.uint64)
    spread_strata(strata, order, offsets, counts, np.zeros_like(counts), keys)
    return order[sort_keys(keys)[0]]


def _strata(targets: FloatVector) -> IntVector | None:
    """Return the class of every visit, from 0, where there are classes, and more than one."""
    low, high = (targets.min(), targets.max()) if targets.size else (0.0, 0.0)
    if not 0.0 < high - low < MOST_STRATA:
        return None
    codes: IntVector = targets.astype(np.int64)
    if np.any(codes != targets):
        return None
    codes -= int(low)
    return codes


def _hash_order(
    prints: Words, targets: FloatVector, weighted: tuple[IntVector, FloatVector] | None, seed: int
) -> IntVector:
    """Return the visits in the order of their hashes; parameters are those of `walking_order`."""
    keys = content_keys(prints, seed, targets)
    if weighted is not None:
        keys = keys[weighted[0]]
    order, in_order = sort_keys(keys)
    repeats = np.flatnonzero(in_order[1:] == in_order[:-1])
    del in_order
    if repeats.size == 0:
        return order
    # Rows of equal content are next to each other now: number them, larger weights first, and draw their places again.
    is_repeated = np.zeros(order.shape[0], bool)
    is_repeated[repeats] = True
    is_repeated[repeats + 1] = True
    members = order[is_repeated]
    # Equal rows of equal weight cannot be told apart, so it does not matter which of them comes first.
    lighter = np.zeros(members.shape[0]) if weighted is None else -weighted[1][members]
    members = members[np.lexsort((lighter, keys[members]))]
    member_keys = keys[members]
    begins = np.flatnonzero(np.r_[True, member_keys[1:] != member_keys[:-1]])
    sizes = np.diff(np.r_[begins, members.shape[0]])
    numbers = np.arange(members.shape[0]) - np.repeat(begins, sizes)
    keys[members] = np.where(numbers == 0, member_keys, draw_each(member_keys, numbers.astype(np.uint64)))
    return sort_keys(keys)[0]


def sort_keys(keys: Words) -> tuple[IntVector, Words]:
    """Return the order that sorts hashes, equal ones as they come, and the hashes in that order."""
    n = keys.shape[0]
    # Four to a bucket: fewer would be buckets that no cache holds, more are moves.
    n_bits = max(1, n.bit_length() - 2)
    order, in_order = np.empty(n, np.int64), np.empty_like(keys)
    if not sort_hashes(keys, np.uint64(64 - n_bits), np.zeros(2**n_bits + 1, np.int64), in_order, order):
        order = np.argsort(keys, kind="stable")
        in_order = keys[order]
    return order, in_order


def epoch_order(n_rows: int, seed: int | None, epoch: int) -> IntMatrix:
    """Return the order in which an epoch walks its rows, as kernels read it.

    Parameters
    ----------
    n_rows : int
        Visits of an epoch.
    seed : int or None
        Seed of the orders of all epochs; None visits the rows in their stored order.
    epoch : int
        The epoch.

    Returns
    -------
    array of int64, shape (2, n_blocks + 1)
        The place at which each block begins, ascending, and where the last one ends; and the number that leads from a
        place in a block to its row.
    """
    n_blocks = n_rows if n_rows <= EPOCH_BLOCKS else min(max(n_rows // LEAST_ROWS, LEAST_BLOCKS), EPOCH_BLOCKS)
    order: IntMatrix = np.empty((2, max(1, n_blocks) + 1), np.int64)
    arrange(order, n_rows, seed, epoch)
    return order


def arrange(order: IntMatrix, n_rows: int, seed: int | None, epoch: int) -> None:
    """Make an order, as `epoch_order` returned one for so many rows, that of another epoch."""
    lay_out(order, n_rows, np.uint64((seed or 0) % 2**64), epoch, seed is not None)


def spans(order: IntMatrix, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the rows (first, last) that the places start..stop of a walk are, as runs of neighbours."""
    begins, shifts = order[BEGINS], order[SHIFTS]
    touched = np.flatnonzero((begins[:-1] < stop) & (begins[1:] > start))
    first = np.maximum(begins[touched], start) + shifts[touched]
    last = np.minimum(begins[touched + 1], stop) + shifts[touched]
    return list(zip(first.tolist(), last.tolist(), strict=True))


def word_type(dtype: np.dtype[Any]) -> type[np.unsignedinteger[Any]]:
    """Return the unsigned integer as wide as `dtype`."""
    return np.uint32 if dtype.itemsize == 4 else np.uint64
