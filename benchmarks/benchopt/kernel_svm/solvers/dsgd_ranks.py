"""The kernel SVM of dsgd on worker processes, each of which has a share of the rows."""

import weakref

from benchopt import BaseSolver
from distributed import Client, LocalCluster

from dsgd.svm import SVC


def close(client, cluster):
    """End the workers, which benchopt has no method for."""
    client.close()
    cluster.close()


class Solver(BaseSolver):
    """The same solver, with all-reduces between the ranks of a Dask cluster on this machine."""

    name = "dsgd-ranks"
    requirements = ["pip::dsgd"]
    sampling_strategy = "tolerance"
    parameters = {"n_ranks": [2]}

    def set_objective(self, X, y, C, gamma):
        """Take the rows."""
        self.X, self.y, self.C, self.gamma = X, y, C, gamma

    def warm_up(self):
        """Start the workers, and load the kernels there."""
        cluster = LocalCluster(n_workers=self.n_ranks, threads_per_worker=1, dashboard_address=None)
        client = Client(cluster)
        weakref.finalize(self, close, client, cluster)
        self.model = SVC(C=self.C, gamma=self.gamma, n_jobs=1, client=client)
        self.run(1.0)

    def get_next(self, tolerance):
        """Return the next tolerance: the first one is huge."""
        return min(1.0, tolerance / 4)

    def run(self, tolerance):
        """Fit once."""
        self.model.set_params(tol=tolerance).fit(self.X, self.y)

    def get_result(self):
        """Return the model, and what its ranks have sent."""
        return {
            "support": self.model.support_,
            "coefs": self.model.dual_coef_.ravel(),
            "intercept": self.model.intercept_[0],
            "bytes_sent": self.model.ledger_.totals()["bytes_sent"],
        }
