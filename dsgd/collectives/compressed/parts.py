"""Sums in parts, of payloads whose sum has an encoding of its own.

Problem: gathering the payloads of many ranks passes more bytes through each of them than whole vectors would.

Update: rank r gets part r of all payloads, sums it and encodes the sum; then all ranks gather the encoded parts.
`Half` rounds the sum once more, and with feedback the rank that rounds keeps the difference. `TernGrad` sums whole
numbers, after the ranks have agreed on the largest scale. `MajorityVote` has a bit for each entry, and a rank of weight
zero no vote. Where ranks are threads of several processes and cannot all reach each other, payloads are gathered and
every rank sums all parts: the same bits, more bytes.

Cost: `halves_cost`, `ternary_cost`, `votes_cost`.

Source: as in Seide et al. 2014 (1-bit SGD, which sums and quantises once more).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import numpy as np

from dsgd.collectives.compressed.encoding import decode, encode, encoding
from dsgd.collectives.cost import Cost, allgatherv_cost, allreduce_cost
from dsgd.collectives.group import Group
from dsgd.comm.frames import HEADER_BYTES, OP_SCATTER
from dsgd.compress import Half, MajorityVote, TernGrad
from dsgd.compress.base import WORD_BYTES, words_for
from dsgd.compress.quantise import TERNARY_PER_WORD
from dsgd.kernels import bits, quantize
from dsgd.types import FloatVector, WordVector

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
    group: Group, vector: FloatVector, votes: bool, compressor: MajorityVote, memory: Any, rest: FloatVector | None
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


def halves_cost(rank: int, size: int, n: int) -> Cost:
    """Return what `rank` sends in `sum_halves` of n elements."""
    return _parts_cost(rank, size, n, _half_words, _half_words)


def votes_cost(rank: int, size: int, n: int) -> Cost:
    """Return what `rank` sends in `sum_votes` of n elements."""
    return allgatherv_cost(rank, [1] * size, 1, known=True) + _parts_cost(rank, size, n, words_for, words_for)


def ternary_cost(rank: int, size: int, n: int) -> Cost:
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
