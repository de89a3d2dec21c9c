r"""A model of the kernel SVM on P ranks: seconds of each phase, from amounts of work and what these cost on a machine.

Problem: whether a solver scales to thousands of ranks must be known without them. What it does hardly depends on P: a
run on one rank says how many rounds there are, how many variables, kernel values and steps. What each of P ranks does
and says follows.

With L = ceil(log2 P), R rounds of q variables on average, f of which were not in the block before, d features in values
of w bytes, n samples of which A are active on average, a message of m bytes taking alpha + m beta, o processes for each
core (1 if every rank has one of its own), and b = 1 where several ranks share a machine, else 0:

======  =====================================================  =======================================================
phase   work                                                   messages
======  =====================================================  =======================================================
scan    o R (c_0 + c_1 A / P) + (c_2 + c_3 (o - 1)) V / P      R L (alpha + 24 beta)
choose  o R (c_0 + c_1 A / P + c_2)                            R L (alpha + m beta), m = 28 q + 16; R (P - 1) (alpha +
                                                               m beta) if all offers go to all
rows    o R (c_0 + c_1 f d), and none of it if P = 1           R (L alpha + f (d + 2) w beta); P - 1 in place of L if
                                                               offers and rows go round a ring
solve   R (c_0 + (c_1 + c_3 d) q q / 2 + c_2 q steps + c_4     R L (alpha + (8 q + 16) beta)
        + c_5 (o - 1)), on rank 0 while others wait
update  o (R c_0 + (c_1 + c_2 d) new / P + c_3 read / P        none
        + c_4 b V / P)
check   o (c_0 + (c_1 + c_2 d + c_3 b) exact / P)              s / 256 L alpha + s (d + 2) 8 beta for s support
                                                               vectors, and a sum of n numbers
======  =====================================================  =======================================================

Of V = new + read values, which ranks divide, none takes equally long: the scan after it waits for the slowest, c_2 and
c_3 of V / P, and a rank that has slept must wake, c_2 of choose and c_4 of solve; all of these are zero if P = 1.
Ranks that share a machine share its memory too, and all of them fetch kernel values at the same time: c_4 of update,
c_3 of check.
The numbers c of each phase are found by non-negative least squares of relative errors on runs of any numbers of ranks
(`fit_costs`); alpha and beta are measured between the ranks (`dsgd.collectives.calibrate`). Where ranks outnumber the
cores, work that is divided takes o times as long, since all do it at once, but blocks do not: only rank 0 is at work.
Ranks then finish further apart, as they take turns: c_3 of scan; and rank 0 may find others on its core: c_5 of solve.

The published algorithm (`pairwise_seconds`) takes, for each of its I steps,

    o (c_0 + 2 c_1 A / P) + 3 L alpha + 2 L (alpha + 16 d beta),

three reductions and two broadcasts of rows of 16 bytes an entry, as its authors' program does.

Source: Vishnu et al., IEEE Cluster 2015, and their released program (MaTEx) for the last formula; ours otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from scipy.optimize import nnls

from dsgd.collectives.model import (
    LinkCost,
    allgather_seconds,
    allreduce_seconds,
    broadcast_seconds,
    choose_algorithm,
    n_levels,
)
from dsgd.errors import InvalidParameterError
from dsgd.svm.kernel_solver.work import AMOUNTS, PHASES, Work
from dsgd.validation import check_number

__all__ = [
    "FABRIC",
    "Costs",
    "Observation",
    "PhaseSeconds",
    "Place",
    "RoundAmounts",
    "amounts_of",
    "extrapolate",
    "fit_costs",
    "pairwise_seconds",
    "predict_phases",
]

#: What a message costs on the network of a supercomputer.
FABRIC: Final = LinkCost(1.5e-6, 0.1e-9)
#: What each phase costs: seconds for each of the amounts in the table above, in that order.
Costs = Mapping[str, Sequence[float]]

_CHUNK: Final = 256  # rows that a proof sends at a time
_LINEAR: Final = ("rounds", "variables", "fresh", "step_variables", "squares", "block_values", "support")
#: Reductions of the published program in a step: the extremes, and two to break ties.
_REDUCTIONS: Final = 3


@dataclass(frozen=True)
class RoundAmounts:
    """What a run did, on all of its ranks together.

    Parameters
    ----------
    n, features, value_bytes : int
        Samples, entries of a row, and bytes of a value of the rows that travel.
    rounds : float
        Blocks.
    looked : float
        Active samples, summed over rounds.
    variables, fresh, step_variables, squares : float
        Sums over rounds: variables of the block, those that the block before had not, steps times variables, and the
        squares of the variables.
    block_values, new_values, read_values, exact_values : float
        Kernel values of blocks, of rows that were computed, of rows that were in the cache, and of checks.
    support : float
        Support vectors.
    """

    n: float
    features: int
    value_bytes: int
    rounds: float
    looked: float
    variables: float
    fresh: float
    step_variables: float
    squares: float
    block_values: float
    new_values: float
    read_values: float
    exact_values: float
    support: float

    def per_round(self, name: str) -> float:
        """Return the mean of an amount over the rounds."""
        return float(getattr(self, name)) / max(1.0, self.rounds)


def amounts_of(work: Work, *, n: int, features: int, value_bytes: int, rounds: int, support: int) -> RoundAmounts:
    """Return the amounts of a solution (`dsgd.svm.kernel_solver.problem.Counts`)."""
    amounts = dict(zip(AMOUNTS, work.amounts.tolist(), strict=True))
    values = dict(zip(PHASES, work.values.tolist(), strict=True))
    return RoundAmounts(
        n,
        features,
        value_bytes,
        rounds,
        **amounts,
        block_values=values["solve"],
        new_values=values["update"],
        exact_values=values["check"],
        support=support,
    )


@dataclass(frozen=True)
class Place:
    """Where ranks run.

    Parameters
    ----------
    ranks : int
        How many.
    link : LinkCost
        What a message between two of them costs.
    cores : int or None, default None
        Cores of the machine that they share; None gives each rank a machine of its own.
    talk : {"tree", "ring"}, default "tree"
        How the worst violators of all ranks are found and their rows sent: by trees, in log2 P messages, or by sending
        all offers to all round a ring, and the rows too.
    """

    ranks: int
    link: LinkCost
    cores: int | None = None
    talk: Literal["tree", "ring"] = "tree"

    def __post_init__(self) -> None:
        check_number("Place(ranks=...)", self.ranks, low=1, integer=True)

    @property
    def load(self) -> float:
        """Ranks for each core, at least one."""
        return max(1.0, self.ranks / (self.cores or self.ranks))

    @property
    def shares_memory(self) -> bool:
        """Whether several ranks work on one machine at the same time."""
        return min(self.ranks, self.cores or 1) > 1


@dataclass(frozen=True)
class PhaseSeconds:
    """Seconds of a phase over a run.

    Parameters
    ----------
    work_s, wire_s : float
        Work and messages.
    """

    work_s: float
    wire_s: float

    @property
    def total_s(self) -> float:
        """Both together."""
        return self.work_s + self.wire_s


@dataclass(frozen=True)
class Observation:
    """A run that was measured.

    Parameters
    ----------
    amounts : RoundAmounts
        What it did.
    place : Place
        Where.
    seconds : mapping of str to float
        Of rank 0, by phase.
    """

    amounts: RoundAmounts
    place: Place
    seconds: Mapping[str, float]


def _work_of(phase: str, a: RoundAmounts, place: Place) -> list[float]:
    """Return the amounts on the rank that is waited for, as many as the phase has costs."""
    share, load, d = place.load / place.ranks, place.load, a.features
    has_others, shares_memory = float(place.ranks > 1), float(place.shares_memory)
    values = a.new_values + a.read_values
    if phase == "scan":
        waited = has_others / place.ranks * values
        return [load * a.rounds, share * a.looked, waited, (load - 1.0) * waited]
    if phase == "choose":
        return [load * a.rounds, share * a.looked, has_others * load * a.rounds]
    if phase == "rows":
        return [has_others * load * a.rounds, has_others * load * a.fresh * d]
    if phase == "solve":
        # A rank that is alone reads some values from its cache; others compute half of a block, which is symmetric.
        block = a.block_values if place.ranks == 1 else 0.5 * a.squares
        waits = [has_others * a.rounds, (load - 1.0) * a.rounds]
        return [a.rounds, block, a.step_variables, d * block, *waits]
    if phase == "update":
        new = share * a.new_values
        return [load * a.rounds, new, d * new, share * a.read_values, shares_memory * share * values]
    exact = share * a.exact_values
    return [load, exact, d * exact, shares_memory * exact]


def _wire_s(phase: str, a: RoundAmounts, place: Place) -> float:
    """Return the seconds of the messages of a phase."""
    ranks, link = place.ranks, place.link
    if ranks == 1 or phase == "update":
        return 0.0
    q = a.per_round("variables")
    row_bytes = (a.features + 2) * a.value_bytes
    n_messages = n_levels(ranks) if place.talk == "tree" else ranks - 1

    def short(n_bytes: float) -> float:
        return allreduce_seconds("recursive_doubling", math.ceil(n_bytes), ranks, link)

    if phase == "scan":
        return a.rounds * short(24)
    if phase == "choose":
        n_bytes = math.ceil(28 * q + 16)
        return a.rounds * (short(n_bytes) if place.talk == "tree" else allgather_seconds(n_bytes, ranks, link, "ring"))
    if phase == "rows":
        return a.rounds * n_messages * link.latency_s + a.fresh * row_bytes * link.byte_s
    if phase == "solve":
        return a.rounds * broadcast_seconds(math.ceil(8 * q + 16), ranks, link)
    chunks, n_bytes = math.ceil(a.support / _CHUNK), math.ceil(8 * a.n)
    rows_s = chunks * n_messages * link.latency_s + a.support * (a.features + 2) * 8 * link.byte_s
    return rows_s + allreduce_seconds(choose_algorithm(n_bytes, ranks), n_bytes, ranks, link)


def predict_phases(amounts: RoundAmounts, costs: Costs, place: Place) -> dict[str, PhaseSeconds]:
    """Return the predicted seconds of rank 0 by phase: work, where waiting for the work of others counts, and messages.

    Parameters
    ----------
    amounts : RoundAmounts
        What the run does.
    costs : Costs
        What that costs on this machine, from `fit_costs`.
    place : Place
        Where it runs.
    """
    return {
        phase: PhaseSeconds(
            float(np.dot(costs[phase], _work_of(phase, amounts, place))), _wire_s(phase, amounts, place)
        )
        for phase in PHASES
    }


def fit_costs(observations: Sequence[Observation]) -> dict[str, tuple[float, ...]]:
    """Return what work costs on the machine of some runs: least squares of relative errors, none below zero.

    Raises
    ------
    InvalidParameterError
        There are no runs.
    """
    if not observations:
        raise InvalidParameterError("fit_costs(observations=...) must hold at least one run. Got none.")
    found: dict[str, tuple[float, ...]] = {}
    for phase in PHASES:
        lines, targets = [], []
        for run in observations:
            seconds = run.seconds[phase]
            if seconds > 0.0:
                lines.append(np.array(_work_of(phase, run.amounts, run.place)) / seconds)
                targets.append(max(0.0, seconds - _wire_s(phase, run.amounts, run.place)) / seconds)
        width = len(_work_of(phase, observations[0].amounts, observations[0].place))
        design = np.array(lines).reshape(-1, width)
        scale = np.maximum(np.abs(design).max(axis=0, initial=0.0), 1e-300)  # amounts differ by ten orders
        found[phase] = tuple((nnls(design / scale, np.array(targets))[0] / scale).tolist() if lines else [0.0] * width)
    return found


def pairwise_seconds(
    iterations: float, looked: float, features: int, costs: Sequence[float], place: Place
) -> PhaseSeconds:
    """Return the predicted seconds of the published algorithm.

    Parameters
    ----------
    iterations : float
        Two-variable steps.
    looked : float
        Active samples, summed over steps.
    features : int
        Entries of a row.
    costs : sequence of two floats
        Seconds of a step, and of a kernel value.
    place : Place
        Where it runs.
    """
    levels, link = n_levels(place.ranks), place.link
    work = place.load * (iterations * costs[0] + 2.0 * looked / place.ranks * costs[1])
    messages = _REDUCTIONS * link.latency_s + 2.0 * (link.latency_s + 16.0 * features * link.byte_s)
    return PhaseSeconds(work, iterations * levels * messages)


def extrapolate(amounts: RoundAmounts, n: float) -> RoundAmounts:
    """Return the amounts of more samples of the same kind.

    Support vectors grow in proportion, and with them rounds, variables and steps; kernel values, a row for each of
    these, grow by the square. As no cache holds the square, all values that were read are computed instead.

    Parameters
    ----------
    amounts : RoundAmounts
        What a run did.
    n : float
        Samples to go on to.
    """
    times = n / amounts.n
    grown: dict[str, Any] = {name: times * float(getattr(amounts, name)) for name in _LINEAR}
    grown |= {name: times**2 * float(getattr(amounts, name)) for name in ("looked", "exact_values")}
    values = times**2 * (amounts.new_values + amounts.read_values)
    return replace(amounts, n=n, **grown, new_values=values, read_values=0.0)
