"""The keys of ``fit_report_`` that the docs promise."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from dsgd import SGDClassifier
from dsgd.sim import SimulatedCluster
from dsgd.svm import SVC, LinearSVC

DOCS = Path(__file__).parents[2] / "docs"


def test_the_keys_of_the_report_are_those_of_fits():
    """The page on the ledger lists the keys of every kind of model, under the kinds that have them."""
    text = (DOCS / "ledger.rst").read_text(encoding="utf-8")
    text = text[text.index(".. begin: keys of fit_report_") : text.index(".. end: keys of fit_report_")]
    of_all, of_sgd, of_linear, _, of_svms, of_linear_svms = (
        {key for line in re.findall(r"^``.*``$", part, re.MULTILINE) for key in re.findall(r"``(\w+)``", line)}
        for part in re.split(r"^(?:Models|linear|torch|kernel|and linear)\b.*$", text, flags=re.MULTILINE)
    )
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = X[:, 0] > 0

    def keys(estimator):
        return set(estimator.fit(X, y).fit_report_)

    assert keys(SGDClassifier(n_jobs=2)) == of_all | of_sgd | of_linear
    assert keys(SVC(client=SimulatedCluster(2))) == of_all | of_svms
    assert keys(LinearSVC(client=SimulatedCluster(2))) == of_all | of_linear_svms
