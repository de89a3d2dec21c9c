"""Kernel SVMs: the primal objective, the duality gap, the error on held-out rows, and the bytes that ranks send."""

import numpy as np
from benchopt import BaseObjective
from sklearn.metrics.pairwise import rbf_kernel

#: Rows of the kernel matrix at a time.
BLOCK = 2048


class Objective(BaseObjective):
    """Two classes, the RBF kernel, and the hinge loss."""

    name = "Kernel SVM"
    url = "https://benchopt.github.io"
    min_benchopt_version = "1.6"
    requirements = ["pip::scikit-learn"]
    parameters = {"C": [1.0, 10.0], "gamma": [None]}
    test_config = {"dataset": {"n_rows": 300}}

    def set_data(self, X, y, X_test, y_test):
        """Take rows whose labels are -1 and 1; without a gamma, it is scikit-learn's ``scale``."""
        if set(np.unique(y)) != {-1, 1}:
            raise ValueError(f"labels must be -1 and 1, got {sorted(set(np.unique(y)))}")
        self.X, self.y, self.X_test, self.y_test = X, y, X_test, y_test
        self.width = 1.0 / (X.shape[1] * X.var()) if self.gamma is None else self.gamma

    def get_objective(self):
        """Return what a solver gets."""
        return {"X": self.X, "y": self.y, "C": self.C, "gamma": self.width}

    def get_one_result(self):
        """Return the model that has no support vector."""
        return {"support": np.zeros(0, dtype=int), "coefs": np.zeros(0), "intercept": 0.0, "bytes_sent": 0}

    def decisions(self, X, support, coefs, intercept):
        """Return ``K(X, support) @ coefs + intercept`` in float64."""
        blocks = [np.zeros(0)]
        for start in range(0, len(X), BLOCK):
            rows = X[start : start + BLOCK]
            values = (
                rbf_kernel(rows, self.X[support], gamma=self.width) @ coefs if len(support) else np.zeros(len(rows))
            )
            blocks.append(values + intercept)
        return np.concatenate(blocks)

    def evaluate_result(self, support, coefs, intercept, bytes_sent):
        """Return the metrics of a model; `coefs` are dual variables with the sign of their label."""
        decisions = self.decisions(self.X, support, coefs, intercept)
        squared_norm = float(coefs @ (decisions[support] - intercept))
        primal = squared_norm / 2 + self.C * float(np.maximum(1 - self.y * decisions, 0).sum())
        dual = float(np.abs(coefs).sum()) - squared_norm / 2
        wrong = self.decisions(self.X_test, support, coefs, intercept) * self.y_test <= 0
        return {
            "value": primal,
            "relative_gap": (primal - dual) / primal,
            "test_error": float(wrong.mean()),
            "n_support": len(support),
            "bytes_sent": bytes_sent,
        }
