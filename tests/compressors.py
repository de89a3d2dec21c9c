"""The compressors that the properties of all compressors are held on, and vectors for them."""

from __future__ import annotations

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
