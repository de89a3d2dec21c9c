"""The Lasso of dsgd, for benchopt's benchmark_lasso."""

import warnings

import numpy as np
from benchopt import BaseSolver
from scipy.sparse.linalg import LinearOperator
from sklearn.exceptions import ConvergenceWarning

from dsgd.linear_model import Lasso


class Solver(BaseSolver):
    """Coordinate descent on working sets, to a duality gap."""

    name = "dsgd"
    requirements = ["pip::dsgd"]
    sampling_strategy = "tolerance"

    def skip(self, X, y, lmbd, fit_intercept=False):
        """Refuse designs that are not stored."""
        if isinstance(X, LinearOperator):
            return True, "dsgd needs the columns of X, not products with it"
        return False, None

    def set_objective(self, X, y, lmbd, fit_intercept=False):
        """Take the rows; the objective there is ours times the number of rows."""
        self.X, self.y, self.fit_intercept = X, y, fit_intercept
        self.model = Lasso(alpha=lmbd / len(y), fit_intercept=fit_intercept)

    def warm_up(self):
        """Load the kernels."""
        self.run(1e-3)

    def get_next(self, tolerance):
        """Return the next tolerance: the first one is huge."""
        return min(1.0, tolerance / 4)

    def run(self, tolerance):
        """Fit once."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.model.set_params(tol=tolerance).fit(self.X, self.y)

    def get_result(self):
        """Return the coefficients, the intercept last if there is one."""
        intercept = [self.model.intercept_] if self.fit_intercept else []
        return {"beta": np.r_[self.model.coef_, intercept]}
