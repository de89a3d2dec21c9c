"""Measured runs of the kernel SVM on real ranks, for the model of its rounds (`dsgd.study.elimination.rounds`).

Ranks are threads of this process or, with a client, worker processes. Each makes the rows of the problem from a seed
and keeps its share, so nothing but what the solver says travels. The cost of a message is measured between the same
ranks, before the run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dsgd.collectives import calibrate
from dsgd.collectives.model import LinkCost
from dsgd.runtime.rank import Rank
from dsgd.sim.calibration import run_measurement
from dsgd.study.elimination.problems import Problem, load_problem
from dsgd.study.elimination.rounds import Observation, Place, RoundAmounts, amounts_of
from dsgd.svm.kernel_solver.block import solve
from dsgd.svm.kernel_solver.elimination import resolve_elimination
from dsgd.svm.kernel_solver.pairwise import solve_pairwise
from dsgd.svm.kernel_solver.problem import Dual, Solution
from dsgd.svm.kernel_solver.work import PHASES
from dsgd.svm.kernels.functions import Kernel, centre, scale_gamma
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.peers import Peers
from dsgd.svm.kernels.threads import Pool, open_pool
from dsgd.types import FloatVector

__all__ = ["MeasuredRun", "RunSettings", "observe"]

_SMALL = 400  # rows of the run that loads compiled code


@dataclass(frozen=True)
class RunSettings:
    """What is run.

    Parameters
    ----------
    problem : Problem
        A generated problem of two classes.
    elimination : str, default "none"
        A preset.
    solver : {"block", "pairwise"}, default "block"
        Ours, or the published one.
    cache_mb : float, default 200
        Megabytes of cached rows, of all ranks together.
    tol : float, default 1e-3
        The gap to reach.
    repeats : int, default 3
        Runs in a row, of which the fastest is taken: what disturbs a machine only makes it slower.
    block_size : int or None, default None
        Variables of a block; None lets the solver choose.
    """

    problem: Problem
    elimination: str = "none"
    solver: str = "block"
    cache_mb: float = 200.0
    tol: float = 1e-3
    repeats: int = 3
    block_size: int | None = None


@dataclass(frozen=True)
class MeasuredRun:
    """What was measured.

    Parameters
    ----------
    settings : RunSettings
        What was run.
    ranks : int
        On how many ranks.
    link : LinkCost
        What a message between them costs.
    seconds : float
        Of the fastest run, on rank 0.
    amounts : RoundAmounts
        What it did; of the pairwise solver `rounds` are its steps, and of the others only `looked` and `exact_values`
        (all its values) count.
    phases : mapping of str to float
        Seconds of rank 0 by phase, of that run; empty for the pairwise solver.
    objective : float
        The dual objective.
    """

    settings: RunSettings
    ranks: int
    link: LinkCost
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
    link = calibrate(rank.group) if rank.group.size > 1 else LinkCost(0.0, 0.0)
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
