"""Periods of synchronisation, weights of ranks, and the taxonomy of strategies.

**The weights of ranks in a mean of models.** A round gives a rank with more rows more steps, so its model has moved
further. A mean weighted by rows counts them twice: with a constant rate it settles where ``sum_p n_p^2 f_p`` is least,
f_p being the mean loss of the n_p rows of rank p, and not where ``sum_p n_p f_p`` is.

Update: what rank p changes is, to first order in the rate, ``-S_p grad f_p`` with S_p the sum of the rates of its
steps. So ranks count by their rows over that sum::

    v_p = (n_p / S_p) / sum_q (n_q / S_q),      x <- sum_q v_q x_q

With a constant rate all ranks that have rows get equal weights. With rates that fall like 1 / t the sums of an epoch
become equal, and ranks are weighted by their rows. The v_p add up to one and none is negative, so that the mean is
between the models whatever the steps were. The sums are planned for a whole epoch and hold for all of its rounds,
because a rank with few rows has none in most rounds.

Where ranks have equal weights by design (neighbours in a graph, springs, a server that adds up), a rank multiplies the
change of its steps in a round by ``P v_p``, so that the mean over ranks moves as above. Cost: none; which rank takes
which steps is known to all.

Source: Wang, Liu, Liang, Joshi and Poor 2020 (FedNova, equation 5: changes over the sums of their rates). There the
mean of the normalised changes is stretched by a mean of the numbers of steps, so that weights add up to more than one;
here it is scaled such that they add up to one: a mean of models that have gone all the way to minima of their own is
then between them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from dsgd.types import FloatVector, IntVector
from dsgd.validation import Checked, number

Parallelism: TypeAlias = Literal["data", "model"]
Optimisation: TypeAlias = Literal["centralised", "decentralised"]
Scheduling: TypeAlias = Literal["synchronous", "bounded", "asynchronous"]
Sent: TypeAlias = Literal["gradient", "model", "change", "nothing"]
Pattern: TypeAlias = Literal["all-reduce", "broadcast", "gossip", "pairs", "server", "shared memory"]


@dataclass(frozen=True)
class Taxonomy(Checked):
    """What kind of method a strategy is.

    Problem: names of methods do not say how they differ. A few questions do: what is split over machines, whether there
    is one model or one for each rank, who waits for whom, what is sent, and to whom.

    The words are those of the survey, with two departures. What it calls an exchange and a topology is one word here,
    the pattern. And an asynchronous method is "bounded" only where a rule bounds how old vectors may be, not where they
    are seldom old in practice.

    The laws hold what is declared against simulated gangs (``tests/laws/test_taxonomy.py``), and the table of the
    documentation is made of it (``docs/figures/taxonomy.py``). Source: Langer, He, Rahayu and Xue 2020, sections 3 to
    6.

    Parameters
    ----------
    optimisation : {"centralised", "decentralised"}
        ``"centralised"``: there is one model, which all ranks compute gradients or changes for, be it on a server or in
        equal copies. ``"decentralised"``: each rank optimises a model of its own, and models are brought together.
    scheduling : {"synchronous", "bounded", "asynchronous"}
        ``"synchronous"``: in every round a rank waits for those it exchanges with, and vectors are of this round.
        ``"bounded"``: what it uses of others may be a given number of rounds old. ``"asynchronous"``: it waits for no
        other worker within an epoch.
    sends : {"gradient", "model", "change", "nothing"}
        The vector that a rank sends: a gradient, a model, or a difference of models. Numbers beside it do not count.
    pattern : {"all-reduce", "broadcast", "gossip", "pairs", "server", "shared memory"}
        Who exchanges with whom. ``"all-reduce"``: all ranks, for a sum that all get. ``"broadcast"``: one rank sends to
        others. ``"gossip"``: each with its neighbours in a graph. ``"pairs"``: two at a time. ``"server"``: workers
        with a rank that has no rows.
    parallelism : {"data", "model"}, default "data"
        ``"data"``: ranks have rows of their own and a whole model. All strategies are of this kind; for the other see
        `dsgd.sim.scaling`.

    Raises
    ------
    InvalidParameterError
        A word is none of those.
    """

    optimisation: Optimisation
    scheduling: Scheduling
    sends: Sent
    pattern: Pattern
    parallelism: Parallelism = "data"


#: What ranks count by in a mean of models: their rows; their rows over the sums of their rates; or all alike, with what
#: their steps have changed scaled instead.
Weighing: TypeAlias = Literal["rows", "rates", "alike"]


def mean_shares(rows: Sequence[int] | IntVector, rate_sums: FloatVector) -> FloatVector:
    """Return v, shape (size,), which adds up to one; shares of the rows where the sums of ranks with rows are equal.

    Parameters
    ----------
    rows : sequence of int, length size
        Rows of each rank.
    rate_sums : array of float64, shape (size,)
        Sum of the rates of the steps of each rank in an epoch, up to a factor that all have in common.
    """
    n = np.asarray(rows, dtype=np.float64)
    if not n.any():
        return np.full(len(n), 1.0 / len(n))
    has_rows = n > 0
    sums = rate_sums[has_rows]
    shares: FloatVector = n
    if not (sums == sums[0]).all() and np.isfinite(sums).all() and (sums > 0.0).all():
        shares = np.zeros_like(n)
        shares[has_rows] = n[has_rows] / sums
        shares /= shares.max()
    shares /= shares.sum()
    return shares


#: Entries that a weight meets on average, at least, in a round whose length nobody has chosen: a rank reads the entries
#: of its rows once in a round, and all weights a few times.
ENTRIES_PER_WEIGHT: Final = 4.0


class RoundClock(NamedTuple):
    """Where a rank is in training, when it asks whether a synchronisation is due.

    Parameters
    ----------
    epoch : int
        Epoch, from 0.
    round : int
        Round inside the epoch, from 0.
    rounds : int
        Rounds in an epoch.
    is_last : bool
        Whether this is the last round of the whole training.
    """

    epoch: int
    round: int
    rounds: int
    is_last: bool

    @property
    def ends_epoch(self) -> bool:
        """Whether this is the last round of its epoch."""
        return self.round == self.rounds - 1


@dataclass(frozen=True)
class Cut:
    """How the rest of an epoch is cut into rounds, equally on all ranks.

    Parameters
    ----------
    starts : tuple of int, length world size
        The row of each rank at which it begins; zeros for a whole epoch.
    rounds : int
        Into how many rounds it is cut.
    """

    starts: tuple[int, ...]
    rounds: int

    @classmethod
    def whole(cls, rows: Sequence[int], rounds: int) -> Cut:
        """Return the cut of a whole epoch of ranks with these rows."""
        return cls((0,) * len(rows), rounds)

    def span(self, rank: int, n_rows: int, first: int, last: int) -> tuple[int, int]:
        """Return the rows (start, stop) of a rank with `n_rows` in rounds first..last, the last included.

        Round k is for rows ``a + (n - a) k // rounds`` to ``a + (n - a) (k + 1) // rounds``, with a the row at which
        the rank begins.
        """
        begin = self.starts[rank]
        left = n_rows - begin
        return begin + left * first // self.rounds, begin + left * (last + 1) // self.rounds

    def after(self, number: int, rows: Sequence[int], every: int) -> Cut:
        """Cut the rest of the epoch, from round `number` on, into rounds of `every` rows or a little less.

        Parameters
        ----------
        number : int
            The round of this cut that comes next.
        rows : sequence of int
            Rows of each rank.
        every : int
            Rows of the rank with the most rows left, between two synchronisations.
        """
        starts = tuple(self.span(rank, n, number, number)[0] for rank, n in enumerate(rows))
        most = max(n - start for n, start in zip(rows, starts, strict=True))
        return Cut(starts, max(1, -(-most // every)))


class AbstractPeriod(Checked, ABC):
    """A period: when ranks synchronise.

    A period is a pure function of the rows of all ranks and of the progress of training. All ranks call it with the
    same arguments and so agree without a message. With a strategy that finds its period during training
    (`dsgd.sync.base.AbstractAdaptation`), the rest of an epoch is cut into new rounds.
    """

    @abstractmethod
    def rounds_per_epoch(self, rows: list[int]) -> int:
        """Return into how many rounds an epoch is cut.

        Parameters
        ----------
        rows : list of int, length world size
            Rows of each rank.
        """

    def rounds_in_epoch(self, rows: list[int], epoch: int) -> int:
        """Return into how many rounds an epoch is cut, from 0: all into as many, unless the period changes."""
        return self.rounds_per_epoch(rows)

    def is_due(self, clock: RoundClock) -> bool:
        """Return whether the ranks synchronise at the end of this round, as they do of all; the same on every rank."""
        return True

    @property
    def is_always_due(self) -> bool:
        """Whether every round ends with an exchange, since `is_due` is the one above."""
        return type(self).is_due is AbstractPeriod.is_due

    def on_rows_of(self, density: float) -> AbstractPeriod:
        """Return the period on rows of this density, which is this one unless it depends on them.

        Parameters
        ----------
        density : float
            Stored entries of the rows of all ranks over rows times columns; 1 for dense rows.
        """
        return self


@dataclass(frozen=True)
class EveryRows(AbstractPeriod):
    """After every n rows of the rank with the most rows, and at the end of an epoch.

    Parameters
    ----------
    n : int, default 1024
        Rows; a number beyond those of all ranks means once per epoch.
    per_weight : float, default 0
        Entries that a weight meets in a round, on average, at least: on sparse rows a round is as long as that takes
        (`on_rows_of`), if that is longer.

    Raises
    ------
    InvalidParameterError
        `n` is not a positive integer, or `per_weight` is negative.

    Examples
    --------
    >>> EveryRows(1024, per_weight=4.0).on_rows_of(density=0.001)
    EveryRows(n=4000, per_weight=0.0)
    """

    n: int = number(1024, low=1)
    per_weight: float = number(0.0, low=0)

    @classmethod
    @lru_cache(maxsize=64, typed=True)
    def chosen(cls, every: int | None) -> EveryRows:
        """Return the period of a strategy whose `every` this is; None is 1024 rows, and more if they are sparse."""
        return cls(per_weight=ENTRIES_PER_WEIGHT) if every is None else cls(every)

    def on_rows_of(self, density: float) -> EveryRows:
        """Return the period with its number of rows settled; see `AbstractPeriod.on_rows_of`."""
        if self.per_weight == 0.0:
            return self
        return EveryRows(max(self.n, math.ceil(self.per_weight / density)) if density > 0.0 else self.n)

    def rounds_per_epoch(self, rows: list[int]) -> int:
        """Return ``ceil(max(rows) / n)``, at least one."""
        return max(1, -(-max(rows) // int(self.n)))


@dataclass(frozen=True)
class EveryBatch(AbstractPeriod):
    """After every n rows of all ranks together.

    Parameters
    ----------
    n : int, default 32
        Rows of a batch.

    Raises
    ------
    InvalidParameterError
        `n` is not a positive integer.
    """

    n: int = number(32, low=1)

    def rounds_per_epoch(self, rows: list[int]) -> int:
        """Return ``ceil(sum(rows) / n)``, at least one."""
        return max(1, -(-sum(rows) // int(self.n)))


@dataclass(frozen=True)
class GrowingBatch(AbstractPeriod):
    """After every n rows of all ranks together, and from time to time after more of them.

    Parameters
    ----------
    n : int
        Rows of a batch at first.
    growth : float
        What a batch is multiplied by, rounded down, after every so many epochs; one or more.
    epochs : int
        How many.
    most : int or None
        The largest batch; None is all rows.
    """

    n: int
    growth: float
    epochs: int
    most: int | None = None

    def batch(self, n_rows: int, epoch: int) -> int:
        """Return the rows of a batch in an epoch, from 0, of so many rows."""
        most = n_rows if self.most is None else min(self.most, n_rows)
        times = epoch // self.epochs
        if self.growth > 1.0 and times * math.log(self.growth) > math.log(max(1, most)):
            # Also where the power is too large a number.
            return max(1, most)
        return max(1, min(most, int(self.n * self.growth**times)))

    def rounds_per_epoch(self, rows: list[int]) -> int:
        """Return the rounds of the first epoch."""
        return self.rounds_in_epoch(rows, 0)

    def rounds_in_epoch(self, rows: list[int], epoch: int) -> int:
        """Return ``ceil(sum(rows) / batch)``, at least one; see `AbstractPeriod.rounds_in_epoch`."""
        return max(1, -(-sum(rows) // self.batch(sum(rows), epoch)))


@dataclass(frozen=True)
class EveryEpoch(AbstractPeriod):
    """At the end of every epoch."""

    def rounds_per_epoch(self, rows: list[int]) -> int:
        """Return one."""
        return 1


@dataclass(frozen=True)
class Once(AbstractPeriod):
    """At the end of training."""

    def rounds_per_epoch(self, rows: list[int]) -> int:
        """Return one."""
        return 1

    def is_due(self, clock: RoundClock) -> bool:
        """Return whether training ends with this round."""
        return clock.is_last


@dataclass(frozen=True)
class OftenThenRarely(AbstractPeriod):
    """After every round of another period for some epochs, then after every so many of its rounds.

    Parameters
    ----------
    often : AbstractPeriod
        The period at first; its rounds are all due.
    stride : int
        Of how many of its rounds one is due later. The last of an epoch always is.
    epochs : int
        Epochs until the switch.
    """

    often: AbstractPeriod
    stride: int
    epochs: int

    def rounds_per_epoch(self, rows: list[int]) -> int:
        """Return the rounds of the period at first."""
        return self.often.rounds_per_epoch(rows)

    def is_due(self, clock: RoundClock) -> bool:
        """Return true before the switch, and once per stride after it."""
        return clock.epoch < self.epochs or clock.ends_epoch or (clock.round + 1) % self.stride == 0
