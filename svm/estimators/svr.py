"""`SVR`: kernel support vector regression."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsgd.comm.base import TransportName
from dsgd.inputs.docstrings import inherit_docs
from dsgd.runtime.checkpoints.checkpoint import Checkpoint
from dsgd.runtime.timeouts import FailurePolicy
from dsgd.svm.estimators.single import AbstractKernelRegressor
from dsgd.svm.kernel_solver.elimination import Elimination
from dsgd.svm.kernel_solver.problem import Dual
from dsgd.types import FloatVector
from dsgd.validation import check_number


@inherit_docs
@dataclass(eq=False, repr=False, kw_only=True)
class SVR(AbstractKernelRegressor):
    """Support vector regression with an ε-insensitive loss, to LIBSVM's optimum, certified as in `SVC`.

    Minimises ``½‖w‖² + Σ C_i max(0, |y_i − w'φ(x_i) − b| − ε)``. The dual has two variables per sample, which share
    a kernel row. It has the parameters, defaults and fitted attributes of `sklearn.svm.SVR`.

    Parameters
    ----------
    epsilon : float, default 0.1
        Half the width of the tube.
    """

    kernel: Any = "rbf"
    degree: int = 3
    gamma: str | float = "scale"
    coef0: float = 0.0
    tol: float = 1e-3
    C: float = 1.0
    epsilon: float = 0.1
    shrinking: bool = True
    cache_size: float = 200
    verbose: bool = False
    max_iter: int = -1
    elimination: str | Elimination = "auto"
    n_jobs: int | None = None
    client: Any = None
    transport: TransportName = "auto"
    on_failure: FailurePolicy = "raise"
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None
    resume_from: str | os.PathLike[str] | None = None

    def _check_problem(self) -> None:
        check_number("SVR(C=...)", self.C, low=0, open_low=True)
        check_number("SVR(epsilon=...)", self.epsilon, low=0)

    def _bounds(self, weights: FloatVector) -> FloatVector:
        return float(self.C) * weights

    def _pose(self, target: FloatVector, bounds: FloatVector) -> Dual:
        ones, epsilon = np.ones(len(target)), float(self.epsilon)
        return Dual(
            y=np.stack([ones, -ones]),
            p=np.stack([epsilon - target, epsilon + target]),
            upper=np.stack([bounds, bounds]),
            alpha=np.zeros((2, len(target))),
        )
