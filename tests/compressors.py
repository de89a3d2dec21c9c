"""The compressors that the properties of all compressors are held on, vectors for them, and twins of their sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dsgd.compress import (
    DGC,
    QSGD,
    AbstractCompressor,
    AdaComp,
    AdaptiveThreshold,
    DeMo,
    ErrorFeedback,
    GTopK,
    Half,
    Identity,
    Layerwise,
    MajorityVote,
    NonZero,
    OneBit,
    PowerSGD,
    RandomK,
    Sign,
    TernGrad,
    Threshold,
    TopK,
)
from dsgd.compress.sparse import stream_of
from dsgd.kernels.quantize import strata
from reference import compression
from reference.trajectories import N_FEATURES

Compressor = AbstractCompressor[Any]

#: A new compressor enters all properties by one line here: itself, and its payload in bits for 1,000 float32.
FAMILY: list[tuple[Compressor, int | None]] = [
    (Identity(), 32_000),
    (TopK(0.01), 64 + 10 * 32 + 64 + 64),  # a count, values, 6 low bits of ten places, 26 bits of high parts
    (TopK(0.01, exact=False), None),
    (NonZero(), None),
    (RandomK(0.1), 64 + 100 * 32),
    (QSGD(7), 2 * 32 + 4032),  # 4 bits and two norms, in whole words
    (QSGD(1, bucket=100), 10 * 32 + 2048),
    (TernGrad(), 64 + 1600),
    (TernGrad(clip=2.5), 64 + 1600),
    (OneBit(bucket=100), 20 * 32 + 1024),
    (Sign(), 64 + 1024),
    (MajorityVote(), 1024),
    (MajorityVote(momentum=0.9), 1024),
    (Half(), 16_000),
    (Half("bfloat16"), 16_000),
    (PowerSGD(2), 2 * 32 * (31 + 33)),
    (AdaComp(50), None),
    (Threshold(0.5), None),
    (AdaptiveThreshold(0.05), None),
    (DGC(0.01), 64 + 10 * 32 + 64 + 64),
    (DGC(0.01, nesterov=True, masking=False, clip=1.0, warm_up=(0.1,), warm_up_rounds=2), None),
    # Two of each of fifteen chunks and of one of 40: 5 low bits of a place, and 32 + 31 + 1 of high parts.
    (DeMo(2, magnitude=None), 64 + 32 * 32 + 192 + 64),
    (GTopK(0.01), 64 + 10 * 32 + 64 + 64),
    (GTopK(0.01, warm_up=(0.1,), warm_up_rounds=2), None),
    (ErrorFeedback(TopK(0.01)), 64 + 10 * 32 + 64 + 64),
    (ErrorFeedback(Sign()), 64 + 1024),
    (ErrorFeedback(OneBit(), decay=0.9), 4 * 32 + 1024),
    (ErrorFeedback(Threshold(0.5)), None),
    (ErrorFeedback(AdaptiveThreshold(0.05)), None),
    (Layerwise({"*": ErrorFeedback(TopK(0.01))}), 64 + 10 * 32 + 64 + 64),
    (Layerwise({"*": NonZero()}), None),
]
COMPRESSORS = [compressor for compressor, _ in FAMILY]
#: Keep what they do not send, and nothing else.
CONSERVING: list[Compressor] = [
    AdaComp(7),
    GTopK(0.1),
    DGC(0.1, momentum=0.0),
    *map(ErrorFeedback, (TopK(0.1), TopK(0.1, exact=False), RandomK(0.2), OneBit(9), Sign(), PowerSGD(1), Half())),
    *map(ErrorFeedback, (Threshold(0.5), AdaptiveThreshold(0.1))),
]


def vector_of(n: int, seed: int, dtype: Any = np.float64) -> np.ndarray:
    """Return numbers of many magnitudes, ties and zeros among them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3, n)
    values[rng.random(n) < 0.2] = 0.0
    return np.where(rng.random(n) < 0.2, np.round(values), values).astype(dtype)


def top(vector: np.ndarray, rank: int, number: int) -> np.ndarray:
    """Return the two largest entries."""
    return compression.top(vector, 2)


def drawn(vector: np.ndarray, rank: int, number: int) -> np.ndarray:
    """Return the entries that all ranks draw, two of them."""
    key, _ = stream_of(0).draw().tolist()
    places = np.empty(2, np.uint32)
    strata(np.array([(key + number * 0xD1342543DE82EF95) % 2**64], dtype=np.uint64), len(vector), places)
    return np.where(np.isin(np.arange(len(vector)), places), vector, 0.0)


def numbers(rank: int, number: int) -> np.ndarray:
    """Return where a rank draws the random numbers of its vectors."""
    return np.array([int(stream_of(0, rank).key[0]), number], dtype=object)


def half(vector: np.ndarray, rank: int, number: int) -> np.ndarray:
    """Return a vector rounded to binary16, by way of single precision."""
    return vector.astype(np.float32).astype(np.float16).astype(float)


def ternary(vector: np.ndarray, rank: int, number: int) -> np.ndarray:
    """Return a vector of minus one, zero and one times its largest magnitude."""
    scale = float(np.abs(vector).max())
    return scale * compression.ternary(vector, scale, numbers(rank, number))


def brain(vector: np.ndarray, rank: int, number: int) -> np.ndarray:
    """Return a vector rounded to bfloat16, by way of single precision."""
    return compression.brain_float(vector.astype(np.float32))


def low_rank() -> Any:
    """Return the sum of matrices of low rank, whose row factors begin as PowerSGD draws them."""
    return compression.LowRank(PowerSGD(1).init(N_FEATURES + 1, np.float64, 0).right.reshape(1, -1))


def fed(send: Callable[..., np.ndarray], decay: float = 1.0) -> Callable[[], Any]:
    """Return what makes a sum with error feedback."""
    return lambda: compression.Feedback(send, decay)


#: Compressors, each with what makes its twin: a sum over ranks in plain numpy. On differences of models and gradients.
SUMS: list[tuple[Compressor, Callable[[], Any]]] = [
    (Identity(), compression.Sum),
    (NonZero(), compression.Sum),
    (ErrorFeedback(TopK(0.3)), fed(top)),
    (ErrorFeedback(TopK(0.3), 0.9), fed(top, 0.9)),
    (ErrorFeedback(RandomK(0.3)), fed(drawn)),
    (ErrorFeedback(Sign()), fed(lambda v, r, k: compression.signed(v))),
    (ErrorFeedback(OneBit(4)), fed(lambda v, r, k: compression.one_bit(v, 4))),
    (ErrorFeedback(Threshold(0.05)), fed(lambda v, r, k: compression.threshold(v, 0.05))),
    (ErrorFeedback(AdaptiveThreshold(0.3)), fed(lambda v, r, k: compression.adaptive_threshold(v, 0.3))),
    (ErrorFeedback(PowerSGD(1)), low_rank),
    (ErrorFeedback(Half()), lambda: compression.Halved(half)),
    (ErrorFeedback(Half("bfloat16")), lambda: compression.Halved(brain)),
    (GTopK(0.3), lambda: compression.Merged(2, "conserving", "butterfly")),
    (GTopK(0.3, "put-back", "tree"), lambda: compression.Merged(2, "put-back", "tree")),
    (AdaComp(3), lambda: compression.Adaptive(3)),
    (QSGD(3, 4), lambda: compression.Unbiased(lambda v, r, k: compression.qsgd(v, 3, 4, numbers(r, k)))),
    (TernGrad(), lambda: compression.Unbiased(ternary)),
    (Layerwise({"*": ErrorFeedback(TopK(0.3))}), fed(top)),
]
_WARM = DGC(0.3, 0.8, nesterov=True, clip=0.9, warm_up=(0.5,), warm_up_rounds=3)
#: Those of gradients alone.
SUMS_OF_GRADIENTS: list[tuple[Compressor, Callable[[], Any]]] = [
    (DGC(0.3, 0.8), lambda: compression.Deep(DGC(0.3, 0.8))),
    (_WARM, lambda: compression.Deep(_WARM)),
    (DeMo(1, 4, 0.9, None), lambda: compression.Decoupled(DeMo(1, 4, 0.9, None))),
    (DeMo(2, 4, 0.9, 0.5), lambda: compression.Decoupled(DeMo(2, 4, 0.9, 0.5))),
    (MajorityVote(0.9, 0.5), lambda: compression.Vote(0.9, 0.5)),
]
