"""The kernel SVM of dsgd, in this process."""

from benchopt import BaseSolver

from dsgd.svm import SVC


class Solver(BaseSolver):
    """Blocks of samples with elimination, on threads."""

    name = "dsgd"
    requirements = ["pip::dsgd"]
    sampling_strategy = "tolerance"
    parameters = {"elimination": ["auto"], "n_jobs": [1]}

    def set_objective(self, X, y, C, gamma):
        """Take the rows."""
        self.X, self.y = X, y
        self.model = SVC(C=C, gamma=gamma, elimination=self.elimination, n_jobs=self.n_jobs)

    def warm_up(self):
        """Load the kernels."""
        self.run(1.0)

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
