"""Strategies that average models at set times: every so many rows, once an epoch, once, often first and rarely later.

Ranks take sequential SGD steps on their own rows; then ``x_p <- sum_q v_q x_q``, with v the rows of a rank over the sum
of its rates (`dsgd.sync.period`). An epoch ends in an average, except in `OneShotAveraging`. Cost of an average: one
all-reduce of the model, `dsgd.collectives.allreduce_cost`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from dsgd.collectives.group import Group
from dsgd.errors import InvalidParameterError
from dsgd.sync.averaging import MomentumPolicy, weighted_mean
from dsgd.sync.base import AbstractStrategy
from dsgd.sync.compression import AbstractAveraging, Compressor
from dsgd.sync.period import EveryEpoch, EveryRows, OftenThenRarely, Once, Taxonomy
from dsgd.types import FloatVector, IntVector
from dsgd.validation import number


@dataclass(frozen=True)
class LocalSGD(AbstractAveraging):
    """Average the models every `every` samples.

    Problem: averaging after every step costs a message per sample; averaging rarely lets the replicas drift apart. How
    often is best depends on the data and on the wire, so it is a parameter: the model synchronisation frequency.

    Update: after `every` samples of the rank with the most rows, and in proportion on the others, ``x_p <- sum_q v_q
    x_q`` (v: `dsgd.sync.period`), in ``ceil(max rows / every)`` rounds per epoch. With ``overlap`` the mean is applied
    one round late, while the next one is on its way (`dsgd.sync.averaging`).

    Source: Mangasarian 1995; Zinkevich et al. 2010; Stich 2019; Abeykoon, Fox and Kim 2019 (arXiv 1905.01219).

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
        What happens to the momentum of a local rule at an average; see `dsgd.sync.averaging`.
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

    every: int | None = number(None, low=1)
    overlap: bool = False
    momentum: MomentumPolicy = "keep"
    compressor: Compressor = None
    rates: Literal["own", "pooled"] = "own"
    weighs = "rates"
    fuses = True

    def __post_init__(self) -> None:
        """Refuse a period that is not a positive number of samples."""
        super().__post_init__()
        if self.overlap and self.momentum != "keep":
            raise InvalidParameterError(
                f"LocalSGD(overlap=True) needs momentum='keep', because averages arrive late. Got {self.momentum!r}."
            )


@dataclass(frozen=True)
class EpochAveraging(AbstractAveraging):
    """Average the models at the end of every epoch.

    Problem: on a slow wire, or with large shards, even rare averages inside an epoch cost more than they bring. Update:
    every rank walks all its rows, then ``x_p <- sum_q v_q x_q`` with v of `dsgd.sync.period`.

    Source: McDonald, Hall and Mann 2010 (iterative parameter mixing).

    Parameters
    ----------
    momentum : {"keep", "zero", "average"}, default "keep"
        What happens to the momentum of a local rule at an average; see `dsgd.sync.averaging`.
    compressor : AbstractCompressor, "auto" or None, default None
        How the difference from the last common model is encoded; what a biased compressor leaves out is sent later.
        ``"auto"`` sends the changed weights and loses nothing; None sends whole models. See `dsgd.sync.compression`.

    Raises
    ------
    InvalidParameterError
        There is no such policy, or no such compressor.
    IncompatiblePartsError
        The compressor cannot be used for what is exchanged.
    """

    momentum: MomentumPolicy = "keep"
    compressor: Compressor = None
    weighs = "rates"

    @property
    def period(self) -> EveryEpoch:
        """At the end of every epoch."""
        return EveryEpoch()


@dataclass(frozen=True)
class OneShotAveraging(AbstractAveraging):
    """Average the models once, after the last epoch.

    Problem: ranks cannot communicate during training, or one message costs as much as a training run.

    Update: every rank runs SGD on its rows to the end; then, once, ``x_p <- sum_q (n_q / n) x_q``. Until then the
    models of the ranks differ. Early stopping looks at the mean that training would return, one more all-reduce per
    epoch.

    What it returns: the mean of the ranks' own minima, weighted by their rows. With unlike rows that is not the minimum
    of the whole, however small the rate: for ``f_p(x) = a_p (x - m_p)^2 / 2`` it is ``sum_p (n_p / n) m_p``, and not
    ``sum_p n_p a_p m_p / sum_p n_p a_p``. With trainings too short to get there, over many calls of ``partial_fit``,
    the model settles where ``sum_p n_p^2 f_p`` is least.

    With an L1 penalty of strength a the threshold comes after the mean (`dsgd.local.sgd`). With m_p the minimum
    of rank p, g_p the gradient there of all but that penalty, so that ``|g_p| <= a`` and ``g_p = -a sign(m_p)`` where
    m_p is not zero, and U the sum of the rates of a training, a weight is the soft threshold of ``mean(m_p) - U
    mean(g_p)`` by ``a U``. So where all ranks agree on its sign it is the mean of their minima, to the digit; any other
    is zero, but where ``|mean(m_p) - U mean(g_p)| > a U``, which a longer training makes rarer: the non-zeros are those
    that all ranks have in common, not those that any has. Of 16 ranks with 100 rows each of 64 features that is 10
    non-zeros, as on one rank, and an objective 0.5 % above its; where half of the features are on a quarter of the
    ranks, 4 for 10, and 2.9 times as much.

    Cost: one all-reduce of the model per training. Source: Zinkevich, Weimer, Smola and Li 2010, algorithm 3.
    """

    @property
    def period(self) -> Once:
        """At the end of training."""
        return Once()


@dataclass(frozen=True)
class PostLocalSGD(AbstractAveraging):
    """Average the models every `first` rows for some epochs, then every `every` rows.

    Problem: averages matter most while models move fast; later on, rare averages cost less and, on some problems, lead
    to models that generalise better than those of large batches.

    Update: that of `LocalSGD`, every `first` rows in the first `epochs` epochs and every `every` rows after them. That
    is ``ceil(max rows / first)`` rounds per epoch at first, about ``max rows / every`` later.

    Source: Lin, Stich, Patel and Jaggi 2020, algorithm 2; theirs switches at the first cut of the rate, ours after a
    number of epochs.

    Parameters
    ----------
    every : int, default 2048
        Rows of the rank with the most rows between two averages, later.
    first : int, default 128
        The same, at first; at most `every`.
    epochs : int, default 1
        Epochs until the switch.
    momentum : {"keep", "zero", "average"}, default "keep"
        What happens to the momentum of a local rule at an average; the source keeps it.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    every: int = number(2048, low=1)
    first: int = number(128, low=1)
    epochs: int = number(1, low=1)
    momentum: MomentumPolicy = "keep"
    weighs = "rates"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first > self.every:
            raise InvalidParameterError(
                f"PostLocalSGD(first=...) must be at most every={self.every}: often at first, then rarely. "
                f"Got {self.first}."
            )

    @property
    def period(self) -> OftenThenRarely:
        """Every `first` rows for some epochs, then about every `every` rows."""
        return OftenThenRarely(EveryRows(self.first), self.every // self.first, self.epochs)


#: Names of vectors that are not first moments: squares, and counts of steps, by which both moments are corrected.
_SECOND: Final = ("second", "steps", "step", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")


@dataclass
class Averages:
    """How many averages there have been."""

    count: IntVector = field(default_factory=lambda: np.zeros(1, np.int64))


@dataclass(frozen=True)
class DESLOC(AbstractStrategy[Averages]):
    """Average models often, and the moments of local rules at longer periods of their own.

    Problem: local Adam whose moments stay with their ranks drifts, and with its moments averaged as often as its model
    it sends three vectors for one. Moments change more slowly than the model: m halves in ``ln 0.5 / ln beta`` steps.

    Update: after every `every` samples of the rank with the most rows ``x_p <- sum_q v_q x_q``; at every `first`-th of
    these averages m_p likewise, at every `second`-th v_p and the count of steps. With both 1 it is local Adam.

    Cost: ``1 + 1 / first + 1 / second`` all-reduces of the model in the mean, so 1.5 by default and 3 with local Adam.

    Source: Iacob, Sani, Safaryan et al. 2025 (arXiv 2505.22549), algorithm 1, with periods counted in averages of the
    model; the defaults 3 and 6 are theirs.

    Parameters
    ----------
    every : int, default 256
        Samples that the rank with the most rows works on between two averages of the model.
    first : int, default 3
        Averages of the model for one of the first moment: of gradients, or the velocity of `Momentum`.
    second : int, default 6
        Averages of the model for one of the second moment: the squares of gradients.

    Raises
    ------
    InvalidParameterError
        A value is not a positive integer.
    """

    every: int = number(256, low=1)
    first: int = number(3, low=1)
    second: int = number(6, low=1)
    weighs = "rates"
    taxonomy = Taxonomy("decentralised", "synchronous", "model", "all-reduce")

    @property
    def treats_memory(self) -> bool:
        """Yes: moments are averaged."""
        return True

    def init(self, group: Group, params: FloatVector, weight: float) -> Averages:
        """Return a count of no averages."""
        return Averages()

    def sync(self, group: Group, vector: FloatVector, weight: float, state: Averages) -> None:
        """Replace the model by the weighted mean of all models; see `AbstractStrategy.sync`."""
        weighted_mean(group, vector, weight)
        state.count += 1

    def carry_over(self, group: Group, memory: Mapping[str, FloatVector], weight: float, state: Averages) -> None:
        """Average the moments that are due; see `AbstractStrategy.carry_over`."""
        for name, vector in memory.items():
            period = self.second if name.partition(".")[0] in _SECOND else self.first
            if state.count[0] % period == 0:
                weighted_mean(group, vector, weight)
