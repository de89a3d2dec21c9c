"""`LinearSVC` and `LinearSVR`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import scipy.sparse as sp
from joblib import effective_n_jobs
from sklearn.svm import LinearSVC as LiblinearSVC
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dsgd.collectives import Team
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.inputs.blocks import Block
from dsgd.inputs.callbacks import notifies_callbacks
from dsgd.inputs.docstrings import inherit_docs
from dsgd.inputs.frames import validated
from dsgd.inputs.linear import AbstractLinearClassifier, AbstractLinearRegressor, answers_in_kind
from dsgd.inputs.named import takes_tables
from dsgd.linear_model.base import ClassesMixin, forget_cluster
from dsgd.svm.calibration import METHODS, AbstractCalibrated, draw_seed, has_curves, normalised
from dsgd.svm.distributed.linear import HeldRows, HoldOut, LinearJob, LinearShare, Starts, fit_held_out
from dsgd.svm.estimators.linear_base import AbstractLinearSVM
from dsgd.svm.linear_solver.problem import LinearProblem, LinearRows, LinearSolution
from dsgd.svm.linear_solver.solve import make_l1_columns, solve_l1
from dsgd.types import FloatMatrix, FloatVector, IntVector
from dsgd.validation import check_choice, check_number


@inherit_docs
@dataclass(eq=False, repr=False)
class LinearSVC(ClassesMixin, AbstractCalibrated, AbstractLinearClassifier, AbstractLinearSVM):
    """Linear support vector classifier, solved to a certified duality gap.

    Minimises over w, one output per class if there are more than two::

        (1/2) |w|^2 + sum_i C_i loss(w'[x_i, intercept_scaling], y_i)

    with ``C_i = C * class_weight * sample_weight``, or with the other penalty or the joint problem below: the objective
    of scikit-learn's class of this name, including the penalised intercept. It returns when an upper bound of the
    relative error of the objective, computed over all rows in float64, is at most `tol`, and warns if it cannot reach
    this.

    Parameters
    ----------
    penalty : {"l2", "l1"}, default "l2"
        The penalty of the weights: half the sum of their squares or, with the squared hinge, the sum of their absolute
        values, which leaves most of them zero.
    loss : {"squared_hinge", "hinge"}, default "squared_hinge"
        The loss.
    multi_class : {"ovr", "crammer_singer"}, default "ovr"
        One output per class, against the rest; or one joint problem of all classes, whose hinge is the largest excess
        of another class's score. scikit-learn's class of this name, that is LIBLINEAR, solves the joint problem, on one
        thread and without a certificate: `tol` is on its gradients, and `loss` and `dual` have no effect.
    probability : {False, "sigmoid", "isotonic"}, default False
        Whether `predict_proba` is available, and which curves turn decision values into probabilities. They are fitted
        to scores of unseen rows, from five more machines trained on four fifths of the rows each (stratified folds of
        the rows in order, or shuffled with a `random_state`). This equals ``CalibratedClassifierCV(...,
        ensemble=False)`` of scikit-learn: a curve for each output, normalised over the classes. ``predict`` and
        ``decision_function`` do not change. Unlike the order of visits, the folds are the same in every fit if
        `random_state` is None.
    class_weight : dict, "balanced" or None, default None
        Factors of C by class, not all zero. With more than two classes, they apply to the rows of an output's own
        class, as in scikit-learn: rows of a class of weight zero are still among the rest for the other outputs.
        "balanced" gives all classes the same total of sample weights.
    verbose : int, default 0
        Print solver, iterations and gap of every output.
    solver : {"auto", "dual_cd", "newton", "cocoa"}, default "auto"
        ``"dual_cd"`` is dual coordinate descent with elimination of rows, ``"newton"`` Newton's method on the rows that
        have curvature. ``"auto"`` chooses by cost, and switches if the first is slow. ``"cocoa"`` is CoCoA+ alone,
        coordinate descent on the rows of every rank at once, with which the others start on a cluster. The penalty l1
        and the joint problem have one solver each, which "auto" selects.
    n_jobs : int or None, default None
        Number of threads, over classes if there are several; on a cluster, number of workers. None is one thread, or
        every worker; -1 is all cores.

    Attributes
    ----------
    coef_ : array of float64, shape (1, n_features) or (n_classes, n_features)
        Weights.
    intercept_ : array of float64, shape (1,) or (n_classes,), or 0.0
        Intercepts.
    classes_ : array, shape (n_classes,)
        Class labels, sorted.
    n_iter_ : int
        Passes and Newton steps of the output that took the most.
    gap_ : float
        Largest relative duality gap of an output; NaN for the joint problem, whose dual variables LIBLINEAR keeps to
        itself.
    converged_ : bool
        Whether every output has a gap of at most `tol`; for the joint problem, whether LIBLINEAR stopped by itself.
    primal_objective_, dual_objective_ : array of float64, shape (n_outputs,)
        The objective, and a lower bound of its minimum; the joint problem has one objective, and no bound (NaN).
    n_screened_ : int array, shape (n_outputs,)
        Rows (equal ones counted once) whose dual variable the gap proves to have its final value: zero, or C with the
        hinge loss, at every optimum. 0 for ``penalty="l1"`` and ``multi_class="crammer_singer"``.
    solver_ : list of str
        The solver of each output.

    See Also
    --------
    dsgd.SGDClassifier : Trains the same model by SGD, on data of any size and on a cluster, to moderate accuracy.
    LinearSVR : Regression.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd.svm import LinearSVC
    >>> X = np.array([[-2.0, 0.5], [-1.0, -0.5], [1.0, 0.3], [2.0, -0.4]])
    >>> model = LinearSVC(random_state=0).fit(X, [0, 0, 1, 1])
    >>> model.predict([[-1.5, 0.0], [1.5, 0.0]])
    array([0, 1])
    >>> bool(model.gap_ <= 1e-4)
    True
    """

    _TASK: ClassVar[str] = "classification"
    #: A machine of similar rows, with the same parameters, at which a fit may begin; `dsgd.accel` sets it.
    _near: ClassVar[Any] = None

    penalty: str = "l2"
    loss: str = "squared_hinge"
    _: KW_ONLY
    multi_class: str = "ovr"
    probability: bool | str = False
    class_weight: Any = None

    @notifies_callbacks
    @takes_tables
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        y : array-like, dask collection or str, shape (n_samples,)
            Class labels, or the name of their column; None if blocks or svmlight files hold them.

        Raises
        ------
        InvalidDataError
            The data cannot be trained on, or hold only one class; or a class has fewer than the five rows that
            `probability` needs.
        """
        self._check_parameters()
        self._check_choices()
        if self._uses_cluster(X):
            self._refuse_on_cluster("penalty", self.penalty == "l1")
            self._refuse_on_cluster("multi_class", self.multi_class == "crammer_singer")
            result = self._solve_on_cluster(X, y, sample_weight)
            self._curves = (self._curve_method(), result.curves)
            self._take_in(result.solutions)
            return self
        forget_cluster(self)
        X, y, weights = self._check_rows(X, y, sample_weight)
        codes = self._learn_classes(y)
        job = self._make_job(self._seed())
        factors = job.factors(np.bincount(codes, weights, job.n_classes).astype(np.float64))
        if self.multi_class == "crammer_singer":
            return self._fit_jointly(X, codes, weights * factors[codes])
        data = self._gather(X, codes, weights, job.seed)
        solutions = self._solve_outputs(job, data, factors, None if self._near is None else self._begin_near)
        self._curves = (self._curve_method(), self._fit_curves(X, codes, weights, job, solutions))
        self._take_in(solutions)
        return self

    def _fit_jointly(self, X: Any, codes: IntVector, weights: FloatVector) -> Self:
        """Solve the problem of Crammer and Singer by scikit-learn's class of this name."""
        left_out = np.bincount(codes, weights) == 0.0
        if left_out.any():
            raise InvalidDataError(
                'LinearSVC(multi_class="crammer_singer") needs rows of weight above zero in every class. Got none of '
                f'{self.classes_[left_out].tolist()}: leave these classes out of X and y, or use multi_class="ovr".'
            )
        if sp.issparse(X):
            if max(X.nnz, X.shape[1]) >= 2**31:
                raise InvalidDataError(
                    'LinearSVC(multi_class="crammer_singer") takes fewer than 2**31 entries and columns. Got '
                    f'{X.nnz} and {X.shape[1]}: use multi_class="ovr".'
                )
            X = sp.csr_array((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), X.shape)
        solver = LiblinearSVC(
            multi_class="crammer_singer",
            C=self.C,
            tol=self.tol,
            fit_intercept=self.fit_intercept,
            intercept_scaling=self.intercept_scaling,
            verbose=self.verbose,
            random_state=self.random_state,
            max_iter=self.max_iter,
        ).fit(X, codes, weights)
        self.coef_, self.intercept_, self.n_iter_ = solver.coef_, solver.intercept_, int(solver.n_iter_)
        scores = X @ self.coef_.T + self.intercept_
        norm = np.vdot(self.coef_, self.coef_) + np.sum(np.square(self.intercept_ / self.intercept_scaling))
        if scores.shape[1] == 1:  # the difference of two vectors whose sum is zero
            scores, norm = np.hstack([-scores, scores]) / 2, norm / 2
        excess = 1.0 + scores - np.take_along_axis(scores, codes[:, None], axis=1)
        np.put_along_axis(excess, codes[:, None], 0.0, axis=1)
        self.primal_objective_ = np.array([0.5 * norm + self.C * weights @ excess.max(axis=1)])
        self.dual_objective_, self.gap_ = np.array([np.nan]), np.nan
        self.n_screened_ = np.zeros(1, np.int64)
        self.solver_, self.converged_ = ["liblinear"], self.n_iter_ < self.max_iter
        self._curves = (None, [])
        return self

    def _solve_outputs(
        self,
        job: LinearJob,
        data: LinearShare,
        factors: FloatVector,
        begin: Callable[[int, LinearProblem], LinearSolution | None] | None = None,
    ) -> list[LinearSolution]:
        """Solve all problems in this process; ``begin(output, problem)`` returns where one may begin."""
        columns = None
        if self.penalty == "l1":
            columns = make_l1_columns(data.rows, penalizes_intercept=self.penalize_intercept)

        def solve(k: int, team: Team) -> LinearSolution:
            problem = job.pose(data, factors, k)
            if columns is not None:
                return solve_l1(problem, columns, tol=job.tol, max_iter=job.max_iter)
            if begin is not None:
                return job.solve(problem, team, begin(k, problem))
            return self._solve_l2(job, problem, team)

        return self._solve(job.n_outputs, solve)

    def _begin_near(self, output: int, problem: LinearProblem) -> LinearSolution | None:
        """Return the weights of the machine of similar rows as a start; None unless Newton's method is to run."""
        near, n_rows, width = self._near, problem.rows.n_rows, problem.rows.width
        if not problem.is_smooth or n_rows < width or not np.array_equal(near.classes_, self.classes_):
            return None
        weights = np.append(
            near.coef_[output], near.intercept_[output] / self.intercept_scaling if self.fit_intercept else 0.0
        )
        return (
            LinearSolution(weights, np.zeros(n_rows), np.inf, -np.inf, 0, False, "") if len(weights) == width else None
        )

    def _fit_curves(
        self, X: Any, codes: IntVector, weights: FloatVector, job: LinearJob, solutions: list[LinearSolution]
    ) -> list[FloatMatrix]:
        """Return the calibration curves, of machines that are trained in this process; none without a `probability`."""
        if job.hold_out is None:
            return []
        may_begin = self.penalty == "l2"
        with closing(Team(effective_n_jobs(self.n_jobs))) as team:
            numbers = np.arange(len(codes))
            held = HeldRows.of(X, codes, weights, numbers, bias=self._bias(), seed=job.seed, team=team)
            starts = Starts(solutions, held.rows.n_rows)

            def train(rows: LinearRows, codes: IntVector, weights: FloatVector, kept: IntVector) -> FloatMatrix:
                part = LinearShare(rows, codes.astype(np.float64), weights)
                factors = job.factors(np.bincount(codes, weights, job.n_classes).astype(np.float64))
                begin = partial(starts.of, kept=kept) if may_begin else None
                found = self._solve_outputs(job, part, factors, begin)
                if may_begin:
                    for output, solution in enumerate(found):
                        starts.take(output, solution, kept)
                return np.vstack([solution.weights for solution in found])

            return fit_held_out(held, job.hold_out, train, team)

    @available_if(has_curves)
    @answers_in_kind
    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities; only available with `probability`.

        Returns
        -------
        array, shape (n, n_classes)
            Probabilities, in the order of ``classes_``. With ``"isotonic"``, they may be zero.
        """
        check_is_fitted(self)
        if self._is_lazy(X):
            return self._apply("predict_proba", X, len(self.classes_), np.float64)
        return normalised(self._probabilities(self._scores(X)))

    def _check_choices(self) -> None:
        """Check the parameters that classification alone has."""
        check_choice("LinearSVC(penalty=...)", self.penalty, ["l2", "l1"])
        check_choice("LinearSVC(multi_class=...)", self.multi_class, ["ovr", "crammer_singer"])
        if not (self.probability is False or self.probability in METHODS):
            raise InvalidParameterError(
                f'LinearSVC(probability=...) must be False, "sigmoid" or "isotonic". Got {self.probability!r}.'
            )
        asked = self._solver()
        if self.penalty == "l1":
            self._refuse(self.loss != "squared_hinge", "penalty", "loss", 'takes loss="squared_hinge" alone')
            self._refuse(self.dual is True, "penalty", "dual", "is solved in the primal: leave dual at 'auto'")
            self._refuse(asked in ("dual_cd", "cocoa"), "penalty", "solver", "has one solver: leave solver at 'auto'")
        if self.multi_class == "crammer_singer":
            self._refuse(self.penalty != "l2", "multi_class", "penalty", 'takes penalty="l2" alone')
            self._refuse(
                self.solver in ("newton", "cocoa"), "multi_class", "solver", "has one solver: leave solver at 'auto'"
            )
            free = self.fit_intercept and not self.penalize_intercept
            self._refuse(free, "multi_class", "penalize_intercept", "penalises its intercepts")
            hint = "has no probabilities: put scikit-learn's CalibratedClassifierCV around it"
            self._refuse(self._curve_method() is not None, "multi_class", "probability", hint)

    def _refuse(self, is_wrong: bool, left: str, right: str, reason: str) -> None:
        """Raise for two parameters that contradict each other."""
        if is_wrong:
            raise IncompatiblePartsError(
                f"Unsupported set of arguments: LinearSVC({left}={getattr(self, left)!r}) {reason}. Got "
                f"{right}={getattr(self, right)!r}; penalty={self.penalty!r}, loss={self.loss!r}, dual={self.dual!r}."
            )

    def _check_rows(self, X: Any, y: Any, sample_weight: Any) -> Block:
        X, y = validated(self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], order="C")
        return X, y, self._check_weights(sample_weight, X)

    def _make_job(self, seed: int) -> LinearJob:
        job = self._job(seed, class_factors=self._class_factors(), n_classes=len(self.classes_))
        method = self._curve_method()
        if method is None:
            return job
        # A generator draws after it has drawn the seed of the order, so that this is the same as without probability.
        self._fold_seed = draw_seed(type(self).__name__, self.random_state)
        return replace(job, hold_out=HoldOut(method, self.classes_, self._fold_seed))


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
    loss: str = "epsilon_insensitive"

    @notifies_callbacks
    @takes_tables
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train."""
        self._check_parameters()
        check_number("LinearSVR(epsilon=...)", self.epsilon, low=0)
        if self._uses_cluster(X):
            solutions = self._solve_on_cluster(X, y, sample_weight).solutions
        else:
            forget_cluster(self)
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

    def _make_job(self, seed: int) -> LinearJob:
        return self._job(seed, epsilon=float(self.epsilon))
