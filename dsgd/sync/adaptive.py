"""Rules by which `AutoSync` chooses its next period h, in rows of the rank with the most rows: pure functions.

All ranks call a rule with the same numbers, which are sums over ranks, and must compute the same period on any machine.
So rules only add, multiply, divide and take square roots, whose rounding IEEE 754 defines. They avoid powers and
logarithms, which libraries round differently.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NamedTuple, get_args

from dsgd.validation import Checked, number

__all__ = [
    "QSR",
    "WHYS",
    "AbstractRule",
    "AdaComm",
    "BudgetedPeriod",
    "Choice",
    "CommFloor",
    "DynamicAveraging",
    "FixedPeriod",
    "Measured",
    "PostLocal",
    "VarianceBand",
    "Why",
    "comm_floor",
    "drift_bound",
]

#: Reasons for a period.
Why = Literal["start", "communication", "dispersion", "loss", "rate", "budget", "switch", "cap"]
#: Why a period was chosen.
WHYS: Final[tuple[Why, ...]] = get_args(Why)


class Measured(NamedTuple):
    """The measurements of all ranks since the last decision: means, with the weights of their models.

    Parameters
    ----------
    every : float
        The period up to now, in rows of the rank with the most rows, as all periods are.
    epochs : float
        Passes over the rows so far.
    age : float
        For how many passes over the rows it has held.
    seconds : float
        Since training began.
    row_s : float
        Seconds of local steps per row.
    wire_s, wait_s : float
        Seconds of a synchronisation without those of waiting for a peer, and those.
    loss : float
        Mean loss of the rows visited.
    rate : float
        Rate of the last step.
    drift_sq : float
        Mean squared distance of the models before the synchronisation from the one they began the round with.
    dispersion : float
        Mean squared distance of these models from their mean.
    norm_sq : float
        Squared norm of that mean.
    curvature, slope : float
        How much the gradient and the loss of a rank change from one of these models to the other, over their distance;
        measured for rules that ask for it.
    rows_left : float
        Rows of a rank until training ends, if nothing ends it sooner.
    floor : float
        The period of `CommFloor`, of wire and wait.
    wire_floor : float
        That of the wire alone, which is what a longer period saves: waiting grows with the period.
    cap : float
        The longest period, which depends on the rows and on how far the models are apart.
    """

    every: float
    epochs: float
    age: float
    seconds: float
    row_s: float
    wire_s: float
    wait_s: float
    loss: float
    rate: float
    drift_sq: float
    dispersion: float
    norm_sq: float
    curvature: float
    slope: float
    rows_left: float
    floor: float
    wire_floor: float
    cap: float


class Choice(NamedTuple):
    """A period, and why; where it is longer than the cap, the cap is meant, and where below one row, one."""

    every: float
    why: Why


class AbstractRule(Checked, ABC):
    """A rule for the next period, given what was measured.

    Attributes
    ----------
    first : int or None
        The period until ranks have measured anything; None is a sixteenth of the rows of the longest rank.
    decides : bool
        Whether it ever changes the period.
    asks_slopes : bool
        Whether `Measured.curvature` and `Measured.slope` are to be measured.
    needs_loss : bool
        Whether it follows `Measured.loss`.
    follows_clocks : bool
        Whether every period depends on seconds, so that those between two decisions may too.
    """

    first: int | None
    decides: ClassVar[bool] = True
    asks_slopes: ClassVar[bool] = False
    needs_loss: ClassVar[bool] = False
    follows_clocks: ClassVar[bool] = False

    @abstractmethod
    def next(self, now: Measured, start: Measured) -> Choice:
        """Return the next period; a pure function.

        Parameters
        ----------
        now : Measured
            Since the last decision.
        start : Measured
            What `now` was at the first decision; there they are the same.
        """


def comm_floor(row_s: float, sync_s: float, target: float) -> float:
    """Return the smallest period with a share of communication of at most `target`.

    A round of h rows takes ``h Y + D`` seconds, of which D is communication, so ``h = ceil(D (1 - e) / (e Y))``.

    Parameters
    ----------
    row_s, sync_s : float
        Y and D, seconds of a row and of a synchronisation.
    target : float
        e, above 0 and below 1.

    Examples
    --------
    >>> comm_floor(1e-6, 50e-6, 0.1)
    450.0
    """
    if sync_s <= 0.0:
        return 1.0
    if row_s <= 0.0:
        return math.inf
    # A product of rounded numbers that is an integer in truth must not become the next one.
    return float(max(1, math.ceil(sync_s * (1.0 - target) / (target * row_s) * (1.0 - 1e-9))))


@dataclass(frozen=True)
class FixedPeriod(AbstractRule):
    """Synchronise every `first` rows.

    Problem: what other rules gain shows alongside a period that stays.

    Rule: ``h = every``. Nothing is measured and nothing is added to any message: training is that of
    ``LocalSGD(every)``, bit for bit.

    Source: Stich 2019 (local SGD); Abeykoon, Fox and Kim 2019, arXiv 1905.01219, where h is the model synchronisation
    frequency.

    Parameters
    ----------
    first : int, default 1024
        Rows of the rank with the most rows between two synchronisations; beyond them it is once per epoch.

    Raises
    ------
    InvalidParameterError
        It is not a positive integer.
    """

    first: int = number(1024, low=1)
    decides = False

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return `first`."""
        return Choice(self.first, "start")


@dataclass(frozen=True)
class PostLocal(AbstractRule):
    """Synchronise every `first` rows until the rate has dropped.

    Problem: averages matter most while models move fast; later on, rare ones cost less and, on some problems, lead to
    models that generalise better than those of large batches.

    Rule: ``h = first`` while ``eta > drop eta_0``, then the floor of communication (`CommFloor`).

    Source: Lin, Stich, Patel and Jaggi 2020 (arXiv 1808.07217), algorithm 2, which averages after every step and
    switches at the first cut of the rate to a fixed period. `dsgd.sync.PostLocalSGD` switches after a number of epochs.

    Parameters
    ----------
    first : int, default 128
        The period at first.
    drop : float, default 0.5
        To what part of the first rate.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    first: int = number(128, low=1)
    drop: float = number(0.5, low=0.0, high=1.0)

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return `first`, or the floor once the rate has dropped."""
        if now.every == float(self.first) and now.rate > self.drop * start.rate:
            return Choice(self.first, "start")
        # The floor as it was measured when the rate had dropped.
        return Choice(now.floor if now.every == float(self.first) else now.every, "switch")


@dataclass(frozen=True)
class QSR(AbstractRule):
    """Lengthen the period with the inverse square of the rate.

    Problem: with a small rate replicas drift little, so averages may be rarer; and on some problems rarer ones lead to
    models that generalise better.

    Rule, with the rate eta::

        h = max(base, floor((a / eta)^2))

    Source: Gu, Lyu, Arora, Zhang and Huang 2024 (ICLR, arXiv 2310.14423), equation 2. Their a is tuned; by default ours
    is the one with which the rule begins at `base`. With a rate like 1 / t the period grows like t^2, up to the cap.

    Parameters
    ----------
    first : int or None, default None
        The smallest period; None is the floor of communication, as soon as it is measured.
    a : float or None, default None
        Growth; None is ``eta sqrt(base)`` with the rate at the first decision.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    first: int | None = number(None, low=1)
    a: float | None = number(None, low=0.0, open_low=True)

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return the period for the present rate."""
        base = float(self.first) if self.first is not None else min(start.floor, start.cap)
        growth = self.a / now.rate if self.a is not None else math.sqrt(base) * (start.rate / now.rate)
        # Not a floor of a product that rounding has left below an integer.
        wanted = float(math.floor(growth * growth * (1.0 + 1e-9)))
        return Choice(wanted, "rate") if wanted > base else Choice(base, "communication")


_MOST = 2.0


@dataclass(frozen=True)
class DynamicAveraging(AbstractRule):
    """Let models move by a given distance between two synchronisations.

    Problem: while models hardly move, averages change nothing. Rule: ranks synchronise once ``|w_p - r|^2 > Delta``,
    with r the last average. Models that take h rows to move by that much are to synchronise every h rows::

        h <- h sqrt(Delta / D),  at most twice and at least half of h

    with D the mean of ``|w_p - r|^2`` just before a synchronisation.

    Source: Kamp, Boley, Keren, Schuster and Sharfman 2014 and Kamp et al. 2018 (arXiv 1807.03210). There each rank
    watches its own condition and calls the others. Ranks that all-reduce cannot call: so ours find the period at which
    the condition is met, for the mean over ranks, and Delta is measured in squared norms of the model.

    Parameters
    ----------
    delta : float, default 0.1
        Delta, the squared distance of a model from the last average, over the squared norm of the average.
    first : int or None, default None
        The period at first; None is a sixteenth of the rows of the longest rank.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    delta: float = number(0.1, low=0.0, open_low=True)
    first: int | None = number(None, low=1)

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return the period in which models move by `delta`."""
        allowed = self.delta * now.norm_sq
        factor = math.sqrt(allowed / now.drift_sq) if now.drift_sq > 0.0 else _MOST
        return Choice(math.ceil(now.every * min(_MOST, max(1.0 / _MOST, factor))), "dispersion")


@dataclass(frozen=True)
class AdaComm(AbstractRule):
    """Shorten the period with the square root of the loss.

    Problem: rare averages make quick progress while the loss is high, and leave a higher floor of error in the end.

    Rule, for interval l of training, with the loss F and the rate eta at its beginning::

        tau_l = ceil(sqrt((eta_0 / eta_l) (F_l / F_0)) tau_0)
                and half of tau_{l-1} where that is not smaller

    Source: Wang and Joshi 2019 (MLSys, arXiv 1810.08313), their basic rule with the variable rate. They cut wall-clock
    time into intervals of a minute and find tau_0 by search; ours are passes over the rows, since a fit may take
    milliseconds, and tau_0 is the floor of communication (`CommFloor`).

    Parameters
    ----------
    first : int or None, default None
        tau_0; None is the floor of communication, as soon as it is measured.
    interval : float, default 1.0
        Passes over the rows for which a period holds.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    first: int | None = number(None, low=1)
    interval: float = number(1.0, low=0.0, open_low=True)

    needs_loss = True

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return tau_l; at first tau_0."""
        longest = float(self.first) if self.first is not None else min(start.floor, start.cap)
        if now == start:
            return Choice(longest, "start" if self.first is not None else "communication")
        if now.age < self.interval or start.loss <= 0.0 or now.rate <= 0.0:
            return Choice(now.every, "loss")
        ratio = (start.rate / now.rate) * (now.loss / start.loss)
        wanted = math.ceil(math.sqrt(ratio) * longest)
        return Choice(wanted if wanted < now.every else now.every / 2.0, "loss")


@dataclass(frozen=True)
class VarianceBand(AbstractRule):
    """Keep the variance of the replicas, over the rate, in a band.

    Problem: a fixed period lets replicas drift far apart early on, when rates are high, and hardly at all later.

    Rule, with S_k the mean squared distance of the replicas from their mean and eta_k the rate, and ``C = S_0 / eta_0``
    from the first rounds::

        h <- h + step   where S_k < 0.7 eta_k C
        h <- h - step   where S_k > 1.3 eta_k C

    Source: Jiang and Agrawal 2020 (arXiv 2007.06134, adaptive periodic averaging), algorithm 2. They compare after
    every synchronisation and move by one minibatch; ours compares whenever ranks decide.

    Parameters
    ----------
    first : int or None, default None
        The period at first; None is a sixteenth of the rows of the longest rank.
    step : int, default 64
        Rows by which the period moves.
    low, high : float, default 0.7, 1.3
        The band, as parts of what the variance was at first.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    first: int | None = number(None, low=1)
    step: int = number(64, low=1)
    low: float = number(0.7, low=0.0)
    high: float = number(1.3, low="low")

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return the period one step longer or shorter, or the same."""
        # S_k / (eta_k C), without a division by what may be zero.
        variance, usual = now.dispersion * start.rate, now.rate * start.dispersion
        if variance < self.low * usual:
            return Choice(now.every + self.step, "dispersion")
        if variance > self.high * usual:
            return Choice(now.every - self.step, "dispersion")
        return Choice(now.every, "dispersion")


_WORTH = 1.25
_DIVERGED = 2.0
_CLOSE = 4.0
_FLOORS = 2.0
_MOST_TIMES_OF_FLOOR = 4.0


@dataclass(frozen=True)
class CommFloor(AbstractRule):
    """Take the smallest period whose share of communication is under the target; none shorter while replicas are close.

    Problem: the best period depends on the machine more than on the data: on the time of a synchronisation relative to
    that of a row. Both can be measured within a few rounds, so nobody should have to guess.

    Rule, with Y seconds of a row, D of a synchronisation on the wire, the target e and the floor ``f = ceil(D (1 - e) /
    (e Y))``::

        h <- h / 2         where the replicas are apart, or the loss has doubled
        h <- max(h, 2 f)   where they are close
        h <- f             else

    They are apart where ``S > apart |wbar|^2``, with S the mean squared distance of the models from their mean wbar,
    and close where S is a quarter of that. Averages of replicas that are close change little: their period need not be
    shorter than it is, nor than twice the floor, at which the wire takes half of the share e. A change of less than a
    quarter is left out. On shared machines the time of a synchronisation changes by a factor of ten from one moment to
    the next, and the first few rounds see only one such moment. A decision therefore at most halves the period, because
    too short a period costs much, and at most quadruples it.

    D does not include waiting. The longer a round is, the further apart its ranks finish, and a disturbed rank is
    disturbed as often per second in long rounds as in short ones. So a longer period does not reduce waiting.

    Source: Abeykoon, Fox and Kim 2019 (arXiv 1905.01219), whose synchronisations cost less with every doubling of h up
    to a floor of waiting; theirs is a sweep, the floor by a target is ours. That averages may be left out while
    replicas are close is Kamp et al. 2014; halving and doubling are ours.

    Parameters
    ----------
    apart : float, default 0.5
        Squared distance of the replicas from their mean, over that of the mean from zero, above which they are apart.
    first : int or None, default None
        The period at first; None is a sixteenth of the rows of the longest rank.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    apart: float = number(0.5, low=0.0, open_low=True)
    first: int | None = number(None, low=1)
    follows_clocks = True

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return half the period, the floor, or the period or twice the floor while replicas are close."""
        limit = self.apart * now.norm_sq
        if now.dispersion > limit:
            return Choice(now.every / 2.0, "dispersion")
        if now.loss > _DIVERGED * start.loss:
            return Choice(now.every / 2.0, "loss")
        wanted = now.wire_floor
        if _CLOSE * now.dispersion <= limit:
            wanted = max(now.every, _FLOORS * now.wire_floor)
        wanted = min(max(wanted, now.every / 2.0), _MOST_TIMES_OF_FLOOR * now.every)
        is_worth = not now.every / _WORTH < min(wanted, now.cap) < now.every * _WORTH
        return Choice(wanted if is_worth else now.every, "communication")


_MOST_TIMES_OF_BUDGET: Final = 10
_PER_OCTAVE: Final = 4
_TOO_FAR: Final = 1e100


@dataclass(frozen=True)
class BudgetedPeriod(AbstractRule):
    """Take the period with the best bound for a budget of seconds.

    Problem: with a budget of seconds, rare synchronisation leaves time for more steps, and lets models drift apart.

    Rule: with seconds c of a step and b of a synchronisation, a budget of R seconds allows so many steps of period
    tau::

        T = (R - c - b) tau / (c tau + b)

    From the smoothness beta, the Lipschitz constant rho and the divergence delta of the gradients and the rate eta, the
    gap between the models and the one that sees all rows is bounded by::

        h(tau) = delta / beta ((eta beta + 1)^tau - 1) - eta delta tau

    and the next period is the tau, up to ten times the last one, that makes least::

        (1 + sqrt(1 + 4 T^2 phi rho eta h(tau) / tau)) / (2 T eta phi) + rho h(tau)

    Estimates, with w_p the model of a rank before a synchronisation and r the one it began the round with: ``beta =
    |grad F_p(w_p) - grad F_p(r)| / |w_p - r|`` and ``rho = |F_p(w_p) - F_p(r)| / |w_p - r|`` on some rows of the rank,
    and ``delta = sqrt(S) / (eta tau)`` from the mean squared distance S of the models from their mean. Of those of now
    and of the first decision the larger beta counts, since a smoothness holds everywhere, and the smaller delta, since
    over few steps S is the noise of single rows.

    Source: Wang, Tuor, Salonidis, Leung, Makaya, He and Chan 2019 (IEEE JSAC, arXiv 1804.05271), equations 11 and 18
    and algorithm 2. Theirs takes the model after the average in the place of r, and delta from gradients that are sent
    along.

    Parameters
    ----------
    budget_s : float or None, default None
        Seconds that training may take; None is what the epochs that are left take at the present period.
    phi : float, default 0.025
        The constant of the bound; the source's for its support vector machine.
    first : int or None, default None
        The period at first; None is a sixteenth of the rows of the longest rank.

    Raises
    ------
    InvalidParameterError
        A value is out of range.
    """

    budget_s: float | None = number(None, low=0.0, open_low=True)
    phi: float = number(0.025, low=0.0, open_low=True)
    first: int | None = number(None, low=1)
    asks_slopes = True
    follows_clocks = True

    def next(self, now: Measured, start: Measured) -> Choice:
        """Return the best of some periods between one row and ten times the last period."""
        step_s, sync_s, rate = now.row_s, now.wire_s + now.wait_s, now.rate
        left_s = now.rows_left * (step_s + sync_s / now.every)
        if self.budget_s is not None:
            left_s = self.budget_s - now.seconds
        left_s -= step_s + sync_s
        if left_s <= 0.0 or min(rate, start.rate, now.slope, step_s) <= 0.0:
            return Choice(now.every, "budget")
        delta = min(math.sqrt(seen.dispersion) / (seen.rate * seen.every) for seen in (start, now))
        best, least = now.every, math.inf
        curvature = max(now.curvature, start.curvature)
        for tau in _candidates(min(_MOST_TIMES_OF_BUDGET * now.every, now.cap)):
            drift = drift_bound(tau, rate, curvature, delta)
            steps = left_s * tau / (step_s * tau + sync_s)
            inner = 1.0 + 4.0 * steps * steps * self.phi * now.slope * rate * drift / tau
            bound = (1.0 + math.sqrt(inner)) / (2.0 * steps * rate * self.phi) + now.slope * drift
            if bound < least:
                best, least = float(tau), bound
        return Choice(best, "budget")


def drift_bound(tau: int, rate: float, curvature: float, delta: float) -> float:
    """Return h(tau), how far local steps are from those on all rows, at most.

    Parameters
    ----------
    tau : int
        Steps.
    rate : float
        eta.
    curvature : float
        beta; with none, gradients do not change and the bound is zero.
    delta : float
        How far gradients of ranks are apart.
    """
    if curvature <= 0.0 or delta <= 0.0:
        return 0.0
    # Products only: powers are not rounded alike everywhere.
    power, base, n = 1.0, 1.0 + rate * curvature, tau
    while n and power < _TOO_FAR:
        if n & 1:
            power *= base
        base = min(base * base, _TOO_FAR)
        n >>= 1
    return max(0.0, delta / curvature * (min(power, _TOO_FAR) - 1.0) - rate * delta * tau)


def _candidates(most: float) -> list[int]:
    """Return whole numbers from 1 to `most`: all where they are small, else some with about equal ratios."""
    most = max(1, int(most))
    found = {most}
    step = 1
    while step <= most:
        found.update(range(step, min(2 * step, most + 1), max(1, step // _PER_OCTAVE)))
        step *= 2
    return sorted(found)
