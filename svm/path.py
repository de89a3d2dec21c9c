"""Grids of C and gamma (`svm_path`), and the chains of warm starts that they are made of.

**One problem at increasing costs** (`_Grid.chain`): every solution is the start of the next. The dual of
`dsgd.svm.kernel_solver.block` at bounds f_1 C < f_2 C < ... Going from C to ρC, the variables ρα are feasible, leave
those at a bound at their bound, and have K(y ρα) = ρ K(yα), which is known: a run begins without a kernel value, and
near its end where most support vectors sit at the bound. Kernel rows do not depend on C, so one cache serves all. Where
the kernel matrix does not fit into it, samples that are proven to sit at a bound at the next C (`dsgd.svm.certify`) are
left out from the beginning; on coarse grids these are few.

Where no variable is at its upper bound, every larger C has the same solution, with the same gap: higher bounds let no
variable move that could not move before. No such point is run.

Every other run ends as a cold one does, with the gap over all samples in float64 below tol, so what was carried over
cannot show in the result. Cost: a cold run at the first C; from then on the rows of samples that were no support
vectors before, and in float64 the n values of each variable that changes by more than its scale.

Source: DeCoste and Wagstaff, "Alpha seeding for support vector machines", KDD 2000, for scaled starts. Departures: the
indicators are scaled too, and rows are kept.

**On a cluster** one gang solves the grid: every rank runs the ordinary fit once per gamma. Rank 0 then hands over the
solutions, which equal rows have been merged, the targets, and the rows that have a coefficient at some point.
Estimators are made of that record by the same fit: no rank is asked again, and nothing is solved.

**A grid** of C and gamma runs the ordinary fit once per gamma, and solves each of its problems for all C in a chain.
Solutions are kept, and estimators made on demand by a fit that gets its solutions from the grid: the same code sets
their attributes as of any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from dsgd.errors import InvalidParameterError
from dsgd.inputs.named import take_tables
from dsgd.runtime.deployment import as_gang
from dsgd.runtime.rank import Rank
from dsgd.svm.certify import feature_norms, path_ball, prove
from dsgd.svm.distributed.kernel import RankRows, join_gang
from dsgd.svm.estimators.kernel import SVC, SVR
from dsgd.svm.estimators.kernel_base import row_dtype
from dsgd.svm.kernel_solver.block import solve
from dsgd.svm.kernel_solver.problem import Counts, Dual, Posed, Solution
from dsgd.svm.kernels.cache import Distances, share_pays
from dsgd.svm.kernels.functions import Kernel
from dsgd.svm.kernels.matrix import KernelMatrix
from dsgd.svm.kernels.rows import sums_by
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector
from dsgd.validation import check_number

#: Samples whose mean is the point that distances in feature space are taken from.
_N_MEAN = 64


@dataclass(frozen=True)
class Link:
    """One solution of a chain."""

    solution: Solution
    upper: FloatMatrix
    n_proven: int
    n_products: int
    seconds: float


def _counted(matrix: KernelMatrix, shared: Distances | None) -> FloatVector:
    """Return the kernel values that a matrix has computed, its hits, and the products of features so far."""
    n_products = matrix.n_evaluations if shared is None else shared.n_computed
    return np.array([matrix.n_evaluations, matrix.n_hits, n_products], dtype=np.float64)


def _distances_from_mean(matrix: KernelMatrix, norms: FloatVector) -> FloatVector:
    """Return the distances of samples from the mean of a few: with an intercept they do for norms, and are smaller."""
    some = np.arange(min(_N_MEAN, matrix.n)) * matrix.n // min(_N_MEAN, matrix.n)
    means = matrix.product(np.arange(matrix.n), some, np.full(len(some), 1.0 / len(some)), np.float64)
    squares = norms * norms
    # Rounding of the difference must not make a distance smaller than it is.
    apart: FloatVector = np.maximum(squares - 2.0 * means + means[some].mean(), 0.0) + 1e-12 * (1.0 + squares)
    return np.sqrt(apart)


def _scaled(before: Dual, u: FloatVector, ratio: float, upper: FloatMatrix) -> Dual:
    """Return the problem at the bounds `upper`, with the solution of before, scaled, as its start."""
    alpha = np.where(before.alpha >= before.upper, upper, np.minimum(ratio * before.alpha, upper))
    return replace(before, upper=upper, alpha=alpha, u=ratio * u)


def _activate(matrix: KernelMatrix, out: AnyArray) -> None:
    """Make all samples active except those in `out`; the cached rows of the others are kept."""
    if out.all():
        out = np.zeros_like(out)
    stays = ~out[matrix.active]
    if not stays.all() and stays.any():
        matrix.shrink(np.flatnonzero(stays))
    peers = matrix.peers
    missing = peers.join(np.setdiff1d(peers.mine(np.flatnonzero(~out)), matrix.active))
    if len(missing):
        matrix.extend(missing)


#: Solves one problem of a model at all costs.
Chain = Callable[[Any, Posed], list[Link]]


@dataclass(frozen=True)
class PathRecord:
    """What a gang knows after a grid, and what its estimators ask in place of the gang."""

    chains: list[dict[bytes, list[Link]]]
    kernels: list[Kernel]
    first: IntVector
    owner: IntVector
    target: FloatVector
    weights: FloatVector
    classes: AnyArray | None
    ids: IntVector
    rows: Any

    def build(self, model: Any, gamma: int, answer: Callable[..., Solution]) -> Any:
        """Fit a model from known solutions, at the gamma of a number; `answer` has the solutions."""
        model._answer, model._gang = answer, _Recorded(self, self.kernels[gamma])
        if self.classes is not None:  # a fit forgets those without weight
            model.classes_ = self.classes
        model._fit_rows(self.rows, self.target, self.weights)
        del model._answer, model._gang
        model._warn_if_open(int(np.sum(model.n_iter_)))
        return model


class _Recorded:
    """Answers from a record what an estimator asks a `Gang`."""

    leads = True

    def __init__(self, record: PathRecord, kernel: Kernel) -> None:
        self._record, self._kernel = record, kernel
        self.n_rows = len(record.target)

    def publish(self, event: dict[str, Any]) -> None:
        """Drop the event: it was published when the grid was solved."""

    def merge(self, X: Any, target: FloatVector, weights: FloatVector) -> tuple[IntVector, IntVector, FloatVector]:
        """Return which rows represent all, who represents each, and their summed weights."""
        first, owner = self._record.first, self._record.owner
        used = owner >= 0
        return first, owner, sums_by(owner[used], weights[used], len(first))

    def make_kernel(
        self, kernel: Kernel, gamma: Any, X: Any, totals: FloatVector, first: IntVector, *, balanced: bool
    ) -> Kernel:
        """Return the kernel that the gang has made."""
        return self._kernel

    def collect(self, X: Any, rows: IntVector) -> Any:
        """Return some of the rows."""
        return self._record.rows[np.searchsorted(self._record.ids, rows)]


def solve_path_on_rank(
    rank: Rank, data: RankRows, model: Any, gammas: Sequence[float | str], chain: Chain
) -> dict[str, Any] | None:
    """Solve a grid together with the other ranks; return, on rank 0, a fit's attributes with its `PathRecord`."""
    model, gang = join_gang(rank, data, model)
    kernels: list[Kernel] = []
    chains: list[dict[bytes, list[Link]]] = []
    fitted: dict[str, Any] = {}

    def answer(posed: Posed) -> Solution:
        found = chain(model, posed)
        chains[-1][posed.rows.tobytes()] = found
        kernels[len(chains) - 1 :] = [posed.kernel]
        return found[0].solution

    model._answer = answer
    classes = getattr(model, "classes_", None)
    for gamma in gammas:
        model.gamma = gamma
        if classes is not None:
            model.classes_ = classes
        chains.append({})
        model._fit_rows(data.X, gang.target, gang.weights)
        if not fitted:
            fitted = model._fitted_state()
    first, owner = gang.merged
    # The rows that have a coefficient in any solution, ascending: those whose representatives have one.
    is_used: AnyArray = np.zeros(len(owner), dtype=np.bool_)
    for problems in chains:
        for key, links in problems.items():
            numbers = np.frombuffer(key, dtype=first.dtype)
            for link in links:
                is_used[numbers[link.solution.alpha.any(axis=0)]] = True
    ids = np.flatnonzero((owner >= 0) & is_used[first[owner]])
    rows = gang.collect(data.X, ids)
    if not gang.leads:
        return None
    record = PathRecord(chains, kernels, first, owner, gang.target, gang.weights, classes, ids, rows)
    return {**fitted, "_record": record}


@dataclass(frozen=True)
class PathPoint:
    """One point of a grid.

    Parameters
    ----------
    C : float
        Cost.
    gamma : float
        Kernel width as a number; 0 for kernels without one.
    dual_objective : float
        Dual objective, the sum over pairs of classes.
    gap : float
        Largest violation of optimality over all samples in float64, of the worst pair.
    converged : bool
        Whether it is below the tolerance.
    n_support : int
        Support vectors.
    n_iter : int
        Two-variable steps, the sum over pairs.
    n_kernel_evaluations : int
        Kernel values computed for this point.
    n_products : int
        Pairs of rows multiplied for them: fewer if distances were known from another gamma.
    n_samples : int
        Samples of all pairs together, equal rows counted once.
    n_proven : int
        Samples that were proven to be at a bound before the point was solved.
    seconds : float
        Wall time of solving, the sum over pairs.
    """

    C: float
    gamma: float
    dual_objective: float
    gap: float
    converged: bool
    n_support: int
    n_iter: int
    n_kernel_evaluations: int
    n_products: int
    n_samples: int
    n_proven: int
    seconds: float


@dataclass(frozen=True)
class SVMPath:
    """The solutions of a grid; `svm_path` returns it.

    Parameters
    ----------
    points : tuple of PathPoint
        The points: all C of the first gamma, then of the next.
    links : tuple of dict
        For each point, the solution of every problem in its fit.
    grid : object
        The data and parameters, from which estimators are made.
    """

    points: tuple[PathPoint, ...]
    links: tuple[dict[bytes, Link], ...] = field(repr=False)
    grid: Any = field(repr=False)

    @property
    def n_kernel_evaluations(self) -> int:
        """Kernel values computed for the whole grid."""
        return sum(point.n_kernel_evaluations for point in self.points)

    def estimator(self, index: int) -> Any:
        """Return the fitted estimator of a point, as a cold fit would leave it, to its tolerance.

        Parameters
        ----------
        index : int
            Index into `points`; negative values count from the end.

        Returns
        -------
        SVC or SVR
            Its attributes have the record of the run. Nothing is solved again.
        """
        index = range(len(self.points))[index]
        return self.grid.build(index, self.links[index])

    def scores(self, X: Any, y: Any) -> FloatVector:
        """Return the score of every point: accuracy, or R² for regression.

        Parameters
        ----------
        X : array, sparse matrix or DataFrame, shape (m, n_features)
            Validation rows.
        y : array-like, shape (m,)
            Their labels or targets.

        Returns
        -------
        array of float64, shape (n_points,)
            Scores, in the order of `points`.
        """
        return np.array([self.estimator(k).score(X, y) for k in range(len(self.points))])


def svm_path(
    X: Any,
    y: Any,
    *,
    Cs: Iterable[float],
    gammas: Sequence[float | str] = ("scale",),
    kernel: Any = "rbf",
    sample_weight: Any = None,
    estimator: type[SVC | SVR] = SVC,
    **parameters: Any,
) -> SVMPath:
    """Solve a grid of C and gamma with warm starts and shared kernel rows.

    Parameters
    ----------
    X : array, sparse matrix, DataFrame, dask array or dataframe, list of delayed blocks, or files
        Rows, shape (n_samples, n_features), float32 or float64; the kernel matrix with ``kernel="precomputed"``.
    y : array-like, dask collection or str, shape (n_samples,)
        Labels, or targets, or the name of their column; None where blocks or svmlight files hold them.
    Cs : iterable of float
        Costs, ascending. The closer they are, the less each takes.
    gammas : sequence of float or {"scale", "auto"}, default ("scale",)
        Kernel widths.
    kernel : {"linear", "poly", "rbf", "sigmoid", "precomputed"} or callable, default "rbf"
        The kernel; those without a width take one entry of `gammas`, which has no effect.
    sample_weight : array-like or str, shape (n_samples,), or None
        Weights of rows, or the name of their column.
    estimator : {SVC, SVR}, default SVC
        The class to train.
    **parameters : dict
        Other parameters of the estimator: ``tol``, ``class_weight``, ``cache_size``, ``epsilon``, ... With ``client``,
        one gang of its workers solves the whole grid; the estimators then have no client.

    Returns
    -------
    SVMPath
        A record of each point, and its fitted estimator on demand.

    Raises
    ------
    InvalidParameterError
        The values of C do not ascend, a grid is empty, or the estimator is another class.
    InvalidDataError
        The data cannot be trained on.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd.svm import svm_path
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> path = svm_path(X, X[:, 0] > 0, Cs=[0.1, 1.0, 10.0])
    >>> [point.C for point in path.points], path.estimator(-1).converged_
    ([0.1, 1.0, 10.0], True)
    """
    costs = _check_grid(Cs, gammas, estimator, parameters)
    model = estimator(kernel=kernel, **parameters)
    given = (model._as_rows(X), y, sample_weight)
    if model._deployment.client is None:  # with one, there is one fit, which takes files and names as any other
        given, _ = take_tables(model, *given)
    grid = _Grid(estimator, {"kernel": kernel, **parameters}, costs, tuple(gammas), *given)
    grid, chains = grid.solve()
    points: list[PathPoint] = []
    links: list[dict[bytes, Link]] = []
    for k in range(len(costs) * len(grid.gammas)):
        found = {key: chain[k] for key, chain in chains.items()}
        points.append(_describe(grid.build(k, found), list(found.values())))
        links.append(found)
    return SVMPath(tuple(points), tuple(links), grid)


def _check_grid(
    Cs: Iterable[float], gammas: Sequence[float | str], estimator: Any, options: Mapping[str, Any]
) -> tuple[float, ...]:
    """Return the costs."""
    if not (isinstance(estimator, type) and issubclass(estimator, SVC | SVR)):
        raise InvalidParameterError(
            f"svm_path(estimator=...) must be the class SVC or SVR of dsgd.svm. Got {estimator!r}; its parameters are "
            "further keywords of svm_path."
        )
    if isinstance(gammas, str) or len(gammas) == 0:
        raise InvalidParameterError(f"svm_path(gammas=...) must be a sequence of at least one width. Got {gammas!r}.")
    gang = as_gang(options.get("client"))
    if gang.checkpoint is not None or gang.resume_from is not None:
        raise InvalidParameterError(
            "svm_path(client=Gang(checkpoint=..., resume_from=...)): a grid writes no checkpoints. Leave both out, or "
            "fit its points as estimators of their own."
        )
    costs = tuple(Cs)
    if not costs:
        raise InvalidParameterError("svm_path(Cs=...) must hold at least one cost. Got none.")
    for cost in costs:
        check_number("svm_path(Cs=...)", cost, low=0, open_low=True)
    if any(b <= a for a, b in pairwise(costs)):
        raise InvalidParameterError(
            f"svm_path(Cs=...) must ascend: each C starts from the smaller one before. Got {costs!r}; sort them."
        )
    return tuple(float(cost) for cost in costs)


def _describe(model: Any, links: list[Link]) -> PathPoint:
    return PathPoint(
        C=float(model.C),
        gamma=float(model._gamma),
        dual_objective=model.dual_objective_,
        gap=model.gap_,
        converged=model.converged_,
        n_support=len(model.support_),
        n_iter=int(np.sum(model.n_iter_)),
        n_kernel_evaluations=model.n_kernel_evaluations_,
        n_products=sum(link.n_products for link in links),
        n_samples=sum(link.upper.shape[1] for link in links),
        n_proven=sum(link.n_proven for link in links),
        seconds=sum(link.seconds for link in links),
    )


@dataclass(frozen=True)
class _Grid:
    """Makes estimators of a grid: runs their fits with the solutions of the grid."""

    estimator: type[SVC | SVR]
    parameters: dict[str, Any]
    costs: tuple[float, ...]
    gammas: tuple[float | str, ...]
    X: Any
    y: Any
    sample_weight: Any
    #: What a gang has left of the grid, and attributes that every estimator of it has.
    record: PathRecord | None = None
    common: dict[str, Any] = field(default_factory=dict)

    def _model(self, gamma: float | str, C: float) -> Any:
        return self.estimator(C=C, gamma=gamma, **self.parameters)

    def solve(self) -> tuple[_Grid, dict[bytes, list[Link]]]:
        """Solve every problem that a fit poses at all points; return what makes estimators and solutions by problem."""
        chains: dict[bytes, list[Link]] = {}
        model = self._model(self.gammas[0], self.costs[0])
        if model._uses_cluster(self.X):
            return self._solve_on_cluster(model)
        for gamma in self.gammas[1:]:
            self._model(gamma, self.costs[0])._check_parameters()

        def answer(posed: Posed) -> Solution:
            shared = None
            if posed.kernel.name == "rbf" and len(self.gammas) > 1 and share_pays(posed.X):
                posed = replace(posed, cache_bytes=posed.cache_bytes // 2)
                shared = Distances(posed.X, posed.rows, posed.cache_bytes, posed.pool.n_threads)
            chain = self.chain(model, posed, shared)
            for gamma in self.gammas[1:]:
                kernel = replace(posed.kernel, gamma=_width(model, gamma))
                chain += self.chain(model, replace(posed, kernel=kernel), shared)
            chains[posed.rows.tobytes()] = chain
            return chain[0].solution

        self._fit(model, answer)
        return self, chains

    def _solve_on_cluster(self, model: Any) -> tuple[_Grid, dict[bytes, list[Link]]]:
        """Solve all on one gang; the solutions then take the place of the data."""
        if getattr(model, "probability", "deprecated") not in (False, "deprecated"):
            raise InvalidParameterError(
                f"svm_path(probability={model.probability!r}) needs models of parts of the rows at each point, which a "
                "grid on a cluster does not train. Leave it out, and fit an estimator at the chosen point."
            )
        blank = replace(self, X=None, y=None, sample_weight=None, parameters={**self.parameters, "client": None})
        model._program = (solve_path_on_rank, self.gammas, blank.chain)
        model.fit(self.X, self.y, sample_weight=self.sample_weight)
        record: PathRecord = model._record
        names = ("n_features_in_", "feature_names_in_", "classes_", "ledger_", "fit_report_")
        common = {name: getattr(model, name) for name in names if hasattr(model, name)}
        chains = {key: [link for part in record.chains for link in part[key]] for key in record.chains[0]}
        return replace(blank, record=record, common=common), chains

    def chain(self, model: Any, posed: Posed, shared: Distances | None = None) -> list[Link]:
        """Solve a problem at all costs of one kernel; on a gang, together with the other ranks."""
        kernel, rows, dual, pool, cache_bytes = posed.kernel, posed.rows, posed.dual, posed.pool, posed.cache_bytes
        tol, largest, factors = float(model.tol), float(dual.upper.max()), [C / self.costs[0] for C in self.costs]
        dtypes = [row_dtype(kernel, len(rows), largest * factor, tol) for factor in factors]
        if shared is None:
            matrix = model._make_matrix(kernel, posed.X, rows, largest, tol, pool, cache_bytes)
        else:
            matrix = KernelMatrix(
                shared.kernel(kernel.gamma),
                shared.rows,
                samples=None,
                dtype=dtypes[0],
                cache_bytes=cache_bytes,
                pool=pool,
            )
        # On a gang a rank has its own rows only, and nothing is proven before a run.
        norms = feature_norms(kernel, posed.X) if model._gang is None else None
        norms = None if norms is None else norms[rows]
        links: list[Link] = []
        for k, factor in enumerate(factors):
            begin = time.perf_counter()
            # A solution that has been proven, and has no variable at its upper bound.
            if links and links[-1].solution.converged and (links[-1].solution.alpha < links[-1].upper).all():
                solution = replace(links[-1].solution, counts=Counts())
                links.append(Link(solution, dual.upper * factor, 0, 0, time.perf_counter() - begin))
                continue
            before = _counted(matrix, shared)
            now, n_proven = dual, 0
            if links:
                last, ratio = links[-1], factor / factors[k - 1]
                start = replace(dual, upper=last.upper, alpha=last.solution.alpha)
                now = _scaled(start, last.solution.u, ratio, dual.upper * factor)
                proven = np.zeros(matrix.n, dtype=np.bool_)
                if norms is not None:
                    norms = _distances_from_mean(matrix, norms) if k == 1 else norms
                    values = prove(start, path_ball(start, last.solution.u, ratio), norms, ratio=ratio)
                    n_proven = int(np.isfinite(values).all(axis=0).sum())
                    at_zero, at_upper = (values == 0.0) & (now.alpha <= 0.0), (values > 0.0) & (now.alpha >= now.upper)
                    proven = np.asarray((at_zero | at_upper).all(axis=0))
                if np.dtype(dtypes[k]) != matrix.dtype == np.float32:
                    matrix.set_dtype(np.float64)
                # With all rows in the cache shorter ones gain nothing, and other columns are needed at the next C.
                is_tight = matrix.dtype.itemsize * matrix.n * matrix.n > cache_bytes
                _activate(matrix, proven & is_tight)
            found = solve(now, matrix, tol=tol, max_iter=int(model.max_iter), elimination=model._policy())
            totals = _counted(matrix, shared) - before
            matrix.peers.add_up(totals)
            counts = replace(found.counts, n_evaluations=int(totals[0]), n_hits=int(totals[1]))
            found = replace(found, counts=counts)
            links.append(Link(found, now.upper, n_proven, int(totals[2]), time.perf_counter() - begin))
        return links

    def build(self, index: int, known: dict[bytes, Link]) -> Any:
        """Return the fitted estimator of a point."""
        j, k = divmod(index, len(self.costs))

        def answer(posed: Posed) -> Solution:
            found, upper = known[posed.rows.tobytes()], posed.dual.upper
            # The bounds of a fit and those of the chain may differ in the last bit.
            alpha = np.where(found.solution.alpha >= found.upper, upper, found.solution.alpha)
            return replace(found.solution, alpha=np.minimum(alpha, upper))

        model = self._model(self.gammas[j], self.costs[k])
        if self.record is None:
            return self._fit(model, answer)
        model.__dict__.update(self.common)
        return self.record.build(model, j, answer)

    def _fit(self, model: Any, answer: Any) -> Any:
        model._answer = answer
        model.fit(self.X, self.y, sample_weight=self.sample_weight)
        for name in ("_answer", "_width_of"):
            vars(model).pop(name, None)
        return model


def _width(model: Any, gamma: float | str) -> float:
    """Return the number behind a gamma, which depends on the rows that the fit of the model keeps."""
    if not isinstance(gamma, str):
        return float(gamma)
    # Kernels whose values are given, or computed by a function, have none.
    return 0.0 if model._width_of is None else float(model._width_of(gamma))
