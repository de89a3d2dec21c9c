"""Sums of payloads that have an encoding of their own: in parts, and gTop-k. All coding is charged to the ledger.

Charges: on a real rank the clock has moved by itself. A simulated one is charged for the elements that were passed
over, at the price of a parameter (`dsgd.sim.Compute`): the whole vector where it is encoded or decoded, the entries
alone where they are few and have places.

In parts. Gathering the payloads of many ranks passes more bytes through each of them than whole vectors would. So rank
r gets part r of all payloads, sums it and encodes the sum; then all ranks gather the encoded parts. `Half` rounds the
sum once more, and with feedback the rank that rounds keeps the difference. `TernGrad` sums whole numbers, after the
ranks have agreed on the largest scale. `MajorityVote` has a bit for each entry, and a rank of weight zero no vote.
Where ranks are threads of several processes and cannot all reach each other, payloads are gathered and every rank sums
all parts: the same bits, more bytes. Cost: `halves_cost`, `ternary_cost`, `votes_cost`.

gTop-k. Gathered by everybody, the k entries of each of P ranks are up to k P different ones; here sums are truncated to
their k largest entries at every step. By a butterfly, folded as recursive doubling is
(`dsgd.collectives.algorithms.rings`), partners swap their entries; by a tree ranks send them down, and rank 0
broadcasts the last ones. In a sum the lower ranks come first, and of equal magnitudes the lower place is larger, so
every bit agrees on all ranks. Cost: `gtopk_cost`; a butterfly takes half the messages of a tree one after the other.

Source: as in Seide et al. 2014 (1-bit SGD, which sums and quantises once more); gTop-k: see `dsgd.compress.residual`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from dsgd.collectives.cost import Cost, allgatherv_cost, allreduce_cost, broadcast_cost, fold_of
from dsgd.collectives.group import Group
from dsgd.comm.frames import HEADER_BYTES, OP_ALLREDUCE, OP_SCATTER
from dsgd.compress import Half, MajorityVote, TernGrad
from dsgd.compress.base import WORD_BYTES, Scratch, words_for
from dsgd.compress.quantise import TERNARY_PER_WORD
from dsgd.compress.residual import GTopK, GTopKMemory
from dsgd.compress.sparse import decode_sparse, encode_sparse, largest, sparse_bytes
from dsgd.kernels import bits, quantize
from dsgd.kernels.bits import add_at, merge_ascending
from dsgd.ledger import ENCODE
from dsgd.types import AnyArray, ByteVector, FloatVector, IndexVector, WordVector

ResultT = TypeVar("ResultT")


def encoding(group: Group, n_elements: int, work: Callable[[], ResultT]) -> ResultT:
    """Return what `work` returns, and charge it as encoding."""
    ledger = group.ledger
    start = ledger.clock() if ledger.timing else 0.0
    result = work()
    group.transport.worked(params=n_elements)
    if ledger.timing:
        ledger.charge(ENCODE, ledger.clock() - start)
    return result


def encode(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> AnyArray:
    """Return the payload of a vector, and subtract it from the remainder."""

    def work() -> AnyArray:
        payload: AnyArray = compressor.encode(vector, memory)
        if rest is not None:
            compressor.decode(payload, rest, -1.0)
        return payload

    return encoding(group, vector.shape[0] * (1 if rest is None else 2), work)


def decode(group: Group, payloads: list[AnyArray], vector: FloatVector, compressor: Any) -> None:
    """Replace a vector by the sum of what payloads hold, added in their order."""
    n, itemsize = vector.shape[0], vector.itemsize
    # A payload of places and values is about as long as its entries are many; all others hold the whole vector.
    touched = sum(min(n, payload.nbytes // itemsize) if compressor.sparse else n for payload in payloads)

    def work() -> None:
        vector.fill(0.0)
        for payload in payloads:
            compressor.decode(payload, vector, 1.0)

    encoding(group, n + touched, work)


#: Entries in a unit of a part: whole words of signs, of ternary digits, of halves and of codes of any width.
UNIT: Final = 320


def sum_halves(group: Group, vector: FloatVector, compressor: Half, memory: Any, rest: FloatVector | None) -> None:
    """Replace `vector` by the sum over ranks of binary16 or bfloat16 payloads, rounded once more."""
    payload = encode(group, vector, compressor, memory, rest)

    n = vector.shape[0]
    ends = _part_ends(n, group.size)
    own = slice(ends[group.rank], ends[group.rank + 1])

    def combine(parts: list[WordVector], place: slice) -> WordVector:
        total = np.zeros(place.stop - place.start, vector.dtype)
        for part in parts:
            compressor.decode(part.view(np.uint8), total, 1.0)
        words: WordVector = compressor.encode(total, memory).view(np.uint64).copy()
        if rest is not None and place == own:
            # The sum is rounded once more; the rank that rounds it keeps the difference.
            rest[own] += total
            compressor.decode(words.view(np.uint8), rest[own], -1.0)
        return words

    words = _by_parts(group, n, payload.view(np.uint64), _half_words, _half_words, combine)
    decode(group, [words.view(np.uint8)], vector, compressor)


def _half_words(n: int) -> int:
    return words_for(16 * n)


def sum_votes(
    group: Group, vector: FloatVector, compressor: MajorityVote, memory: Any, rest: FloatVector | None, *, votes: bool
) -> None:
    """Replace `vector` by the signs of the majority; `votes` says whether this rank has a vote."""
    payload = encode(group, vector, compressor, memory, rest)
    voters = group.allgather(np.array([votes], dtype=np.uint8)).ravel().astype(bool)

    def combine(parts: list[WordVector], place: slice) -> WordVector:
        words = np.empty(words_for(place.stop - place.start), np.uint64)
        bits.count_votes(np.stack(parts)[voters], words)
        return words

    words = _by_parts(group, vector.shape[0], payload.view(np.uint64), words_for, words_for, combine)
    decode(group, [words.view(np.uint8)], vector, compressor)


def sum_ternary(group: Group, vector: FloatVector, compressor: TernGrad, memory: Any, rest: FloatVector | None) -> None:
    """Replace `vector` by the sum over ranks of ternary payloads, all with the largest of their scales."""
    n, size = vector.shape[0], group.size
    own, clip = encoding(group, n, lambda: compressor.bounds(vector))
    scale = np.array([own])
    group.allreduce(scale, "max")
    width = (2 * size).bit_length()

    def pack() -> WordVector:
        words = np.empty(_ternary_words(n), np.uint64)
        quantize.pack_ternary(compressor.digits(vector, float(scale[0]), clip, memory), words)
        return words

    def combine(parts: list[WordVector], place: slice) -> WordVector:
        n = place.stop - place.start
        totals, digits = np.zeros(n, np.uint16), np.empty(n, np.uint8)
        for part in parts:
            quantize.unpack_ternary(part, digits)
            totals += digits
        words = np.empty(words_for(n * width), np.uint64)
        bits.pack_codes(totals, width, words)
        return words

    payload = encoding(group, n, pack)
    words = _by_parts(group, n, payload, _ternary_words, lambda n: words_for(n * width), combine)
    totals = np.empty(n, np.uint16)

    def unpack() -> None:
        bits.unpack_codes(words, width, totals)
        vector.fill(0.0 if np.isfinite(scale[0]) else np.nan)
        # Each digit is one too high.
        quantize.add_codes(totals, size, float(scale[0]), vector)

    encoding(group, 2 * n, unpack)


def _ternary_words(n: int) -> int:
    return -(-n // TERNARY_PER_WORD)


def _part_ends(n: int, size: int) -> list[int]:
    """Return where the parts of n entries begin; size + 1 numbers."""
    units = -(-n // UNIT)
    return [min(n, UNIT * (units * r // size)) for r in range(size + 1)]


def _by_parts(
    group: Group,
    n: int,
    payload: WordVector,
    forward: Callable[[int], int],
    back: Callable[[int], int],
    combine: Callable[[list[WordVector], slice], WordVector],
) -> WordVector:
    """Return the encoded sum of the payloads of all ranks, part r of it made by rank r."""
    rank, size, transport = group.rank, group.size, group.transport
    ends = _part_ends(n, size)
    spans = [slice(forward(a), forward(b)) for a, b in pairwise(ends)]
    if transport.processes:
        payloads = group.allgatherv(payload, [payload.shape[0]] * size)

        def combine_all() -> WordVector:
            pairs = zip(spans, pairwise(ends), strict=True)
            return np.concatenate([combine([whole[span] for whole in payloads], slice(a, b)) for span, (a, b) in pairs])

        return encoding(group, size * n, combine_all)
    n_words = spans[rank].stop - spans[rank].start
    parts = [np.empty(n_words, np.uint64) for _ in range(size)]
    parts[rank][:] = payload[spans[rank]]
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        transport.exchange(to, payload[spans[to]], source, parts[source], OP_SCATTER)
    words = np.empty(back(n), np.uint64)
    places = [back(end) for end in ends]
    own = slice(ends[rank], ends[rank + 1])
    n_own = own.stop - own.start
    words[places[rank] : places[rank + 1]] = encoding(group, size * n_own, lambda: combine(parts, own))
    group.fill(words, places)
    return words


def halves_cost(rank: int, size: int, n: int, *_: Any) -> Cost:
    """Return what `rank` sends in `sum_halves` of n elements."""
    return _parts_cost(rank, size, n, _half_words, _half_words)


def votes_cost(rank: int, size: int, n: int, *_: Any) -> Cost:
    """Return what `rank` sends in `sum_votes` of n elements."""
    return allgatherv_cost(rank, [1] * size, 1, known=True) + _parts_cost(rank, size, n, words_for, words_for)


def ternary_cost(rank: int, size: int, n: int, *_: Any) -> Cost:
    """Return what `rank` sends in `sum_ternary` of n elements."""
    scale = allreduce_cost(rank, size, 1, 8, "recursive_doubling")
    width = (2 * size).bit_length()
    return scale + _parts_cost(rank, size, n, _ternary_words, lambda n: words_for(n * width))


def ternary_bytes(size: int, n: int) -> int:
    """Return what all ranks send in `sum_ternary` of n elements."""
    scale = sum(allreduce_cost(rank, size, 1, 8, "recursive_doubling").n_bytes for rank in range(size))
    width = (2 * size).bit_length()
    # Every rank sends all but its own part, and then all parts of the sum but one.
    n_words = (size - 1) * (_ternary_words(n) + words_for(n * width))
    return scale + WORD_BYTES * n_words + 2 * size * (size - 1) * HEADER_BYTES


def _parts_cost(rank: int, size: int, n: int, forward: Callable[[int], int], back: Callable[[int], int]) -> Cost:
    ends = _part_ends(n, size)
    out = WORD_BYTES * (forward(n) - forward(ends[rank + 1]) + forward(ends[rank])) + (size - 1) * HEADER_BYTES
    sums = [WORD_BYTES * (back(b) - back(a)) for a, b in pairwise(ends)]
    return Cost(out, size - 1) + allgatherv_cost(rank, sums, 1, known=True)


class Entries(NamedTuple):
    """A sparse vector."""

    places: IndexVector
    values: FloatVector


def merge_pair(lower: Entries, upper: Entries, k: int, scratch: Scratch) -> tuple[Entries, Entries]:
    """Return the k largest entries of a sum, and the others."""
    n = lower.places.shape[0] + upper.places.shape[0]
    places = scratch.take("merged places", n, np.uint32)
    values = scratch.take("merged values", n, lower.values.dtype)
    count = merge_ascending(*lower, *upper, places, values)
    places, values = places[:count], values[:count]
    chosen = np.zeros(count, dtype=bool)
    chosen[largest(values, k, k, 0, scratch)] = True
    return Entries(places[chosen], values[chosen]), Entries(places[~chosen], values[~chosen])


def merge_all(parts: list[Entries], k: int, route: str) -> tuple[Entries, list[tuple[int, Entries]]]:
    """Return what all ranks hold in the end, and what was dropped on the way, by the rank that dropped it."""
    size, scratch = len(parts), Scratch()
    dropped: list[tuple[int, Entries]] = []
    held = dict(enumerate(parts))

    def merge(rank: int, upper: int) -> None:
        held[rank], rest = merge_pair(held[rank], held[upper], k, scratch)
        dropped.append((rank, rest))

    ranks = list(range(size))
    if route == "butterfly":
        _, n_folded = fold_of(size)
        for rank in range(0, 2 * n_folded, 2):
            merge(rank, rank + 1)
        ranks = [*range(0, 2 * n_folded, 2), *range(2 * n_folded, size)]
    while len(ranks) > 1:
        # All ranks of a block of a butterfly hold the same set: the lowest acts for them, and keeps dropped entries.
        for rank, upper in zip(ranks[::2], ranks[1::2], strict=False):
            merge(rank, upper)
        ranks = ranks[::2]
    return held[0], dropped


def gtopk_sum(group: Group, vector: FloatVector, compressor: GTopK, memory: GTopKMemory, *_: Any) -> None:
    """Replace `vector`, shape (n,), by the k entries of the sum over ranks that the merges leave; see `GTopK`."""
    n = vector.shape[0]

    def choose() -> Entries:
        places, values = decode_sparse(compressor.encode(vector, memory), n, vector.dtype)
        return Entries(places, values.copy())

    own = encoding(group, n, choose)
    merging = _Merging(group, n, compressor, memory, own.places.shape[0])
    if group.transport.processes:
        total = merging.replayed(own)
    elif compressor.route == "butterfly":
        total = merging.by_butterfly(own)
    else:
        total = merging.by_tree(own)

    def apply() -> None:
        vector.fill(0.0)
        add_at(vector, *total, 1.0)
        if compressor.dropped == "put-back":
            absent = ~np.isin(own.places, total.places, assume_unique=True)
            add_at(memory.residual, own.places[absent], own.values[absent], 1.0)

    encoding(group, n, apply)


class _Merging:
    """The merges of one rank, with their buffers."""

    def __init__(self, group: Group, n: int, compressor: GTopK, memory: GTopKMemory, k: int) -> None:
        self._group, self._n, self._compressor, self._memory = group, n, compressor, memory
        self._scratch = memory.scratch
        dtype = memory.residual.dtype
        # All ranks are at the same vector, so that in a warm-up they send as many entries too.
        self._incoming = memory.scratch.take("incoming", sparse_bytes(k, n, dtype.itemsize), np.uint8)
        self._dtype = dtype

    def by_butterfly(self, own: Entries) -> Entries:
        """Return what all ranks hold after swaps at distances 1, 2, 4, ..."""
        rank, size = self._group.rank, self._group.size
        core, n_folded = fold_of(size)
        folds = rank < 2 * n_folded
        if folds and rank % 2:
            self._exchange(rank - 1, own, None)
            return self._exchange(None, None, rank - 1)
        number, held = rank - n_folded, own
        if folds:
            number = rank // 2
            held = self._merge(held, self._exchange(None, None, rank + 1), keeps=True)
        distance = 1
        while distance < core:
            other = number ^ distance
            peer = 2 * other if other < n_folded else other + n_folded
            theirs = self._exchange(peer, held, peer)
            lower, upper = (held, theirs) if number < other else (theirs, held)
            held = self._merge(lower, upper, keeps=number % (2 * distance) == 0)
            distance *= 2
        if folds:
            self._exchange(rank + 1, held, None)
        return held

    def by_tree(self, own: Entries) -> Entries:
        """Return what rank 0 holds after sends over distances 1, 2, 4, ..., broadcast to all."""
        rank, size = self._group.rank, self._group.size
        held, distance = own, 1
        while distance < size and rank % (2 * distance) == 0:
            if rank + distance < size:
                held = self._merge(held, self._exchange(None, None, rank + distance), keeps=True)
            distance *= 2
        if rank:
            self._exchange(rank - distance, held, None)
            frame = self._incoming
        else:
            frame = encode_sparse(*held, self._n, self._scratch)
        self._group.broadcast(frame)
        return held if rank == 0 else self._decoded(frame)

    def replayed(self, own: Entries) -> Entries:
        """Return what all ranks would hold, from the entries of all of them: every rank does every merge."""
        group = self._group
        frame = encode_sparse(*own, self._n, self._scratch)
        frames = group.allgatherv(frame, [frame.shape[0]] * group.size)
        parts = [self._decoded(frame) for frame in frames]
        total, dropped = merge_all(parts, own.places.shape[0], self._compressor.route)
        for rank, rest in dropped:
            self._keep(rest, keeps=rank == group.rank)
        return total

    def _merge(self, lower: Entries, upper: Entries, *, keeps: bool) -> Entries:
        def work() -> Entries:
            held, rest = merge_pair(lower, upper, lower.places.shape[0], self._scratch)
            self._keep(rest, keeps=keeps)
            return held

        return encoding(self._group, lower.places.shape[0] + upper.places.shape[0], work)

    def _keep(self, rest: Entries, *, keeps: bool) -> None:
        if keeps and self._compressor.dropped == "conserving":
            add_at(self._memory.residual, *rest, 1.0)

    def _exchange(self, to: int | None, outgoing: Entries | None, source: int | None) -> Entries:
        """Send entries and receive others; return those received or, if none were, those sent."""
        frame = None if outgoing is None else encode_sparse(*outgoing, self._n, self._scratch)
        incoming = None if source is None else self._incoming
        self._group.transport.exchange(to, frame, source, incoming, OP_ALLREDUCE)
        if incoming is None and outgoing is not None:
            return outgoing
        return self._decoded(self._incoming)

    def _decoded(self, frame: ByteVector) -> Entries:
        places, values = decode_sparse(frame, self._n, self._dtype)
        # The frame is a buffer that the next one is received into.
        return Entries(places, values.copy())


def gtopk_cost(rank: int, size: int, n: int, itemsize: int, compressor: GTopK) -> Cost | None:
    """Return what `rank` sends in `gtopk_sum` of n elements of `itemsize` bytes; None with a warm-up.

    A butterfly takes ``log2 P`` frames of k entries from each rank (one more from the partner of a rank that is folded,
    one in all from that). A tree takes one up from each rank but the first, and those of a broadcast.
    """
    frame = compressor.payload_bytes(n, itemsize)
    if frame is None:
        return None
    if compressor.route == "butterfly":
        # Frames go to whom recursive doubling sends vectors.
        return allreduce_cost(rank, size, frame, 1, "recursive_doubling")
    down, up = broadcast_cost(rank, size, frame, 1), int(rank > 0)
    return down + Cost(up * (frame + HEADER_BYTES), up)
