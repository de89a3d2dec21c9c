"""`NuSVR`: kernel support vector regression with a bound on the share of rows outside the tube.

The dual is that of `dsgd.svm.SVR` without ε: minimise ½ β'Kβ − z'β over β = α − α*, 0 ≤ α, α* ≤ C_i, with Σα = Σα* =
ν ΣC_i / 2. The sums are fixed each, so there are two groups of variables, each with its threshold: the tube runs from
one to the other. Source: Chang and Lin, "Training ν-support vector regression", Neural Computation 2002; start and
tolerance as in LIBSVM.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsgd.comm.base import TransportName
from dsgd.inputs.docstrings import inherit_docs
from dsgd.runtime.checkpoints.checkpoint import Checkpoint
from dsgd.runtime.timeouts import FailurePolicy
from dsgd.svm.estimators.kernel_base import fill
from dsgd.svm.estimators.single import AbstractKernelRegressor
from dsgd.svm.kernel_solver.elimination import Elimination
from dsgd.svm.kernel_solver.problem import Dual
from dsgd.types import FloatVector
from dsgd.validation import check_number


@inherit_docs
@dataclass(eq=False, repr=False, kw_only=True)
class NuSVR(AbstractKernelRegressor):
    """Support vector regression that finds its own tube, to LIBSVM's optimum, certified as in `SVC`.

    Minimises ``½‖w‖² + ν ε Σ C_i + Σ C_i max(0, |y_i − w'φ(x_i) − b| − ε)`` over w, b and ε ≥ 0. It has the parameters,
    defaults and fitted attributes of `sklearn.svm.NuSVR`; `SVR` with ``epsilon=epsilon_`` is the same machine.

    Parameters
    ----------
    nu : float, default 0.5
        Upper bound of the share of rows outside the tube and lower bound of the share of support vectors, in (0, 1].

    Attributes
    ----------
    epsilon_ : float
        Half the width of the tube that was found.
    """

    nu: float = 0.5
    C: float = 1.0
    kernel: Any = "rbf"
    degree: int = 3
    gamma: str | float = "scale"
    coef0: float = 0.0
    shrinking: bool = True
    tol: float = 1e-3
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
        check_number("NuSVR(C=...)", self.C, low=0, open_low=True)
        check_number("NuSVR(nu=...)", self.nu, low=0, high=1, open_low=True)

    def _bounds(self, weights: FloatVector) -> FloatVector:
        return float(self.C) * weights

    def _pose(self, target: FloatVector, bounds: FloatVector) -> Dual:
        ones, start = np.ones(len(target)), fill(bounds, 0.5 * float(self.nu) * bounds.sum())
        return Dual(
            y=np.stack([ones, -ones]),
            p=np.stack([-target, target]),
            upper=np.stack([bounds, bounds]),
            alpha=np.stack([start, start]),
            by_sign=True,
        )

    @property
    def epsilon_(self) -> float:
        """Half the width of the tube."""
        if not hasattr(self, "_thresholds"):
            raise AttributeError("epsilon_ is available after fit")
        return 0.5 * float(self._thresholds[1] - self._thresholds[0])
