"""Random numbers by counter, and orders that are drawn from them: of rows, of epochs, and dealing to ranks.

Each draw is a hash of its key and depends on no earlier draw. `mix64` is the finaliser of splitmix64 (Steele, Lea and
Flood, OOPSLA 2014, with Stafford's constants "mix 13"): a bijection of 64-bit words in which every input bit flips
every output bit with a probability close to one half.

Orders of rows go by their place in the listing, and read memory in large pieces (`dsgd.local.shard` makes them). An
epoch visits blocks of consecutive rows in a random order, and a block from one end to the other.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsgd.kernels.jit import kernel, leaf_kernel, scalar
from dsgd.types import AnyArray, FloatVector, IndexVector, IntMatrix, IntVector, WordVector

#: The odd number nearest to 2^64 over the golden ratio; multiples of it are spread evenly over the words.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_S30 = np.uint64(30)
_S27 = np.uint64(27)
_S31 = np.uint64(31)


@scalar
def mix64(word: np.uint64) -> np.uint64:
    """Return `word` scrambled: a bijection of 64-bit words."""
    word = (word ^ (word >> _S30)) * _FIRST
    word = (word ^ (word >> _S27)) * _SECOND
    return word ^ (word >> _S31)


@scalar
def draw(key: np.uint64, counter: np.uint64) -> np.uint64:
    """Return number `counter` of the stream of `key`: splitmix64 started at `key`, entered anywhere."""
    word: np.uint64 = mix64(key + (counter + np.uint64(1)) * GOLDEN)
    return word


def mix64_each(words: WordVector) -> WordVector:
    """Return `mix64` of every word of an array."""
    mixed: WordVector = mix64(words)
    return mixed


def draw_each(keys: WordVector, counters: WordVector) -> WordVector:
    """Return `draw` of every key and counter of two arrays, one broadcast against the other."""
    drawn: WordVector = draw(keys, counters)
    return drawn


@kernel
def draw_one(key: np.uint64, counter: np.uint64) -> np.uint64:
    """Return `draw` to who is not compiled: numpy would warn of the words that wrap around."""
    word: np.uint64 = draw(key, counter)
    return word


#: Hashes that are spread evenly take fewer than two moves each within their buckets; more are no hashes.
_MOVES_PER_HASH: Final = 16


@kernel
def _sort(hashes: AnyArray, shift: np.uint64, ends: IntVector, ordered: AnyArray, order: IntVector) -> bool:
    """Sort hashes by their first bits, then by insertion; equal ones stay in their order.

    `shift` leaves the bits of a bucket. Returns False where buckets are so uneven that insertion takes too long.
    """
    n = hashes.shape[0]
    for i in range(n):
        ends[(hashes[i] >> shift) + np.uint64(1)] += 1
    for b in range(1, ends.shape[0]):
        ends[b] += ends[b - 1]
    # Here ends[b] is where bucket b begins; after the loop, where it ends.
    for i in range(n):
        bucket = hashes[i] >> shift
        place = ends[bucket]
        ends[bucket] = place + 1
        ordered[place] = hashes[i]
        order[place] = i
    # No hash goes further than the beginning of its bucket, as those before it are smaller.
    moves_left = _MOVES_PER_HASH * n
    for i in range(1, n):
        value, source, k = ordered[i], order[i], i
        while k > 0 and ordered[k - 1] > value:
            ordered[k], order[k] = ordered[k - 1], order[k - 1]
            k -= 1
        ordered[k], order[k] = value, source
        moves_left -= i - k
        if moves_left < 0:
            return False
    return True


def sort_hashes(hashes: NDArray[np.uint64]) -> tuple[IntVector, NDArray[np.uint64]]:
    """Return the order that sorts hashes, equal ones as they come, and the hashes in that order."""
    n = hashes.shape[0]
    # Four to a bucket: fewer would be buckets that no cache holds, more are moves.
    n_bits = max(1, n.bit_length() - 2)
    order, in_order = np.empty(n, np.int64), np.empty_like(hashes)
    if not _sort(hashes, np.uint64(64 - n_bits), np.zeros(2**n_bits + 1, np.int64), in_order, order):
        order = np.argsort(hashes, kind="stable")
        in_order = hashes[order]
    return order, in_order


#: Neighbours that stay together, and how many rows are then shuffled among themselves: those lie in the L2 cache.
CHUNK, GROUP = 32, 1024
_HALF = np.uint64(32)


@scalar
def _below(word: np.uint64, n: int) -> np.int64:
    """Return the number below n that a random word stands for, each as likely as the others."""
    return np.int64(((word >> _HALF) * np.uint64(n)) >> _HALF)


#: Of each class: where its members begin, where the next one goes, and its offset; and classes by their offsets.
Classes: TypeAlias = tuple[IntVector, IntVector, FloatVector, IntVector]
Drawn: TypeAlias = tuple[IndexVector, FloatVector]
Dealt: TypeAlias = tuple[IntVector, IntVector, AnyArray, IndexVector]


@leaf_kernel
def draw_order(
    targets: FloatVector, low: float, classes: Classes, key: np.uint64, drawn: Drawn, scratch: tuple[IndexVector, ...]
) -> bool:
    """Draw an order in which the members of every class are spread evenly; return False if targets are no classes.

    - `low`: the least target: that of class 0. Those of the others are the whole numbers above it.
    - `begins`, shape (n_classes + 1,): zeros; where the members of each begin, overwritten.
    - `offsets`, shape (n_classes,): where the first member of each lies, in distances between its members; in [0,
      1), multiples of 2^-24.
    - `turns`, shape (n_classes,): the classes by their offsets: of members that belong to one place, those of the
      first come first.
    - `drawn`: the order and the targets in it.
    - `scratch`, shapes (n,), (n // CHUNK + 1,), and (n + 1,) or (0,) where there is one class; the last holds zeros.
    """
    begins, heads, offsets, turns = classes
    (order, ordered), (members, chunks, ends) = drawn, scratch
    n, n_classes = order.shape[0], heads.shape[0]
    # Members by class, each class in the order of the listing. Places are unsigned: an index that might be negative
    # costs a comparison, and keeps copies from being vectorised.
    if n_classes == 1:
        begins[1] = n
        for i in range(n):
            order[i] = i
    else:
        for i in range(n):
            k = int(targets[i] - low)
            if targets[i] - low != k:
                return False
            begins[k + 1] += 1
        for k in range(n_classes):
            heads[k] = begins[k]
            begins[k + 1] += begins[k]
        for i in range(n):
            k = int(targets[i] - low)
            order[np.uint64(heads[k])] = i
            heads[k] += 1
    for k in range(n_classes):
        first, last = begins[k], begins[k + 1]
        n_chunks, stream = (last - first + CHUNK - 1) // CHUNK, draw(mix64(key), np.uint64(2 * k))
        for c in range(n_chunks):
            chunks[c] = c
        for c in range(n_chunks - 1, 0, -1):
            other = _below(draw(stream, np.uint64(c)), c + 1)
            chunks[c], chunks[other] = chunks[other], chunks[c]
        at = np.uint64(first)
        for c in range(n_chunks):
            begin = first + np.int64(chunks[c]) * CHUNK
            source, length = np.uint64(begin), np.uint64(min(last - begin, CHUNK))
            for j in range(length):
                members[at + j] = order[source + j]
            at += length
        # As many members as a class has among so many rows, in whole chunks.
        size = max(1, (GROUP * (last - first) + CHUNK * n // 2) // max(1, CHUNK * n)) * CHUNK
        stream = draw(mix64(key), np.uint64(2 * k + 1))
        for begin in range(first, last, size):
            for j in range(min(last, begin + size) - 1, begin, -1):
                here, other = np.uint64(j), np.uint64(begin + _below(draw(stream, np.uint64(j)), j - begin + 1))
                members[here], members[other] = members[other], members[here]
    if n_classes == 1:
        for i in range(n):
            order[i] = members[i]
            ordered[i] = targets[np.uint64(order[i])]
        return True
    # Each member belongs at a share of all places.
    for k in range(n_classes):
        n_members = begins[k + 1] - begins[k]
        distance = n / max(1, n_members)
        for j in range(n_members):
            ends[np.uint64(min(n - 1, np.int64((j + offsets[k]) * distance)) + 1)] += 1
    for b in range(1, n + 1):
        ends[b] += ends[b - 1]
    for turn in range(n_classes):
        k = turns[turn]
        first, offset, target = begins[k], offsets[k], low + k
        n_members = begins[k + 1] - first
        distance = n / max(1, n_members)
        for j in range(n_members):
            share = np.uint64(min(n - 1, np.int64((j + offset) * distance)))
            place = np.uint64(ends[share])
            order[place] = members[np.uint64(first + j)]
            ordered[place] = target
            ends[share] += 1
    return True


@leaf_kernel
def deal_rows(
    visits: AnyArray, n_rows: int, run: int, key: np.uint64, scratch: tuple[AnyArray, IntVector], dealt: Dealt
) -> None:
    """Deal rows to ranks: run by run of the listing, to one of the ranks that have fewest visits so far.

    Where all rows have one visit, every `n_ranks` neighbouring runs go to different ranks, in a random order.

    - `visits`, shape (n_rows,) or (0,): visits of each row, of those of a run fewer than there are levels; none where
      each has one.
    - `run`: neighbours that go to the same rank.
    - `scratch`: the ranks by how many visits they have, shape (n_levels, n_ranks), whose first row holds all of them,
      and how many there are in each row, shape (n_levels,).
    - `dealt`: how many rows each rank has and where they end, zeros of the shape (n_ranks,); the rank of each run; and
      the rows, rank by rank; all overwritten.
    """
    (pools, sizes), (counts, heads, ranks, rows) = scratch, dealt
    n_levels, n_ranks, level = sizes.shape[0], pools.shape[1], 0
    stream = mix64(key)
    for r in range(ranks.shape[0]):
        while sizes[level] == 0:
            level = level + 1 if level + 1 < n_levels else 0
        begin, end = r * run, min(n_rows, (r + 1) * run)
        j = _below(draw(stream, np.uint64(begin)), sizes[level])
        rank = pools[level, j]
        ranks[r] = rank
        counts[rank] += end - begin
        n = end - begin
        if visits.shape[0] > 0:
            n = 0
            for i in range(begin, end):
                n += visits[i]
        if n > 0:
            sizes[level] -= 1
            pools[level, j] = pools[level, sizes[level]]
            to = level + n if level + n < n_levels else level + n - n_levels
            pools[to, sizes[to]] = rank
            sizes[to] += 1
    for rank in range(1, n_ranks):
        heads[rank] = heads[rank - 1] + counts[rank - 1]
    for r in range(ranks.shape[0]):
        begin, end = r * run, min(n_rows, (r + 1) * run)
        place = heads[ranks[r]]
        heads[ranks[r]] = place + end - begin
        for i in range(end - begin):
            rows[place + i] = begin + i


# Rows of the matrix `order` (int64): the place at which each block begins, and how far its rows lie from their places.
# Its last column stands behind the last block: how many rows there are, and whether their order was drawn.
BEGINS, SHIFTS = range(2)

# The tail of an epoch whose order is drawn: to look up a row for one output takes as long as a step does for so many
# entries of a row, and a step as long as for its own and so many more. A tail that is a tenth of the second over the
# first adds a tenth to the time of an epoch. It is half of the rows at most, no more than lie in a cache until the last
# output has read them, and a 64th at least.
_LOOKUP, _BESIDE, _TIMES = 32, 25, 10
_MOST, _ENTRIES, _LEAST = 2, 2**17, 64


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

    `order`, shape (2, n_blocks + 1), is described at `BEGINS` and `SHIFTS`; unless it `is_drawn` blocks stay in order.
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
