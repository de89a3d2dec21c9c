"""`SVC`: kernel support vector classification."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dsgd.comm.base import TransportName
from dsgd.inputs.docstrings import inherit_docs
from dsgd.runtime.checkpoints.checkpoint import Checkpoint
from dsgd.runtime.timeouts import FailurePolicy
from dsgd.svm.estimators.one_vs_one import AbstractKernelClassifier
from dsgd.svm.kernel_solver.elimination import Elimination
from dsgd.svm.kernel_solver.problem import Dual, Solution
from dsgd.types import AnyArray, FloatVector
from dsgd.validation import check_choice, check_number


@inherit_docs
@dataclass(eq=False, repr=False, kw_only=True)
class SVC(AbstractKernelClassifier):
    """Support vector classification, to LIBSVM's optimum, proven by a gap over all samples in float64.

    Minimises ½‖w‖² + Σ C_i max(0, 1 − y_i (w'φ(x_i) + b)) by its dual; several classes are trained one against one.
    It has the parameters, defaults and fitted attributes of `sklearn.svm.SVC`.

    Parameters
    ----------
    C : float, default 1.0
        Cost of violating the margin; C_i is C times class weight times sample weight.
    probability : {"sigmoid", "isotonic"} or bool, default "deprecated"
        Whether `predict_proba` is available, and which curves turn decision values into probabilities. They are fitted
        to the scores of five more machines, each for the fifth of the rows that it has not seen
        (`dsgd.svm.calibration`). With two classes, they equal those of ``CalibratedClassifierCV(SVC(),
        ensemble=False)``, except that ``gamma="scale"`` is computed from all rows. With more, each pair has a curve,
        and pairs are combined as in LIBSVM; scikit-learn instead calibrates each class against the rest, by decision
        values that count votes and hold little of the margins (:ref:`svm-probabilities`). True is LIBSVM's sigmoid for
        each pair (`dsgd.svm.calibration`). True and False are deprecated, as in scikit-learn, and warn.
    class_weight : dict, "balanced" or None, default None
        Weight of each class. A class of weight zero is as if its rows were not there. "balanced" gives the rows of all
        classes the same total before their own weights: it counts rows as they are given, whatever their
        `sample_weight`, as in scikit-learn.
    solver : {"block", "pairwise"}, default "block"
        ``"pairwise"`` is the published parallel algorithm, one pair per step and no cache
        (`dsgd.svm.kernel_solver.pairwise`): the same optimum, much slower; for studies.

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

    _IS_PLAIN: ClassVar[bool] = True

    C: float = 1.0
    kernel: Any = "rbf"
    degree: int = 3
    gamma: str | float = "scale"
    coef0: float = 0.0
    shrinking: bool = True
    probability: bool | str = "deprecated"
    tol: float = 1e-3
    cache_size: float = 200
    class_weight: Any = None
    verbose: bool = False
    max_iter: int = -1
    decision_function_shape: str = "ovr"
    break_ties: bool = False
    random_state: Any = None
    elimination: str | Elimination = "auto"
    solver: str = "block"
    n_jobs: int | None = None
    client: Any = None
    transport: TransportName = "auto"
    on_failure: FailurePolicy = "raise"
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None
    resume_from: str | os.PathLike[str] | None = None

    def _check_problem(self) -> None:
        check_number("SVC(C=...)", self.C, low=0, open_low=True)
        check_choice("SVC(solver=...)", self.solver, ("block", "pairwise"))

    def _bounds(self, codes: AnyArray, weights: FloatVector) -> FloatVector:
        bounds: FloatVector = float(self.C) * self.class_weight_[codes] * weights
        return bounds

    def _pose(self, pair: tuple[int, int], y: FloatVector, bounds: FloatVector) -> Dual:
        # On a gang the solver copies what belongs to its own samples: a number for all takes no memory.
        fill = np.full if self._gang is None else lambda shape, value: np.broadcast_to(value, shape)
        return Dual(y[None], fill((1, len(y)), -1.0), bounds[None], fill((1, len(y)), 0.0))

    def _find_thresholds(self, dual: Dual, solution: Solution) -> FloatVector:
        return solution.thresholds
