"""Training and prediction shared by the linear SVMs."""

from __future__ import annotations

import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from joblib import effective_n_jobs
from sklearn.exceptions import ConvergenceWarning

from dsgd.collectives import Team
from dsgd.errors import IncompatiblePartsError
from dsgd.inputs.blocks import Block, BlockSummary, Work
from dsgd.inputs.docstrings import inherit_method_docs
from dsgd.inputs.linear import AbstractLinearEstimator
from dsgd.inputs.rows import check_any_weight, check_sample_weight
from dsgd.linear_model.base import run_on_blocks
from dsgd.linear_model.fits import Packer
from dsgd.runtime.pools import limit_blas
from dsgd.svm.certify import count_proven
from dsgd.svm.distributed.linear import LinearJob, LinearPacker, LinearResult, LinearShare, train_linear
from dsgd.svm.estimators.conversion import linear_machine_from_sklearn, linear_machine_to_sklearn
from dsgd.svm.linear_solver.problem import LOSSES, LinearProblem, LinearSolution, gather_rows
from dsgd.svm.linear_solver.solve import SOLVERS
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import as_random_state, check_bool, check_choice, check_n_jobs, check_number, warn_user


@dataclass(eq=False, repr=False, kw_only=True)
class LinearParameters:
    """The parameters of both linear SVMs, with scikit-learn's names and defaults where it has them."""

    dual: bool | str = "auto"
    tol: float = 1e-4
    C: float = 1.0
    fit_intercept: bool = True
    intercept_scaling: float = 1.0
    verbose: int = 0
    random_state: Any = None
    max_iter: int = 1000
    solver: str = "auto"
    penalize_intercept: bool = True
    n_jobs: int | None = None
    client: Any = None


@inherit_method_docs
class AbstractLinearSVM(LinearParameters, AbstractLinearEstimator):
    """Linear support vector machine; the base class of `LinearSVC` and `LinearSVR`.

    Parameters
    ----------
    dual : bool or "auto", default "auto"
        scikit-learn's way to choose the solver: True is ``solver="dual_cd"``, False is ``solver="newton"``.
    tol : float, default 1e-4
        Relative duality gap, (primal - dual) / primal, to reach.
    C : float, default 1.0
        Weight of the losses against the penalty.
    fit_intercept : bool, default True
        Whether to append a constant feature.
    intercept_scaling : float, default 1.0
        Value of the constant feature; the larger, the less its weight is penalised.
    random_state : int, RandomState or None, default None
        Seeds the order in which coordinate descent visits rows.
    max_iter : int, default 1000
        Maximal number of passes of coordinate descent over the rows, and of Newton steps.
    penalize_intercept : bool, default True
        Whether the penalty includes the intercept, as in scikit-learn. False leaves it out exactly, and
        `intercept_scaling` then has no effect on the result.
    client : `dsgd.Gang`, distributed.Client or None, default None
        Where to train and how: a cluster, or a `dsgd.Gang`, of which `transport`, `timeouts`, `workers` and
        `on_failure` are taken; after a failure new ranks start again. None trains in this process.

    Attributes
    ----------
    n_features_in_ : int
        Features seen in ``fit``.
    feature_names_in_ : array, shape (n_features,)
        Their names, if X had any.
    ledger_ : dsgd.ledger.Ledger
        Seconds and bytes of every rank; after training on a cluster.
    fit_report_ : dict
        ``ranks``, ``elapsed_s``, ``converged``, ``certificates`` (method, seconds, exchanges, bytes that rank 0 sent,
        primal and dual value of each), ``peak_rss_bytes`` and ``stats`` per rank; after training on a cluster.
    """

    loss: str

    _takes: ClassVar = ("on_failure",)

    #: One of those that have `LOSSES`.
    _TASK: ClassVar[str]

    @abstractmethod
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        X : array, sparse matrix, DataFrame, dask array or dataframe, list of delayed blocks, or files
            Rows, shape (n_samples, n_features); CSR indices may have 32 or 64 bits. Files are svmlight, Parquet, CSV or
            Arrow.
        sample_weight : array-like, dask collection, str or None, shape (n_samples,)
            Factors of C by row, or the name of their column. A whole number stands for that many copies of the row,
            zero for none, exactly.
        """

    @abstractmethod
    def _check_rows(self, X: Any, y: Any, sample_weight: Any) -> Block:
        """Validate arrays of this process; return (X, y, sample_weight)."""

    def _classes_of(self, summaries: Sequence[BlockSummary]) -> AnyArray | None:
        """Set the classes that blocks have between them, and return them; None for regression."""
        return None

    @abstractmethod
    def _make_job(self, seed: int) -> LinearJob:
        """Return the problem to solve, given the classes."""

    def _check_parameters(self) -> None:
        """Check every parameter that both estimators have."""
        name = type(self).__name__
        check_choice(f"{name}(loss=...)", self.loss, LOSSES[self._TASK])
        check_choice(f"{name}(solver=...)", self.solver, SOLVERS)
        if not (isinstance(self.dual, str) and self.dual == "auto"):
            check_bool(f"{name}(dual=...) other than 'auto'", self.dual)
        check_number(f"{name}(tol=...)", self.tol, low=0, open_low=True)
        check_number(f"{name}(C=...)", self.C, low=0, open_low=True, high=np.inf, open_high=True)
        check_bool(f"{name}(fit_intercept=...)", self.fit_intercept)
        check_bool(f"{name}(penalize_intercept=...)", self.penalize_intercept)
        check_number(f"{name}(intercept_scaling=...)", self.intercept_scaling, low=0, open_low=True)
        check_number(f"{name}(max_iter=...)", self.max_iter, low=0, integer=True)
        check_n_jobs(name, self.n_jobs)

    def _solver(self) -> str:
        """Return the solver that `solver` and `dual` name together."""
        asked = "auto" if isinstance(self.dual, str) else ("dual_cd" if self.dual else "newton")
        if "auto" not in (asked, self.solver) and asked != self.solver:
            raise IncompatiblePartsError(
                f"{type(self).__name__}(dual={self.dual!r}, solver={self.solver!r}) contradict each other: dual=True "
                'is solver="dual_cd", dual=False is solver="newton". Leave one of them at "auto".'
            )
        return asked if self.solver == "auto" else self.solver

    def _refuse_on_cluster(self, name: str, has_it: bool) -> None:
        """Raise for a parameter that only a fit in this process takes."""
        if has_it:
            value = getattr(self, name)
            raise IncompatiblePartsError(
                f"{type(self).__name__}({name}={value!r}) is solved in this process only: pass arrays, and client=None."
            )

    def _bias(self) -> float:
        return float(self.intercept_scaling) if self.fit_intercept else 0.0

    def _seed(self) -> int:
        return int(as_random_state(type(self).__name__, self.random_state).randint(np.iinfo(np.int32).max))

    def _check_weights(self, sample_weight: Any, X: Any) -> FloatVector:
        """Return the weights of the rows, float64."""
        weights = check_sample_weight(sample_weight, np.empty((X.shape[0], 0)))
        check_any_weight(weights)
        return np.ones(X.shape[0]) if weights is None else weights

    def _solve(self, n_problems: int, solve: Callable[[int, Team], LinearSolution]) -> list[LinearSolution]:
        """Solve the problems: one after the other with all threads on its rows, or several at a time."""
        n_threads = effective_n_jobs(self.n_jobs)
        n_at_once = min(n_problems, n_threads)

        def work(k: int) -> LinearSolution:
            team = Team(n_threads if n_at_once == 1 else 1)
            try:
                return solve(k, team)
            finally:
                team.close()

        # BLAS would use every core, whatever n_jobs says; and if its threads compete with ours, a factor of 250 columns
        # takes a hundred times as long. Our threads share the rows of its large products.
        with limit_blas(1):
            if n_at_once == 1:
                return [work(k) for k in range(n_problems)]
            with ThreadPoolExecutor(n_at_once, "dsgd-linear") as pool:
                return list(pool.map(work, range(n_problems)))

    def _solve_on_cluster(self, X: Any, y: Any, sample_weight: Any) -> LinearResult:
        """Solve on worker processes."""
        self._refuse_on_cluster("penalize_intercept", self.fit_intercept and not self.penalize_intercept)
        begin, seed, given = time.perf_counter(), self._seed(), (X, y, sample_weight)

        def work(rows: Packer) -> Work:
            job = self._make_job(seed)
            packer = LinearPacker(rows, self._bias(), seed, holds_out=job.hold_out is not None)
            return Work(train_linear, packer, (job,), numbered=packer.holds_out)

        is_classifier = self._TASK == "classification"
        gang = run_on_blocks(self, given, lambda: self._check_rows(*given), work, has_classes=is_classifier)
        result: LinearResult = gang.value
        self._take_report(
            gang,
            elapsed_s=time.perf_counter() - begin,
            converged=all(solution.converged for solution in result.solutions),
            certificates=[asdict(record) for record in result.history],
        )
        return result

    def to_sklearn(self) -> Any:
        """Return the plain scikit-learn estimator with the same weights.

        Returns
        -------
        estimator
            The class of this name in `sklearn.svm`, fitted; predicts without dsgd.
        """
        return linear_machine_to_sklearn(self)

    @classmethod
    def from_sklearn(cls, model: Any) -> Self:
        """Return a machine with the weights of scikit-learn's.

        Parameters
        ----------
        model : estimator
            The class of this name in `sklearn.svm`, fitted.

        Returns
        -------
        estimator
            A fitted estimator of this class with the same predictions. It has the certificate of a solution (`gap_`,
            `converged_`) only after its own ``fit``.

        Raises
        ------
        InvalidParameterError
            `model` is another kind of estimator.
        """
        made: Self = linear_machine_from_sklearn(cls, model)
        return made

    def _job(
        self, seed: int, *, epsilon: float = 0.0, class_factors: FloatVector | str | None = None, n_classes: int = 0
    ) -> LinearJob:
        return LinearJob(
            loss=self.loss,
            C=float(self.C),
            epsilon=epsilon,
            penalizes_intercept=self.penalize_intercept,
            class_factors=class_factors,
            n_classes=n_classes,
            solver=self._solver(),
            tol=float(self.tol),
            max_iter=int(self.max_iter),
            seed=seed,
        )

    def _gather(self, X: Any, targets: AnyArray, weights: FloatVector, seed: int) -> LinearShare:
        """Return the rows of this process for the solver: merged and in order."""
        with closing(Team(effective_n_jobs(self.n_jobs))) as team:
            return LinearShare(*gather_rows(X, targets, weights, bias=self._bias(), seed=seed, team=team))

    def _solve_l2(self, job: LinearJob, problem: LinearProblem, team: Team) -> LinearSolution:
        """Solve one output with the squared norm."""
        solution = job.solve(problem, team)
        return replace(solution, n_proven=count_proven(problem, solution, team))

    def _take_in(self, solutions: Sequence[LinearSolution]) -> None:
        """Set what certifies the solution, and warn if it falls short."""
        weights = np.vstack([solution.weights for solution in solutions])
        self.coef_: Any = np.ascontiguousarray(weights[:, :-1])
        self.intercept_: Any = weights[:, -1] * self.intercept_scaling if self.fit_intercept else 0.0
        self.n_iter_ = max(solution.n_iter for solution in solutions)
        self.gap_ = max(solution.gap for solution in solutions)
        self.converged_ = all(solution.converged for solution in solutions)
        self.primal_objective_: Any = np.array([solution.primal for solution in solutions])
        self.dual_objective_: Any = np.array([solution.dual for solution in solutions])
        self.n_screened_: Any = np.array([solution.n_proven for solution in solutions])
        self.solver_: Any = [solution.solver for solution in solutions]
        if self.verbose:
            for number, s in enumerate(solutions):
                sys.stdout.write(
                    f"output {number}: {s.solver}, {s.n_iter} iterations, objective {s.primal:.9g}, "
                    f"relative gap {s.gap:.2g}\n"
                )
        if not self.converged_:
            warn_user(
                f"{type(self).__name__} stopped at max_iter={self.max_iter} with a relative duality gap of "
                f"{self.gap_:.3g}, above tol={self.tol:g}: the objective is within that share of the optimum. Increase "
                "max_iter, scale the features, or decrease C.",
                ConvergenceWarning,
            )
