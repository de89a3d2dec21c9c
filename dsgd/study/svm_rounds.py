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
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
from scipy.optimize import nnls

from dsgd.collectives import calibrate, cost
from dsgd.errors import InvalidParameterError
from dsgd.report import Claim
from dsgd.runtime.rank import Rank
from dsgd.sim.calibration import run_measurement
from dsgd.study.frame.report import time_text
from dsgd.study.published import STATEMENTS, exact, ratio
from dsgd.study.svm_problems import Problem, load_problem
from dsgd.svm.kernel_solver.block import solve
from dsgd.svm.kernel_solver.elimination import AMOUNTS, PHASES, Work, resolve_elimination
from dsgd.svm.kernel_solver.pairwise import solve_pairwise
from dsgd.svm.kernel_solver.problem import Dual, Solution
from dsgd.svm.kernels.functions import Kernel, centre, scale_gamma
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.peers import Peers
from dsgd.svm.kernels.threads import Pool, open_pool
from dsgd.types import FloatVector
from dsgd.validation import check_number

#: What a message costs on the network of a supercomputer.
FABRIC: Final = cost.Link(latency_s=1.5e-6, byte_s=0.1e-9)
#: What each phase costs: seconds for each of the amounts in the table above, in that order.
Costs = Mapping[str, Sequence[float]]

_CHUNK: Final = 256  # rows that a proof sends at a time
_LINEAR: Final = ("rounds", "variables", "fresh", "step_variables", "squares", "block_values", "support")
#: Reductions of the published program in a step: the extremes, and two to break ties.
_REDUCTIONS: Final = 3


@dataclass(frozen=True)
class RoundAmounts:
    """What a run did, on all of its ranks together."""

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
    """Where ranks run."""

    ranks: int
    link: cost.Link
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
    """Seconds of a phase over a run."""

    work_s: float
    wire_s: float

    @property
    def total_s(self) -> float:
        """Both together."""
        return self.work_s + self.wire_s


@dataclass(frozen=True)
class Observation:
    """A run that was measured."""

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
    n_messages = cost.n_levels(ranks) if place.talk == "tree" else ranks - 1

    def short(n_bytes: float) -> float:
        return cost.allreduce_seconds("recursive_doubling", math.ceil(n_bytes), ranks, link)

    if phase == "scan":
        return a.rounds * short(24)
    if phase == "choose":
        n_bytes = math.ceil(28 * q + 16)
        return a.rounds * (
            short(n_bytes) if place.talk == "tree" else cost.allgather_seconds(n_bytes, ranks, link, "ring")
        )
    if phase == "rows":
        return a.rounds * n_messages * link.latency_s + a.fresh * row_bytes * link.byte_s
    if phase == "solve":
        return a.rounds * cost.broadcast_seconds(math.ceil(8 * q + 16), ranks, link)
    chunks, n_bytes = math.ceil(a.support / _CHUNK), math.ceil(8 * a.n)
    rows_s = chunks * n_messages * link.latency_s + a.support * (a.features + 2) * 8 * link.byte_s
    return rows_s + cost.allreduce_seconds(cost.choose_algorithm(n_bytes, ranks), n_bytes, ranks, link)


def predict_phases(amounts: RoundAmounts, costs: Costs, place: Place) -> dict[str, PhaseSeconds]:
    """Return the predicted seconds of rank 0 by phase: work, in which waiting for others counts, and messages."""
    return {
        phase: PhaseSeconds(
            float(np.dot(costs[phase], _work_of(phase, amounts, place))), _wire_s(phase, amounts, place)
        )
        for phase in PHASES
    }


def fit_costs(observations: Sequence[Observation]) -> dict[str, tuple[float, ...]]:
    """Return what work costs on the machine of some runs: least squares of relative errors, none below zero."""
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
    """Return the predicted seconds of the published algorithm."""
    levels, link = cost.n_levels(place.ranks), place.link
    work = place.load * (iterations * costs[0] + 2.0 * looked / place.ranks * costs[1])
    messages = _REDUCTIONS * link.latency_s + 2.0 * (link.latency_s + 16.0 * features * link.byte_s)
    return PhaseSeconds(work, iterations * levels * messages)


def extrapolate(amounts: RoundAmounts, n: float) -> RoundAmounts:
    """Return the amounts of more samples of the same kind.

    Support vectors, rounds, variables and steps grow in proportion; kernel values by the square, and no cache holds
    those.
    """
    times = n / amounts.n
    grown: dict[str, Any] = {name: times * float(getattr(amounts, name)) for name in _LINEAR}
    grown |= {name: times**2 * float(getattr(amounts, name)) for name in ("looked", "exact_values")}
    values = times**2 * (amounts.new_values + amounts.read_values)
    return replace(amounts, n=n, **grown, new_values=values, read_values=0.0)


# -- observe ------------------------------------------------------------------------------------------------------

_SMALL = 400  # rows of the run that loads compiled code


@dataclass(frozen=True)
class RunSettings:
    """What is run."""

    problem: Problem
    elimination: str = "none"
    solver: str = "block"
    cache_mb: float = 200.0
    tol: float = 1e-3
    repeats: int = 3
    block_size: int | None = None


@dataclass(frozen=True)
class MeasuredRun:
    """What was measured."""

    settings: RunSettings
    ranks: int
    link: cost.Link
    seconds: float
    amounts: RoundAmounts
    objective: float
    phases: Mapping[str, float] = field(default_factory=dict)

    def observation(self, cores: int) -> Observation:
        """Return it as the model takes it, on a machine of so many cores."""
        return Observation(self.amounts, Place(self.ranks, self.link, cores), self.phases)


def observe(settings: RunSettings, ranks: int, client: Any = None) -> MeasuredRun:
    """Run on threads of this process or, more than one rank, on the workers of a client, one on each."""
    client = client if ranks > 1 else None
    gang = run_measurement(
        _observe, (settings,), client=client, ranks=ranks, transport="auto", ranks_per_worker=1 if client else None
    )
    found: MeasuredRun = gang.value
    return found


def _observe(rank: Rank, data: None, settings: RunSettings) -> MeasuredRun:
    """Solve the problem together with the other ranks, and say what that took; a rank program."""
    del data
    link = calibrate(rank.group) if rank.group.size > 1 else cost.Link(byte_s=0.0)
    with open_pool(1) as pool:
        _Rows(settings, _SMALL).solve(rank, pool)
        rows, taken = _Rows(settings, settings.problem.rows), []
        for _ in range(settings.repeats):
            rank.group.barrier()
            begin = time.perf_counter()
            solution = rows.solve(rank, pool)
            taken.append((time.perf_counter() - begin, solution))
    seconds, solution = min(taken, key=lambda pair: pair[0])
    counts = solution.counts
    phases = dict(zip(PHASES, counts.work.seconds.tolist(), strict=True)) if settings.solver == "block" else {}
    n_support = int(np.count_nonzero(solution.alpha))
    n, features, work = settings.problem.rows, rows.X.shape[1], counts.work
    amounts = amounts_of(work, n=n, features=features, value_bytes=4, rounds=counts.n_rounds, support=n_support)
    if settings.solver == "pairwise":
        looked = 0.5 * counts.n_evaluations
        amounts = replace(amounts, looked=looked, exact_values=2.0 * looked)
    return MeasuredRun(settings, rank.group.size, link, seconds, amounts, solution.objective, phases)


class _Rows:
    """A problem, ready to be solved by any number of ranks."""

    def __init__(self, settings: RunSettings, n_rows: int) -> None:
        self.settings = settings
        problem = settings.problem
        found = load_problem(replace(problem, rows=n_rows))
        self.X: Any = found.X
        self.y: FloatVector = np.where(found.y > 0, 1.0, -1.0)
        self.kernel = Kernel("rbf", scale_gamma(problem.gamma, self.X, np.ones(n_rows)))
        self.shift = centre(self.kernel, self.X)

    def solve(self, rank: Rank, pool: Pool) -> Solution:
        """Solve it on all ranks together."""
        settings, n, group = self.settings, len(self.y), rank.group
        holder = np.arange(n) * group.size // n
        matrix = KernelMatrix(
            self.kernel,
            self.X[holder == rank.number],
            samples=None,
            dtype=np.float32,
            cache_bytes=int(settings.cache_mb * 2**20 / group.size),
            pool=pool,
            peers=Peers(n, group, holder, rank.check),
            shift=self.shift,
            sparse=False,
        )
        dual = Dual(self.y[None], -np.ones((1, n)), np.full((1, n), settings.problem.C), np.zeros((1, n)))
        elimination = resolve_elimination("observe(elimination=...)", settings.elimination)
        if settings.solver == "pairwise":
            return solve_pairwise(dual, matrix, tol=settings.tol, max_iter=-1, elimination=elimination)
        size = settings.block_size
        return solve(dual, matrix, tol=settings.tol, max_iter=-1, elimination=elimination, block_size=size)


# -- claims --------------------------------------------------------------------------------------------------------

# The largest set of the publications. What a kernel value takes on one core here; and in the published program, which
# computes the norms of both rows with each: products, and seconds of an entry of a sparse one.
_MANY_ROWS: Final = 11_000_000
_VALUE_S: Final = 2e-9
_PRODUCTS: Final = 3
_ENTRY_S: Final = 2e-9


def check_process_claim(amounts: RoundAmounts) -> Claim:
    """Return the claim on thousands of processes, from a run of the pairwise solver on some rows of a set."""
    found = extrapolate(amounts, _MANY_ROWS)

    def gain(value_s: float) -> float:
        """Return how much faster 4,096 processes are than 2,048 if a kernel value takes so long."""
        half, full = (
            pairwise_seconds(found.rounds, found.looked, found.features, (0.0, value_s), Place(ranks, FABRIC)).total_s
            for ranks in (2048, 4096)
        )
        return half / full

    theirs_s = _PRODUCTS * found.features * _ENTRY_S
    note = (
        f"Simulated: {_MANY_ROWS:,} rows, steps in proportion to {amounts.n:,}, {1e6 * FABRIC.latency_s:g} us a "
        f"message and {1e9 * theirs_s:.0f} ns a kernel value, for which that program takes three sparse products. With "
        f"{1e9 * _VALUE_S:g} ns, as in products of matrices, it is {gain(_VALUE_S):.2f}x: messages take all the time."
    )
    return STATEMENTS["shrinking/processes"].judged("noisy", exact(gain(theirs_s)), note, baseline="1x: no gain")


def check_round_claims(
    turns: Sequence[Sequence[MeasuredRun]], pairs: Sequence[MeasuredRun], left_out: str, cores: int, *, busy: bool
) -> list[Claim]:
    """Return the claims on the model of rounds, from runs of the block solver, all of them made several times."""
    predicted: dict[int, float] = {}
    measured: dict[int, float] = {}
    single: dict[int, float] = {}
    times: dict[int, float] = {}
    for turn, (runs, pair) in enumerate(zip(turns, pairs, strict=True)):
        costs = fit_costs([run.observation(cores) for run in runs if run.settings.problem.name != left_out])
        alone, two = (
            next(run for run in runs if (run.settings.problem.name, run.ranks) == (left_out, ranks)) for ranks in (1, 2)
        )
        place = Place(2, two.link, cores)
        predicted[turn] = sum(phase.total_s for phase in predict_phases(alone.amounts, costs, place).values())
        measured[turn], single[turn] = two.seconds, alone.seconds
        many, theirs = Place(4096, FABRIC), extrapolate(pair.amounts, _MANY_ROWS)
        ours = predict_phases(extrapolate(alone.amounts, _MANY_ROWS), costs, many)
        value_s = pair.seconds / (2.0 * pair.amounts.looked)
        published = pairwise_seconds(theirs.rounds, theirs.looked, theirs.features, (0.0, value_s), many)
        times[turn] = published.total_s / sum(phase.total_s for phase in ours.values())
    fitted = ratio(predicted, measured)
    faster = ratio(times, dict.fromkeys(times, 1.0))
    # There are runs, and all of them took time.
    assert fitted is not None
    assert faster is not None
    note = (
        f"Two worker processes; costs are fitted on other sets, and amounts of work are those of one rank. Measured: "
        f"{time_text(measured[0])}."
    )
    grown = (
        f"Simulated: {_MANY_ROWS:,} rows, in proportion to those of the runs, {1e6 * FABRIC.latency_s:g} us a message, "
        "and what kernel values of both solvers cost on this machine. The published one speaks at every step."
    )
    model = STATEMENTS["dsgd/svm-model"]
    one_rank = model.control("the seconds of one rank", ratio(single, measured))
    return [
        model.judged(left_out, fitted, note, busy=busy, controls=[one_rank]),
        STATEMENTS["dsgd/svm-ranks"].judged(left_out, faster, grown, busy=busy, baseline="1x: the published algorithm"),
    ]
