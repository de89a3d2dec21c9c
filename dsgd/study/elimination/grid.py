"""The runs of the study of elimination: problems, presets, cache sizes, ranks and repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dsgd.errors import InvalidParameterError
from dsgd.study.elimination.model import TEN_GIGABIT, Network
from dsgd.study.elimination.problems import PROBLEMS, Problem
from dsgd.study.frame.grid import check_grid
from dsgd.study.frame.rows import AbstractRun, Row, picked

__all__ = ["CACHES", "PRESETS", "REFERENCE", "SOLVERS", "EliminationRun", "EliminationStudy", "demo_elimination_study"]

#: The presets of `dsgd.svm.SVC`, the one without elimination first.
PRESETS: Final = ("none", "single", "multi", "libsvm", "aggressive", "average", "conservative", "auto")
#: The sequential baseline: scikit-learn's SVC, which is LIBSVM on one thread.
REFERENCE: Final = "scikit-learn"
#: "fits": the whole kernel matrix; "small": the share `cache_share` of it in float32.
CACHES: Final = ("small", "fits")
#: Values of ``solver``: by blocks, and the published algorithm, a pair of variables per step and exchange.
SOLVERS: Final = ("block", "pairwise")


@dataclass(frozen=True)
class EliminationStudy:
    """A grid of training runs.

    It always includes the run without elimination, the baseline of the others.

    Parameters
    ----------
    problems : sequence of Problem
        The training problems. Real sets that are not on this machine are skipped.
    presets : sequence of str
        Values of ``elimination``.
    caches : sequence of {"small", "fits"}
        Sizes of the cache.
    cache_share : float
        The small cache holds this share of the kernel matrix in float32.
    ranks : sequence of int
        Numbers of worker processes of the distributed runs, with one thread each; empty for no distributed runs. One
        rank is this process.
    rank_problems : sequence of str
        The problems of the distributed runs.
    rank_presets : sequence of str
        The presets of the distributed runs.
    rank_repeats : int
        Repetitions of each distributed run, at most `repeats`.
    simulated_ranks : sequence of int
        Further numbers of ranks, whose times are computed from counts (`dsgd.study.elimination.model`).
    network : Network
        The network of the simulated ranks.
    repeats : int
        Repetitions of each run.
    tol : float
        Tolerance of the gap.
    n_threads : int or None
        Threads of the runs in this process; None for all.
    with_reference : bool
        Whether scikit-learn's SVC is run too.

    Raises
    ------
    InvalidParameterError
        If a value is outside its domain.
    """

    problems: Sequence[Problem] = tuple(PROBLEMS.values())
    presets: Sequence[str] = PRESETS
    caches: Sequence[str] = CACHES
    cache_share: float = 0.1
    ranks: Sequence[int] = (1, 2)
    rank_problems: Sequence[str] = ("clean", "noisy", "a9a")
    rank_presets: Sequence[str] = ("none", "multi")
    rank_repeats: int = 1
    simulated_ranks: Sequence[int] = (4, 8)
    network: Network = TEN_GIGABIT
    repeats: int = 3
    tol: float = 1e-3
    n_threads: int | None = None
    with_reference: bool = field(default=True)

    def __post_init__(self) -> None:
        check_grid(
            self,
            given=("problems", "caches"),
            least={"ranks": 1, "simulated_ranks": 1, "repeats": 1},
            above={"tol": 0},
            choices={"presets": PRESETS, "rank_presets": PRESETS, "caches": CACHES},
        )
        names = [problem.name for problem in self.problems]
        if len(set(names)) < len(names):
            raise InvalidParameterError(f"EliminationStudy(problems=...) names a problem twice: {', '.join(names)}.")
        if not 0 < self.cache_share < 1:
            raise InvalidParameterError(f"EliminationStudy(cache_share={self.cache_share}) must lie between 0 and 1.")

    def all_presets(self) -> list[str]:
        """Return the presets in their usual order, the one without elimination first."""
        return [preset for preset in PRESETS if preset == "none" or preset in self.presets]

    def cache_mb(self, cache: str, n_rows: int) -> float:
        """Return the size of a cache in megabytes for so many rows.

        The one that fits has room for float64, which small problems and problems with a large C use.
        """
        matrix_mb = n_rows * n_rows / 2**20
        return max(1.0, round(8 * matrix_mb + 1, 1) if cache == "fits" else round(4 * self.cache_share * matrix_mb, 1))

    def count(self) -> int:
        """Return the number of runs."""
        own = sum(len(self.runs(problem)) for problem in self.problems)
        return own + sum(len(self.rank_runs(problem, ranks)) for problem in self.problems for ranks in set(self.ranks))

    def runs(self, problem: Problem) -> list[EliminationRun]:
        """Return the runs of one problem in this process.

        Repetitions are outermost, and each begins with another method, so that methods take turns and change places.
        """
        methods = [*self.all_presets(), *([REFERENCE] if self.with_reference else [])]
        return [
            EliminationRun(self, problem, method, cache, repeat)
            for repeat in range(self.repeats)
            for cache in self.caches
            for method in _rotated(methods, repeat)
        ]

    def rank_runs(self, problem: Problem, ranks: int) -> list[EliminationRun]:
        """Return the distributed runs of one problem on `ranks` ranks; they have the small cache."""
        if problem.name not in self.rank_problems:
            return []
        presets = [preset for preset in PRESETS if preset == "none" or preset in self.rank_presets]
        return [
            EliminationRun(self, problem, preset, "small", repeat, solver, ranks)
            for repeat in range(min(self.repeats, self.rank_repeats))
            for solver in SOLVERS
            for preset in _rotated(presets, repeat)
        ]


@dataclass(frozen=True)
class EliminationRun(AbstractRun):
    """One run.

    Parameters
    ----------
    study : EliminationStudy
        The settings shared by all runs.
    problem : Problem
        What is trained on.
    method : str
        A preset, or `REFERENCE`.
    cache : {"small", "fits"}
        Size of the cache.
    repeat : int
        Which repetition.
    solver : {"block", "pairwise"}
        Which solver.
    ranks : int or None
        Worker processes; None for a run in this process.
    """

    study: EliminationStudy
    problem: Problem
    method: str
    cache: str
    repeat: int
    solver: str = "block"
    ranks: int | None = None

    @property
    def threads(self) -> int | None:
        """Threads of the run; None for all. A rank has one."""
        return self.study.n_threads if self.ranks is None else 1

    def settings(self) -> Row:
        """Return everything that decides what is run, as plain values."""
        problem = self.problem
        return {
            "problem": problem.name,
            **picked(problem, "rows", "C", "gamma"),
            **picked(self, "method", "cache"),
            "cache_mb": self.study.cache_mb(self.cache, problem.rows),
            **picked(self, "solver", "ranks", "threads"),
            "tol": self.study.tol,
            "repeat": self.repeat,
        }


def _rotated(names: Sequence[str], places: int) -> list[str]:
    places %= len(names)
    return [*names[places:], *names[:places]]


def demo_elimination_study() -> EliminationStudy:
    """Return the study of ``dsgd study elimination --demo``: sized for two cores and under two minutes."""
    sizes = {
        "clean": 5_000,
        "noisy": 5_000,
        "checkerboard": 8_000,
        "free-svs": 3_000,
        "a9a": 5_000,
        "w8a": 5_000,
        "ijcnn1": 8_000,
        "covtype": 4_000,
        "mnist": 4_000,
        "usps": 2_500,
    }
    return EliminationStudy(
        problems=tuple(replace(PROBLEMS[name], rows=rows) for name, rows in sizes.items()),
        cache_share=0.01,
        rank_problems=("clean",),
        repeats=2,
    )
