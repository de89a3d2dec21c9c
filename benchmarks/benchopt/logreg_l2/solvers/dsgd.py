"""Logistic regression of dsgd, for benchopt's benchmark_logreg_l2."""

import warnings

import numpy as np
from benchopt import BaseSolver
from sklearn.exceptions import ConvergenceWarning

from dsgd.linear_model import LogisticRegression


class Solver(BaseSolver):
    """Newton's method, to a duality gap."""

    name = "dsgd"
    requirements = ["pip::dsgd"]
    sampling_strategy = "tolerance"

    def set_objective(self, X, y, lmbd, fit_intercept=False):
        """Take the rows; the objective there is ours times lmbd."""
        self.X, self.y, self.fit_intercept = X, y, fit_intercept
        self.model = LogisticRegression(C=1 / lmbd, fit_intercept=fit_intercept)

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
        intercept = self.model.intercept_ if self.fit_intercept else []
        return {"beta": np.r_[self.model.coef_.ravel(), intercept]}
