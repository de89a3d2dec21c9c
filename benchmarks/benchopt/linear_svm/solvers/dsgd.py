"""The linear SVM of dsgd, for benchopt's benchmark_linear_svm_binary_classif_no_intercept."""

import warnings

from benchopt import BaseSolver
from sklearn.exceptions import ConvergenceWarning

from dsgd.svm import LinearSVC


class Solver(BaseSolver):
    """Dual coordinate descent, to a duality gap."""

    name = "dsgd"
    requirements = ["pip::dsgd"]
    sampling_strategy = "tolerance"

    def set_objective(self, X, y, C):
        """Take the rows."""
        self.X, self.y = X, y
        self.model = LinearSVC(loss="hinge", C=C, fit_intercept=False, random_state=0)

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
        """Return the coefficients."""
        return {"beta": self.model.coef_.ravel()}
