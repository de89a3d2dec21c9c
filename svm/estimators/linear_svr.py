"""`LinearSVR`: linear support vector regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dsgd.comm.base import TransportName
from dsgd.inputs import Block, BlockSummary, notifies_callbacks, validated
from dsgd.inputs.docstrings import inherit_docs
from dsgd.inputs.named import takes_tables
from dsgd.inputs.prediction import AbstractLinearRegressor
from dsgd.runtime.timeouts import FailurePolicy
from dsgd.svm.distributed.linear import LinearJob
from dsgd.svm.estimators.linear_base import AbstractLinearSVM
from dsgd.validation import check_number


@inherit_docs
@dataclass(eq=False, repr=False, kw_only=True)
class LinearSVR(AbstractLinearRegressor, AbstractLinearSVM):
    """Linear support vector regression, solved to a certified duality gap.

    Minimises over w::

        (1/2) |w|^2 + sum_i C_i loss(|y_i - w'[x_i, intercept_scaling]| - epsilon)

    where the loss of a negative number is zero and ``C_i = C * sample_weight``: the objective of scikit-learn's class
    of this name, including the penalised intercept. It returns when an upper bound of the relative error of the
    objective, computed over all rows in float64, is at most `tol`, and warns if it cannot reach this.

    Parameters
    ----------
    epsilon : float, default 0.0
        Half the width of the tube in which errors cost nothing, in units of y.
    loss : {"epsilon_insensitive", "squared_epsilon_insensitive"}, default "epsilon_insensitive"
        The loss.
    verbose : int, default 0
        Print solver, iterations and gap.
    solver : {"auto", "dual_cd", "newton", "cocoa"}, default "auto"
        ``"dual_cd"`` is dual coordinate descent with elimination of rows, ``"newton"`` Newton's method on the rows that
        have curvature. ``"auto"`` chooses by cost, and switches if the first is slow. ``"cocoa"`` is CoCoA+ alone,
        coordinate descent on the rows of every rank at once, with which the others start on a cluster.
    n_jobs : int or None, default None
        Number of threads; on a cluster, number of workers. None is one thread, or every worker; -1 is all cores.

    Attributes
    ----------
    coef_ : array of float64, shape (n_features,)
        Weights.
    intercept_ : array of float64, shape (1,), or 0.0
        Intercept.
    n_iter_ : int
        Passes and Newton steps.
    gap_ : float
        Relative duality gap.
    converged_ : bool
        Whether it is at most `tol`.
    primal_objective_, dual_objective_ : float
        The objective, and a lower bound of its minimum.
    n_screened_ : int
        Rows (equal ones counted once) for which the gap proves that the dual variable is, at every optimum, at zero or
        at an end of its interval.
    solver_ : str
        The solver.

    See Also
    --------
    dsgd.SGDRegressor : Trains the same model by SGD, on data of any size and on a cluster, to moderate accuracy.
    LinearSVC : Classification.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd.svm import LinearSVR
    >>> X = np.linspace(-1, 1, 50)[:, None]
    >>> model = LinearSVR(C=10.0, random_state=0).fit(X, 2 * X.ravel())
    >>> round(float(model.coef_[0]), 2)
    2.0
    """

    _TASK: ClassVar[str] = "regression"

    epsilon: float = 0.0
    tol: float = 1e-4
    C: float = 1.0
    loss: str = "epsilon_insensitive"
    fit_intercept: bool = True
    intercept_scaling: float = 1.0
    dual: bool | str = "auto"
    verbose: int = 0
    random_state: Any = None
    max_iter: int = 1000
    solver: str = "auto"
    penalize_intercept: bool = True
    n_jobs: int | None = None
    client: Any = None
    transport: TransportName = "auto"
    on_failure: FailurePolicy = "raise"

    @notifies_callbacks
    @takes_tables
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train."""
        self._check_parameters()
        check_number("LinearSVR(epsilon=...)", self.epsilon, low=0)
        if self._uses_cluster(X):
            solutions = self._solve_on_cluster(X, y, sample_weight).solutions
        else:
            self._forget_cluster()
            X, y, weights = self._check_rows(X, y, sample_weight)
            job = self._make_job(self._seed())
            data = self._gather(X, y, weights, job.seed)
            problem = job.pose(data, np.ones(1), 0)
            solutions = self._solve(1, lambda _, team: self._solve_l2(job, problem, team))
        self._take_in(solutions)
        self.coef_ = self.coef_.ravel()
        self.primal_objective_, self.dual_objective_ = solutions[0].primal, solutions[0].dual
        self.solver_, self.n_screened_ = solutions[0].solver, solutions[0].n_proven
        return self

    def _check_rows(self, X: Any, y: Any, sample_weight: Any) -> Block:
        X, y = validated(self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], order="C", y_numeric=True)
        return X, y, self._check_weights(sample_weight, X)

    def _classes_of(self, summaries: Sequence[BlockSummary]) -> None:
        return None

    def _make_job(self, seed: int) -> LinearJob:
        return self._job(seed, epsilon=float(self.epsilon))
