"""The weighted mean over ranks of compressed vectors.

Problem: the mean of long vectors on a slow wire; a compressor makes them small, but not every payload can be added to
another one.

Update: ``v <- sum_r w_r v_r``, up to what the compressors leave out; the weight comes in before the compressor, so that
a memory of what was left out is in the unit of the mean, and of all ranks together nothing is lost when their weights
change. Payloads are summed

- by an all-gather, decoded by each rank in the order of ranks: all compressors not listed below;
- by an all-reduce, where the payload of a sum is the sum of payloads: `Identity`, `RandomK`;
- by two all-reduces of factors: `PowerSGD`;
- in parts, if the sum has an encoding of its own, see `dsgd.collectives.compressed.parts`: `Half`, `TernGrad` and
  `MajorityVote`;
- pair by pair: `GTopK`, see `dsgd.collectives.compressed.gtopk`;
- whole, if the nonzero entries would take more bytes than the whole vector: `NonZero`;
- decoded, by an all-reduce, if payloads would pass more bytes through a rank than whole vectors do, such as short
  payloads of many ranks that all others must get: those that would be gathered, and `TernGrad`. Not `Half`, because the
  buckets of a sum must be rounded like the whole sum;
- tensor by tensor: `Layerwise`; tensors that are sent whole go together, and so do the factors of all `PowerSGD`.

Every rank decodes the same payloads in the same order, so every bit agrees on all ranks.

Cost: `dsgd.collectives.compressed_cost`.

Source: those of the compressors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from dsgd.collectives.compressed.cost import outweighs, whole_bytes
from dsgd.collectives.compressed.encoding import decode, encode
from dsgd.collectives.compressed.factors import sum_of_factors, sum_together
from dsgd.collectives.compressed.gtopk import Entries, gtopk_sum, merge_all
from dsgd.collectives.compressed.parts import UNIT, sum_halves, sum_ternary, sum_votes
from dsgd.collectives.cost import allgathered_bytes
from dsgd.collectives.group import Group
from dsgd.comm.wires import inproc
from dsgd.compress import (
    AbstractCompressor,
    DeMo,
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
from dsgd.compress.base import WORD_BYTES
from dsgd.compress.sparse import n_entries
from dsgd.types import FloatVector


def compressed_mean(
    group: Group, vector: FloatVector, weight: float, compressor: AbstractCompressor[Any], memory: Any
) -> None:
    """Replace `vector` by its weighted mean over ranks, as a compressor leaves it; bitwise equal on all of them."""
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
        sum_votes(group, vector, weight > 0.0, compressor, memory, rest)
    elif group.size > 1 and outweighs(group.size, vector.shape[0], vector.itemsize, compressor):
        _sum_decoded(group, vector, compressor, memory, rest)
    else:
        add_up: Callable[..., None] = _SUMS.get(type(compressor), _sum_gathered)
        add_up(group, vector, compressor, memory, rest)
    if isinstance(compressor, DeMo):
        compressor.finish(vector)


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
    n = 2 * UNIT
    alone = Group(inproc.connect(1)[0])
    compressed_mean(alone, np.ones(n, dtype), 0.5, compressor, compressor.init(n, dtype, 0))
    if isinstance(compressor, GTopK):
        places = np.arange(2, dtype=np.uint32)
        merge_all([Entries(places, np.ones(2, dtype))] * 2, 1, compressor.route)


def _sum_gathered(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> None:
    payload = encode(group, vector, compressor, memory, rest)
    known = compressor.payload_bytes(vector.shape[0], vector.itemsize)
    if known is not None:
        lengths = [known] * group.size
    else:
        lengths = group.allgather(np.array([payload.shape[0]], dtype=np.int64)).ravel().tolist()
        if allgathered_bytes(lengths, 1) > whole_bytes(group.size, vector.shape[0], vector.itemsize):
            decode(group, [payload], vector, compressor)
            group.allreduce(vector)
            return
    decode(group, group.allgatherv(payload, lengths), vector, compressor)


def _sum_decoded(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> None:
    decode(group, [encode(group, vector, compressor, memory, rest)], vector, compressor)
    group.allreduce(vector)


def _sum_nonzero(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> None:
    payload = encode(group, vector, compressor, memory, rest)
    lengths = group.allgather(np.array([payload.shape[0]], dtype=np.int64)).ravel().tolist()
    # What an all-gather passes through each rank, against what an all-reduce does.
    if sum(lengths) < 2 * vector.nbytes:
        decode(group, group.allgatherv(payload, lengths), vector, compressor)
    else:
        group.allreduce(vector)


def _sum_whole(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> None:
    group.allreduce(vector)


def _sum_random(group: Group, vector: FloatVector, compressor: Any, memory: Any, rest: FloatVector | None) -> None:
    payload = encode(group, vector, compressor, memory, rest)
    # The first word says which entries were drawn: the same on all ranks.
    group.allreduce(payload[WORD_BYTES:].view(vector.dtype)[: n_entries(vector.shape[0], compressor.density)])
    decode(group, [payload], vector, compressor)


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


def _sum_merged(group: Group, vector: FloatVector, compressor: GTopK, memory: Any, rest: FloatVector | None) -> None:
    gtopk_sum(group, vector, compressor, memory)


_SUMS: Final[dict[type, Callable[..., None]]] = {
    GTopK: _sum_merged,
    Half: sum_halves,
    Identity: _sum_whole,
    NonZero: _sum_nonzero,
    PowerSGD: _sum_power,
    RandomK: _sum_random,
    TernGrad: sum_ternary,
}
