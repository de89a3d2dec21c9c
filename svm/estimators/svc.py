"""Support vector classification with kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsgd.comm.base import TransportName
from dsgd.svm.estimators.one_vs_one import AbstractKernelClassifier
from dsgd.svm.kernel_solver.elimination import Elimination
from dsgd.svm.kernel_solver.problem import Dual, Solution
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import check_choice, check_number

__all__ = ["SVC"]


class SVC(AbstractKernelClassifier):
    """Support vector classification, to LIBSVM's optimum, with a gap over all samples in float64 that says so.

    Minimises ½‖w‖² + Σ C_i max(0, 1 − y_i (w'φ(x_i) + b)) by its dual; several classes are trained one against one.
    Parameters, defaults and fitted attributes are those of `sklearn.svm.SVC`.

    Parameters
    ----------
    C : float, default 1.0
        Cost of violating the margin; C_i is C times class weight times sample weight.
    kernel : {"linear", "poly", "rbf", "sigmoid", "precomputed"} or callable, default "rbf"
        The kernel. A callable gets two blocks of rows and returns the values of all pairs; it is called for blocks,
        never for the whole matrix at once. Rows that are no vectors, such as texts, it gets all at once, as lists.
    degree : int, default 3
        Degree of ``"poly"``, not negative.
    gamma : {"scale", "auto"} or float, default "scale"
        Width of rbf, poly and sigmoid: 1/(d Var X), 1/d or a number. Var X counts rows by their sample weights.
    coef0 : float, default 0.0
        Constant of poly and sigmoid.
    shrinking : bool, default True
        False turns elimination off.
    probability : bool, default "deprecated"
        Whether `predict_proba` is there, as in scikit-learn: a sigmoid for each pair of classes, fitted to scores of
        five more machines (`dsgd.svm.estimators.platt`). Deprecated, as there, in favour of
        ``CalibratedClassifierCV(SVC(), ensemble=False)``: any value but the default warns so.
    tol : float, default 1e-3
        Stop when the largest violation of optimality, over all samples in float64, is below.
    cache_size : float, default 200
        Megabytes of cached kernel rows at most.
    class_weight : dict, "balanced" or None, default None
        Weight of each class.
    verbose : bool, default False
        Print a line per pair of classes.
    max_iter : int, default -1
        Two-variable steps per pair of classes at most; −1 is max(10⁷, 100 n).
    decision_function_shape : {"ovr", "ovo"}, default "ovr"
        One column per class, or per pair of classes, when there are more than two.
    break_ties : bool, default False
        With ``"ovr"``, predict the class of the largest decision value instead of the first of those with most votes.
    random_state : int, RandomState or None, default None
        Draws the rows that each of the five machines of ``probability`` does not see: with the same number, those that
        scikit-learn's do not see.
    elimination : str or dsgd.svm.Elimination, default "auto"
        When samples that look settled are left out: ``"none"``, ``"single"``, ``"multi"``, ``"libsvm"``, the presets
        ``"aggressive"``, ``"average"``, ``"conservative"``, or ``"auto"``: ``"multi"`` once kernel rows have filled
        half of a cache too small for all, or were read often. Has no influence on the accuracy of the result.
    solver : {"block", "pairwise"}, default "block"
        ``"pairwise"`` is the published parallel algorithm, one pair per step and no cache
        (`dsgd.svm.kernel_solver.pairwise`): the same optimum, much slower; for studies.
    n_jobs : int or None, default None
        Threads, on a cluster those of each rank; None takes as many as BLAS may use, −1 all cores, and on a
        cluster either takes those of the worker.
    client : distributed.Client or None, default None
        The cluster to train on, one rank per worker process. None trains arrays in this process and dask collections on
        the current client, or on a local cluster that is closed afterwards.
    transport : {"auto", "spin", "shm", "tcp", "rpc", "gloo", "mpi"}, default "auto"
        What ranks on a cluster talk over: shared memory inside a host and TCP between hosts; see
        `dsgd.runtime.run_on_cluster`.

    Attributes
    ----------
    classes_ : array, shape (n_classes,)
        The labels, sorted.
    class_weight_ : array, shape (n_classes,)
        Their weights.
    support_ : int32 array, shape (n_SV,)
        Rows that are support vectors, by class.
    support_vectors_ : array or CSR matrix, shape (n_SV, n_features)
        Those rows; empty with ``"precomputed"``.
    n_support_ : int32 array, shape (n_classes,)
        Support vectors of each class.
    dual_coef_ : array or CSR matrix, shape (n_classes - 1, n_SV)
        Their coefficients y α, laid out as in scikit-learn.
    intercept_ : array, shape (n_classes * (n_classes - 1) / 2,)
        Intercepts.
    coef_ : array or CSR matrix, shape (n_classes * (n_classes - 1) / 2, n_features)
        Weights of features; only with ``kernel="linear"``.
    probA_, probB_ : array, shape (n_classes * (n_classes - 1) / 2,)
        A and B of P(first class of the pair) = 1/(1 + exp(A f + B)), with the f of LIBSVM: positive for the first, also
        where there are only two classes. Empty without ``probability``. Deprecated, as in scikit-learn.
    n_iter_ : int32 array, shape (n_classes * (n_classes - 1) / 2,)
        Two-variable steps of each pair.
    shape_fit_ : tuple
        Shape of the training data.
    fit_status_ : int
        0 if the gap closed, else 1.
    n_features_in_ : int
        Features seen in ``fit``.
    feature_names_in_ : array, shape (n_features,)
        Their names, if X had any.
    ledger_ : dsgd.Ledger
        Seconds and bytes of every rank; only where a gang trained.
    fit_report_ : dict
        Ranks, seconds, rounds, peak memory; only where a gang trained.
    gap_ : float
        Largest violation of the optimality conditions over all samples, in float64 (of the worst pair): LIBSVM's
        criterion.
    duality_gap_ : float
        Primal less dual objective, the sum over pairs: ``dual_objective_`` is that close to the optimum, or closer.
    dual_objective_ : float
        Dual objective, the sum over pairs.
    converged_ : bool
        Whether ``gap_ < tol``.
    n_eliminated_, n_returned_, n_reconstructions_, n_kernel_evaluations_ : int
        Samples left out, samples that came back, times that indicators were renewed, kernel values computed.
    elimination_history_ : list of lists of dsgd.svm.EliminationRecord
        The run of each pair.

    See Also
    --------
    dsgd.SGDClassifier : Linear SVMs on data too large for an exact solution.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd.svm import SVC
    >>> X = np.array([[-1.0, -1.0], [-2.0, -1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> model = SVC().fit(X, ["no", "no", "yes", "yes"])
    >>> model.predict([[-0.8, -1.0]]).tolist(), model.converged_
    (['no'], True)
    """

    def __init__(
        self,
        *,
        C: float = 1.0,
        kernel: Any = "rbf",
        degree: int = 3,
        gamma: str | float = "scale",
        coef0: float = 0.0,
        shrinking: bool = True,
        probability: bool | str = "deprecated",
        tol: float = 1e-3,
        cache_size: float = 200,
        class_weight: Any = None,
        verbose: bool = False,
        max_iter: int = -1,
        decision_function_shape: str = "ovr",
        break_ties: bool = False,
        random_state: Any = None,
        elimination: str | Elimination = "auto",
        solver: str = "block",
        n_jobs: int | None = None,
        client: Any = None,
        transport: TransportName = "auto",
    ) -> None:
        self.C = C
        self.kernel = kernel
        self.degree = degree
        self.gamma = gamma
        self.coef0 = coef0
        self.shrinking = shrinking
        self.probability = probability
        self.tol = tol
        self.cache_size = cache_size
        self.class_weight = class_weight
        self.verbose = verbose
        self.max_iter = max_iter
        self.decision_function_shape = decision_function_shape
        self.break_ties = break_ties
        self.random_state = random_state
        self.elimination = elimination
        self.solver = solver
        self.n_jobs = n_jobs
        self.client = client
        self.transport = transport

    def _check_problem(self) -> None:
        check_number("SVC(C=...)", self.C, low=0, open_low=True)
        check_choice("SVC(solver=...)", self.solver, ("block", "pairwise"))

    def _bounds(self, codes: AnyArray, weights: FloatVector) -> FloatVector:
        bounds: FloatVector = float(self.C) * self.class_weight_[codes] * weights
        return bounds

    def _pose(self, pair: tuple[int, int], y: FloatVector, bounds: FloatVector) -> Dual:
        return Dual(y[None], np.full((1, len(y)), -1.0), bounds[None], np.zeros((1, len(y))))

    def _find_thresholds(self, dual: Dual, solution: Solution) -> FloatVector:
        return solution.thresholds
