"""Rows generated in the likeness of a public data set."""

import numpy as np
from benchopt import BaseDataset

from dsgd.datasets import make_like


class Dataset(BaseDataset):
    """Its shape, sparsity, balance of classes and difficulty; nothing is downloaded."""

    name = "like"
    requirements = ["pip::dsgd"]
    parameters = {"name": ["ijcnn1"], "n_rows": [4_000], "seed": [0]}

    def get_data(self):
        """Return rows for training and as many that are held out."""
        train, test = (
            make_like(self.name, self.n_rows, split=each, seed=self.seed, dense=True) for each in ("train", "test")
        )
        positive = np.unique(train.y)[-1]
        return {
            "X": train.X,
            "y": np.where(train.y == positive, 1, -1),
            "X_test": test.X,
            "y_test": np.where(test.y == positive, 1, -1),
        }
