"""Two classes of clouds of points that overlap."""

from benchopt import BaseDataset
from sklearn.datasets import make_classification


class Dataset(BaseDataset):
    """scikit-learn's ``make_classification``, one row of a hundred with a wrong label."""

    name = "simulated"
    parameters = {"n_rows": [3_000], "n_features": [20], "seed": [0]}

    def get_data(self):
        """Return rows for training and as many that are held out."""
        X, y = make_classification(
            2 * self.n_rows,
            self.n_features,
            n_informative=self.n_features // 2,
            n_clusters_per_class=4,
            flip_y=0.01,
            random_state=self.seed,
        )
        y = 2 * y - 1
        n = self.n_rows
        return {"X": X[:n], "y": y[:n], "X_test": X[n:], "y_test": y[n:]}
