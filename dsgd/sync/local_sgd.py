"""Local SGD: ranks take steps of their own and average their models every so many rows.

Problem: averaging after every step costs a message per sample; averaging rarely lets the replicas drift apart. How
often is best depends on the data and on the wire, so it is a parameter: the model synchronisation frequency.

Update: every rank takes sequential SGD steps on its rows; after `every` samples of the rank with the most rows (and in
proportion on the others) ``x_p <- sum_q v_q x_q``, v the rows of a rank over the sum of its rates
(`dsgd.sync.weighing`). An epoch always ends in an average. With ``overlap`` the mean
is applied one round late, while the next one is on its way (`dsgd.sync.delayed`).

Cost per round: one all-reduce of the model, `dsgd.collectives.allreduce_cost`; ``ceil(max rows / every)`` rounds per
epoch.

Source: Mangasarian 1995; Zinkevich et al. 2010; Stich 2019; Abeykoon, Fox and Kim 2019 (arXiv 1905.01219).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dsgd.errors import InvalidParameterError
from dsgd.sync.compression import AbstractAveraging, Compressor, check_compressor
from dsgd.sync.momentum import MomentumPolicy, check_momentum
from dsgd.validation import check_bool, check_choice

__all__ = ["LocalSGD"]


@dataclass(frozen=True)
class LocalSGD(AbstractAveraging):
    """Average the models every `every` samples.

    Parameters
    ----------
    every : int or None, default None
        Samples that the rank with the most rows works on between two averages. A number beyond its rows means one
        average per epoch. None is 1,024; and on sparse rows as many as hold four entries for every weight, if these
        are more: an average takes as long as the model is wide, and rows of few entries change little of it.
    overlap : bool, default False
        Whether the models of a round are exchanged while the ranks work on the next one. Use it where the wire takes as
        long as the work. Ranks wait for the last average of an epoch.
    momentum : {"keep", "zero", "average"}, default "keep"
        What happens to the momentum of a local rule at an average; see `dsgd.sync.momentum`.
    compressor : AbstractCompressor, "auto" or None, default None
        How the difference from the last common model is encoded; what a biased compressor leaves out is sent later.
        ``"auto"`` sends the changed weights and loses nothing; None sends whole models. See `dsgd.sync.compression`.
    rates : {"own", "pooled"}, default "own"
        ``"own"``: a rank steps at the rates of its own schedule, as in the papers. Unless these fall like 1 / t, P
        ranks get less far in an epoch than one, at constant rates a P-th of the way. ``"pooled"``: raises the rates of
        plain steps by row to compensate, as far as rows of that length allow; see `dsgd.local.SGD.pooled_factor`.

    Raises
    ------
    InvalidParameterError
        `every` is not a positive integer, `overlap` is not a bool, there are no such rates, or momentum is carried over
        while averages overlap.
    IncompatiblePartsError
        The compressor does not go with what is exchanged, or with `overlap`.
    """

    every: int | None = None
    overlap: bool = False
    momentum: MomentumPolicy = "keep"
    compressor: Compressor = None
    rates: Literal["own", "pooled"] = "own"
    weighs = "rates"
    fuses = True

    def __post_init__(self) -> None:
        """Refuse a period that is not a positive number of samples."""
        is_number = isinstance(self.every, (int, np.integer)) and not isinstance(self.every, bool)
        if self.every is not None and not (is_number and self.every >= 1):
            raise InvalidParameterError(
                f"LocalSGD(every=...) must be a positive number of samples, or None. Got {self.every!r}."
            )
        check_bool("LocalSGD(overlap=...)", self.overlap)
        check_momentum(self)
        if self.overlap and self.momentum != "keep":
            raise InvalidParameterError(
                f"LocalSGD(overlap=True) needs momentum='keep', because averages arrive late. Got {self.momentum!r}."
            )
        check_choice("LocalSGD(rates=...)", self.rates, ("own", "pooled"))
        check_compressor(self)
