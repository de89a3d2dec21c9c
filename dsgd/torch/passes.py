"""How a gradient is computed: rows per pass, precision, clipping.

Accumulation: a batch of n rows goes through the module in parts of at most `rows`; gradients of their mean losses,
weighted by their share of the rows, add up to that of the batch. It costs nothing but shorter matrix products, and the
memory is that of one part. (A batch normalisation sees the parts, not the batch.)

Clipping: the mean gradient g of a step becomes ``g min(1, clip / |g|)``. Where ranks exchange gradients that is the
mean over all ranks, and so the same on all of them.

Half precision: weights stay float32. The passes run under autocast, and the loss is multiplied by a scale S before the
backward pass; gradients are divided by it in float32. If any gradient of any rank is not finite, no rank takes the step
and S is halved; after 2,000 steps in a row that were taken S is doubled. S is a power of two, so that scaling changes
no bit of a gradient that neither overflows nor underflows. bfloat16 has the exponent of float32: there S is 1, and a
non-finite gradient is an error, as in float32.

Ranks must skip together, or their models drift apart for good. If they exchange gradients, the flags of all ranks are
added up first, so that non-finite gradients do not enter the memory of a compressor either. If they exchange models,
each rank skips its own local steps.

Cost: one message of one number a step, with float16 only.

Source: Pascanu, Mikolov and Bengio 2013 (clipping); Micikevicius et al. 2018, section 3 (weights in float32, scaled
loss); the schedule of S is that of torch's ``GradScaler``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import torch

from dsgd.errors import InvalidParameterError
from dsgd.types import FloatVector
from dsgd.validation import check_numbers

#: What the passes compute in.
Precision: TypeAlias = Literal["float32", "bfloat16", "float16"]
_DTYPES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_GROWTH_INTERVAL: Final = 2000
# Places in the vector that is kept with the rest of the state.
_SCALE, _CLEAN, _SKIPPED = range(3)


@dataclass(frozen=True)
class Passes:
    """How gradients are computed, for `TorchClassifier` and `TorchRegressor`.

    Parameters
    ----------
    precision : {"float32", "bfloat16", "float16"}, default "float32"
        What forward and backward passes compute in, where autocast of torch says that it is safe.
    rows : int or None, default None
        Rows that go through the module together; more are accumulated. None is the whole batch.
    clip : float or None, default None
        Longest gradient of a step.
    scale : float, default 65536
        S before the first step, with float16 alone.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    precision: Precision = "float32"
    rows: int | None = None
    clip: float | None = None
    scale: float = 2.0**16

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        if self.precision not in ("float32", *_DTYPES):
            raise InvalidParameterError(
                f"Passes(precision=...) must be 'float32', 'bfloat16' or 'float16'. Got {self.precision!r}."
            )
        check_numbers(self, "rows", low=1, integer=True, optional=True)
        check_numbers(self, "clip", low=0, open_low=True, optional=True)
        check_numbers(self, "scale", low=1)

    @property
    def may_overflow(self) -> bool:
        """Whether gradients may be too long for their numbers."""
        return self.precision == "float16"

    def autocast(self, device: torch.device) -> torch.autocast:
        """Return the context in which a forward pass runs."""
        # What autocast keeps of casts is one store for all threads of a process, which each empties when it is done: of
        # ranks that are threads, one might find the weights of another.
        return torch.autocast(
            device.type,
            dtype=_DTYPES.get(self.precision, torch.float32),
            enabled=self.precision != "float32",
            cache_enabled=False,
        )

    def new_scale(self) -> LossScale:
        """Return the scale of the loss before the first step."""
        return LossScale(np.array([self.scale if self.may_overflow else 1.0, 0.0, 0.0]))


@dataclass(frozen=True)
class LossScale:
    """The scale of the loss.

    - `vector`, shape (3,): s, steps in a row that were taken, steps that were skipped; written in place.
    """

    vector: FloatVector

    @property
    def value(self) -> float:
        """S."""
        return float(self.vector[_SCALE])

    @property
    def n_skipped(self) -> int:
        """Steps that were skipped so far."""
        return int(self.vector[_SKIPPED])

    def update(self, *, is_finite: bool) -> None:
        """Take in whether the gradients of a step were finite."""
        if not is_finite:
            self.vector[_SCALE] = max(1.0, self.vector[_SCALE] / 2.0)
            self.vector[_CLEAN] = 0.0
            self.vector[_SKIPPED] += 1.0
            return
        self.vector[_CLEAN] += 1.0
        if self.vector[_CLEAN] >= _GROWTH_INTERVAL:
            self.vector[_SCALE] *= 2.0
            self.vector[_CLEAN] = 0.0
