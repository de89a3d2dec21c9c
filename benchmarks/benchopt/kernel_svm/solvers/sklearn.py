"""LIBSVM, by scikit-learn."""

from benchopt import BaseSolver
from sklearn.svm import SVC


class Solver(BaseSolver):
    """Sequential minimal optimisation by second-order pairs, on one core."""

    name = "sklearn"
    requirements = ["pip::scikit-learn"]
    sampling_strategy = "tolerance"

    def set_objective(self, X, y, C, gamma):
        """Take the rows."""
        self.X, self.y = X, y
        self.model = SVC(C=C, gamma=gamma)

    def get_next(self, tolerance):
        """Return the next tolerance: the first one is huge."""
        return min(1.0, tolerance / 4)

    def run(self, tolerance):
        """Fit once."""
        self.model.set_params(tol=tolerance).fit(self.X, self.y)

    def get_result(self):
        """Return the model."""
        return {
            "support": self.model.support_,
            "coefs": self.model.dual_coef_.ravel(),
            "intercept": self.model.intercept_[0],
            "bytes_sent": 0,
        }
