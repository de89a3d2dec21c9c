"""The weighted mean over ranks of compressed vectors.

Problem: the mean of long vectors on a slow wire; a compressor makes them small, but not every payload can be added to
another one.

Update: ``v <- sum_r w_r v_r``, up to what the compressors leave out; the weight comes in before the compressor, so that
a memory of what was left out is in the unit of the mean, and of all ranks together nothing is lost when their weights
change. Payloads are summed

- by an all-gather, decoded by each rank in the order of ranks: all compressors not listed below;
- by an all-reduce, where the payload of a sum is the sum of payloads: `Identity`, `RandomK`;
- by two all-reduces of factors: `PowerSGD`;
- in parts, if the sum has an encoding of its own: rank r gets part r of all payloads, sums it, encodes the sum (with
  feedback it keeps what that leaves out), and all ranks gather the parts: `Half`, `TernGrad` (whole numbers, after the
  ranks have agreed on the largest scale) and `MajorityVote` (a bit for each entry; a rank of weight zero has no vote);
- pair by pair: `GTopK`, see `dsgd.collectives.compressed.gtopk`;
- whole, if the nonzero entries would take more bytes than the whole vector: `NonZero`;
- decoded, by an all-reduce, if payloads would pass more bytes through a rank than whole vectors do, such as short
  payloads of many ranks that all others must get: those that would be gathered, and `TernGrad`. Not `Half`, because the
  buckets of a sum must be rounded like the whole sum;
- tensor by tensor: `Layerwise`; tensors that are sent whole go together, and so do the factors of all `PowerSGD`.

Every rank decodes the same payloads in the same order, so every bit agrees on all ranks. Where ranks are threads of
several processes and cannot all reach each other, payloads are gathered, and parts summed by everybody: the same bits,
more bytes.

Cost: `compressed_cost`.

Source: those of the compressors; parts as in Seide et al. 2014 (1-bit SGD, which sums and quantises once more).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np

from dsgd.collectives.compressed.encoding import encoding
from dsgd.collectives.compressed.factors import sum_of_factors, sum_together
from dsgd.collectives.compressed.gtopk import Entries, gtopk_cost, gtopk_sum, merge_all
from dsgd.collectives.cost import Cost, allgatherv_cost, allreduce_cost
from dsgd.collectives.group import Group
from dsgd.comm.frames import HEADER_BYTES, OP_SCATTER
from dsgd.comm.wires import inproc
from dsgd.compress import (
    AbstractCompressor,
    ErrorFeedback,
    GTopK,
    Half,
    Identity,
    Layerwise,
    MajorityVote,
    NonZero,
    PowerSGD,
    RandomK,
    TernGrad,
)
from dsgd.compress.base import WORD_BYTES, words_for
from dsgd.compress.sparse import n_entries
from dsgd.compress.terngrad import TERNARY_PER_WORD
from dsgd.kernels import bits, quantize
from dsgd.types import AnyArray, FloatVector, WordVector

__all__ = ["compressed_cost", "compressed_mean", "load_kernels"]

# Entries in a unit of a part: whole words of signs, of ternary digits, of halves and of codes of any width.
_UNIT: Final = 320


def compressed_mean(
    group: Group, vector: FloatVector, weight: float, compressor: AbstractCompressor[Any], memory: Any
) -> None:
    """Replace `vector` by its weighted mean over ranks, as a compressor leaves it; bitwise equal on all of them.

    Parameters
    ----------
    group : Group
        The ranks of the gang.
    vector : array, shape (n,)
        This rank's vector.
    weight : float
        Its share; the shares of a gang add up to one.
    compressor : AbstractCompressor
        The same on all ranks.
    memory : AbstractMemory
        What ``compressor.init`` has returned for this rank; updated in place.

    Raises
    ------
    ProtocolError
        What a peer sent is no payload of such a vector.
    """
    if isinstance(compressor, Layerwise):
        _mean_by_layer(group, vector, weight, compressor, memory)
        return
    _weigh(vector, weight)
    rest = None
    if isinstance(compressor, ErrorFeedback):
        compressor.accumulate(vector, memory)
        rest, compressor, memory = memory.residual, compressor.compressor, memory.inner
        vector[:] = rest
    if isinstance(compressor, MajorityVote):
        _sum_votes(group, vector, weight > 0.0, compressor, memory, rest)
    elif group.size > 1 and _outweighs(group.size, vector.shape[0], vector.itemsize, compressor):
        _sum_decoded(group, vector, compressor, memory, rest)
    else:
        add_up: Callable[..., None] = _SUMS.get(type(compressor), _sum_gathered)
        add_up(group, vector, compressor, memory, rest)


def _weigh(vector: FloatVector, weight: float) -> None:
    if weight == 0.0:
        # 0 * inf is not 0: an empty rank must not be able to spoil the mean.
        vector.fill(0.0)
    elif weight != 1.0:
        vector *= float(weight)


def load_kernels(compressor: AbstractCompressor[Any], dtype: Any) -> None:
    """Compile or load what `compressed_mean` runs for vectors of a dtype, so that no peer waits for it later."""
    if isinstance(compressor, Layerwise):
        for each in compressor.compressors:
            load_kernels(each, dtype)
        return
    n = 2 * _UNIT
    alone = Group(inproc.connect(1)[0])
    compressed_mean(alone, np.ones(n, dtype), 0.5, compressor, compressor.init(n, dtype, 0))
    if isinstance(compressor, GTopK):
        places = np.arange(2, dtype=np.uint32)
        merge_all([Entries(places, np.ones(2, dtype))] * 2, 1, compressor.route)


def _encode(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> AnyArray:
    """Return the payload of a vector, and subtract it from the remainder."""

    def work() -> AnyArray:
        payload: AnyArray = compressor.encode(vector, memory)
        if rest is not None:
            compressor.decode(payload, rest, -1.0)
        return payload

    return encoding(group, vector.shape[0] * (1 if rest is None else 2), work)


def _decode(group: Group, payloads: list[AnyArray], vector: FloatVector, compressor: Any) -> None:
    """Replace a vector by the sum of what payloads hold, added in their order."""
    n, itemsize = vector.shape[0], vector.itemsize
    # A payload of places and values is about as long as its entries are many; all others hold the whole vector.
    touched = sum(min(n, payload.nbytes // itemsize) if compressor.sparse else n for payload in payloads)

    def work() -> None:
        vector.fill(0.0)
        for payload in payloads:
            compressor.decode(payload, vector, 1.0)

    encoding(group, n + touched, work)


def _sum_gathered(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> None:
    payload = _encode(group, vector, compressor, memory, rest)
    known = compressor.payload_bytes(vector.shape[0], vector.itemsize)
    if known is not None:
        lengths = [known] * group.size
    else:
        lengths = group.allgather(np.array([payload.shape[0]], dtype=np.int64)).ravel().tolist()
        gathered = sum(allgatherv_cost(rank, lengths, 1, known=True).n_bytes for rank in range(group.size))
        if gathered > _whole_bytes(group.size, vector.shape[0], vector.itemsize):
            _decode(group, [payload], vector, compressor)
            group.allreduce(vector)
            return
    _decode(group, group.allgatherv(payload, lengths), vector, compressor)


def _sum_decoded(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> None:
    _decode(group, [_encode(group, vector, compressor, memory, rest)], vector, compressor)
    group.allreduce(vector)


def _sum_nonzero(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> None:
    payload = _encode(group, vector, compressor, memory, rest)
    lengths = group.allgather(np.array([payload.shape[0]], dtype=np.int64)).ravel().tolist()
    # What an all-gather passes through each rank, against what an all-reduce does.
    if sum(lengths) < 2 * vector.nbytes:
        _decode(group, group.allgatherv(payload, lengths), vector, compressor)
    else:
        group.allreduce(vector)


def _sum_whole(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> None:
    group.allreduce(vector)


def _sum_random(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> None:
    payload = _encode(group, vector, compressor, memory, rest)
    # The first word says which entries were drawn: the same on all ranks.
    group.allreduce(payload[WORD_BYTES:].view(vector.dtype)[: n_entries(vector.shape[0], compressor.density)])
    _decode(group, [payload], vector, compressor)


def _sum_power(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> None:
    sum_of_factors(group, [(vector, compressor, memory, rest)])


def _mean_by_layer(group: Group, vector: FloatVector, weight: float, compressor: Layerwise, memory: Any) -> None:
    whole: list[FloatVector] = []
    matrices: list[tuple[FloatVector, PowerSGD, Any, FloatVector | None]] = []
    for part, own in zip(compressor.parts(vector.shape[0]), memory.parts, strict=True):
        tensor, inner = vector[part.place], part.compressor
        if isinstance(inner, Identity):
            _weigh(tensor, weight)
            whole.append(tensor)
        elif isinstance(inner, ErrorFeedback) and isinstance(inner.compressor, PowerSGD):
            _weigh(tensor, weight)
            inner.accumulate(tensor, own)
            tensor[:] = own.residual
            matrices.append((tensor, inner.compressor, own.inner, own.residual))
        else:
            compressed_mean(group, tensor, weight, inner, own)
    if whole:
        sum_together(group, whole)
    if matrices:
        sum_of_factors(group, matrices)


def _sum_halves(group: Group, vector: FloatVector, compressor: Half, memory: Any, rest: FloatVector | None) -> None:
    payload = _encode(group, vector, compressor, memory, rest)

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
    _decode(group, [words.view(np.uint8)], vector, compressor)


def _half_words(n: int) -> int:
    return words_for(16 * n)


def _sum_votes(
    group: Group, vector: FloatVector, votes: bool, compressor: MajorityVote, memory: Any, rest: FloatVector | None
) -> None:
    payload = _encode(group, vector, compressor, memory, rest)
    voters = group.allgather(np.array([votes], dtype=np.uint8)).ravel().astype(bool)

    def combine(parts: list[WordVector], place: slice) -> WordVector:
        words = np.empty(words_for(place.stop - place.start), np.uint64)
        bits.count_votes(np.stack(parts)[voters], words)
        return words

    words = _by_parts(group, vector.shape[0], payload.view(np.uint64), words_for, words_for, combine)
    _decode(group, [words.view(np.uint8)], vector, compressor)


def _sum_ternary(
    group: Group, vector: FloatVector, compressor: TernGrad, memory: Any, rest: FloatVector | None
) -> None:
    n, size = vector.shape[0], group.size
    own, clip = encoding(group, n, lambda: compressor.bounds(vector))
    scale = np.array([own])
    group.allreduce(scale, "max")
    width = (2 * size).bit_length()

    def encode() -> WordVector:
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

    payload = encoding(group, n, encode)
    words = _by_parts(group, n, payload, _ternary_words, lambda n: words_for(n * width), combine)
    totals = np.empty(n, np.uint16)

    def decode() -> None:
        bits.unpack_codes(words, width, totals)
        vector.fill(0.0 if np.isfinite(scale[0]) else np.nan)
        # Each digit is one too high.
        quantize.add_codes(totals, size, float(scale[0]), vector)

    encoding(group, 2 * n, decode)


def _ternary_words(n: int) -> int:
    return -(-n // TERNARY_PER_WORD)


def _part_ends(n: int, size: int) -> list[int]:
    """Return where the parts of n entries begin; size + 1 numbers."""
    units = -(-n // _UNIT)
    return [min(n, _UNIT * (units * r // size)) for r in range(size + 1)]


def _by_parts(
    group: Group,
    n: int,
    payload: WordVector,
    forward: Callable[[int], int],
    back: Callable[[int], int],
    combine: Callable[[list[WordVector], slice], WordVector],
) -> WordVector:
    """Return the encoded sum of the payloads of all ranks, part r of it made by rank r.

    Parameters
    ----------
    group : Group
        The ranks.
    n : int
        Entries.
    payload : array of uint64, shape (forward(n),)
        This rank's.
    forward, back : callable
        Words of a payload, and of a sum, for so many entries.
    combine : callable
        Takes the same part of all payloads and its place in the vector; returns the words of the sum.
    """
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


def _sum_merged(group: Group, vector: FloatVector, compressor: GTopK, memory: Any, rest: FloatVector | None) -> None:
    gtopk_sum(group, vector, compressor, memory)


_SUMS: Final[dict[type, Callable[..., None]]] = {
    GTopK: _sum_merged,
    Half: _sum_halves,
    Identity: _sum_whole,
    NonZero: _sum_nonzero,
    PowerSGD: _sum_power,
    RandomK: _sum_random,
    TernGrad: _sum_ternary,
}


# Their sum differs from that of the decoded vectors, or never takes more bytes.
_SUMMED_AS_PAYLOADS: Final = (GTopK, Half, Identity, Layerwise, MajorityVote, NonZero, PowerSGD, RandomK)


def compressed_cost(rank: int, size: int, n: int, itemsize: int, compressor: AbstractCompressor[Any]) -> Cost | None:
    """Return what `rank` sends in `compressed_mean` of n elements, where all ranks reach each other on one host.

    Parameters
    ----------
    rank, size : int
        The rank, and how many there are.
    n, itemsize : int
        Elements of the vector, and bytes of each.
    compressor : AbstractCompressor
        The compressor.

    Returns
    -------
    Cost or None
        Bytes and messages; None where they depend on the vectors.
    """
    if isinstance(compressor, ErrorFeedback):
        return compressed_cost(rank, size, n, itemsize, compressor.compressor)
    if size == 1:
        return Cost(0, 0)
    if _outweighs(size, n, itemsize, compressor):
        return allreduce_cost(rank, size, n, itemsize)
    return _payload_cost(rank, size, n, itemsize, compressor)


@lru_cache(maxsize=256)
def _outweighs(size: int, n: int, itemsize: int, compressor: AbstractCompressor[Any]) -> bool:
    """Return whether payloads that can as well be summed decoded would cost more than that; the same on every rank."""
    if isinstance(compressor, _SUMMED_AS_PAYLOADS):
        return False
    costs = [_payload_cost(rank, size, n, itemsize, compressor) for rank in range(size)]
    n_bytes = sum(cost.n_bytes for cost in costs if cost is not None)
    return n_bytes > _whole_bytes(size, n, itemsize)


@lru_cache(maxsize=256)
def _whole_bytes(size: int, n: int, itemsize: int) -> int:
    """Return what all ranks send in an all-reduce of whole vectors."""
    return sum(allreduce_cost(rank, size, n, itemsize).n_bytes for rank in range(size))


def _payload_cost(rank: int, size: int, n: int, itemsize: int, compressor: AbstractCompressor[Any]) -> Cost | None:
    """Return what `rank` sends where payloads are summed."""
    costs: list[Cost]
    if isinstance(compressor, Layerwise):
        return _layerwise_cost(rank, size, n, itemsize, compressor)
    if isinstance(compressor, GTopK):
        costs = [gtopk_cost(rank, size, n, itemsize, compressor)]
    elif isinstance(compressor, Identity):
        costs = [allreduce_cost(rank, size, n, itemsize)]
    elif isinstance(compressor, RandomK):
        costs = [allreduce_cost(rank, size, n_entries(n, compressor.density), itemsize)]
    elif isinstance(compressor, PowerSGD):
        costs = [allreduce_cost(rank, size, int(compressor.rank) * side, itemsize) for side in compressor.shape(n)]
    elif isinstance(compressor, Half):
        costs = [_parts_cost(rank, size, n, _half_words, _half_words)]
    elif isinstance(compressor, MajorityVote):
        flags = allgatherv_cost(rank, [1] * size, 1, known=True)
        costs = [flags, _parts_cost(rank, size, n, words_for, words_for)]
    elif isinstance(compressor, TernGrad):
        width = (2 * size).bit_length()
        scale = allreduce_cost(rank, size, 1, 8, "recursive_doubling")
        costs = [scale, _parts_cost(rank, size, n, _ternary_words, lambda n: words_for(n * width))]
    else:
        known = compressor.payload_bytes(n, itemsize)
        if known is None:
            return None
        costs = [allgatherv_cost(rank, [known] * size, 1, known=True)]
    return Cost(sum(cost.n_bytes for cost in costs), sum(cost.messages for cost in costs))


def _layerwise_cost(rank: int, size: int, n: int, itemsize: int, compressor: Layerwise) -> Cost | None:
    whole, lefts, rights = [], [], []
    costs: list[Cost | None] = []
    for part in compressor.parts(n):
        length, inner = part.place.stop - part.place.start, part.compressor
        if isinstance(inner, Identity):
            whole.append(length)
        elif isinstance(inner, ErrorFeedback) and isinstance(inner.compressor, PowerSGD):
            left, right = (int(inner.compressor.rank) * side for side in inner.compressor.shape(length))
            lefts.append(left)
            rights.append(right)
        else:
            costs.append(compressed_cost(rank, size, length, itemsize, inner))
    costs += [allreduce_cost(rank, size, sum(lengths), itemsize) for lengths in (whole, lefts, rights) if lengths]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return None
    return Cost(sum(cost.n_bytes for cost in known), sum(cost.messages for cost in known))


def _parts_cost(rank: int, size: int, n: int, forward: Callable[[int], int], back: Callable[[int], int]) -> Cost:
    ends = _part_ends(n, size)
    out = WORD_BYTES * (forward(n) - forward(ends[rank + 1]) + forward(ends[rank])) + (size - 1) * HEADER_BYTES
    sums = [WORD_BYTES * (back(b) - back(a)) for a, b in pairwise(ends)]
    gathered = allgatherv_cost(rank, sums, 1, known=True)
    return Cost(out + gathered.n_bytes, size - 1 + gathered.messages)
