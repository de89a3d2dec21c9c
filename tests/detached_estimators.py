"""Estimators for the tests of detached fits; worker processes import them from here."""

from __future__ import annotations

from typing import Any, Self

from sklearn.base import BaseEstimator

import gang_programs as programs
from dsgd.runtime import run_on_cluster
from dsgd.runtime.rank import Rank


class Gated(BaseEstimator):
    """Waits for a file, then fits what is inside."""

    def __init__(self, inner: Any, path: str, on_failure: str = "raise") -> None:
        self.inner = inner
        self.path = path
        self.on_failure = on_failure

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the estimator inside, once the file is there."""
        programs.await_file(self.path)
        self.inner.fit(X, y)
        return self


class Raising(BaseEstimator):
    """Runs ranks that raise."""

    def __init__(self, client: Any = None) -> None:
        self.client = client

    def fit(self, X: Any, y: Any = None) -> Self:
        """Raise `RankError`, with what the rank raised as its cause."""
        run_on_cluster(divide, [], client=self.client, pack=programs.keep)
        return self


def divide(rank: Rank, data: Any) -> float:
    """Divide by zero."""
    return 1 / (rank.group.rank * 0)
