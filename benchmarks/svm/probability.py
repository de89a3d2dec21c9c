"""Probabilities of SVMs: how good they are and what they cost, beside CalibratedClassifierCV and LIBSVM's sigmoids.

Generated rows of two and of five classes, some labels turned. Every method is trained on the same rows, in turns, and
judged on 10,000 others: the Brier score (mean squared distance of the probabilities from the class, summed over
classes), the logarithmic loss, and the median of the seconds of ``fit``. "plain" has no probabilities.

    python -m benchmarks run svm/probability --out rows.jsonl
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn import svm as theirs
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss

from benchmarks.common.measuring import Options, Rows, in_turns, median_s, report
from dsgd.svm import SVC, LinearSVC

PAGE = "svm"
QUICK_S = 60
QUICK = "one repeat on 600 rows"
REPEATS = (5, 1)
TRAIN_ROWS, TEST_ROWS = 4000, 10_000


def wrapped(model: Any, method: str) -> Any:
    """Return scikit-learn's calibration around a machine, by one curve of held-out scores, as ours."""
    return CalibratedClassifierCV(model, method=method, ensemble=False)


#: name -> what makes it
CASES: dict[str, Callable[[], Any]] = {
    "SVC, plain": lambda: SVC(C=3.0),
    "SVC, True": lambda: SVC(C=3.0, probability=True, random_state=0),
    "SVC, sigmoid": lambda: SVC(C=3.0, probability="sigmoid"),
    "SVC, isotonic": lambda: SVC(C=3.0, probability="isotonic"),
    "SVC in CalibratedClassifierCV, sigmoid": lambda: wrapped(SVC(C=3.0), "sigmoid"),
    "SVC in CalibratedClassifierCV, isotonic": lambda: wrapped(SVC(C=3.0), "isotonic"),
    "scikit-learn SVC in CalibratedClassifierCV, sigmoid": lambda: wrapped(theirs.SVC(C=3.0), "sigmoid"),
    "LinearSVC, plain": LinearSVC,
    "LinearSVC, sigmoid": lambda: LinearSVC(probability="sigmoid"),
    "LinearSVC, isotonic": lambda: LinearSVC(probability="isotonic"),
    "LinearSVC in CalibratedClassifierCV, sigmoid": lambda: wrapped(LinearSVC(), "sigmoid"),
}


def brier(p: Any, y: Any) -> float:
    """Return the mean squared distance of probabilities from the classes 0, 1, ..."""
    return float(np.square(p - np.eye(p.shape[1])[y]).sum(axis=1).mean())


def run(options: Options, rows: Rows) -> None:
    n = 600 if options.quick else TRAIN_ROWS
    for k in (2, 5):
        X, y = make_classification(
            n + TEST_ROWS, 20, n_informative=10, n_classes=k, n_clusters_per_class=2, flip_y=0.1, random_state=0
        )
        fits = {name: partial(fit, name, X[:n], y[:n]) for name in options.only}
        turns = in_turns(fits, options.repeats, warm_up=1)
        columns = "method | Brier score = brier:.4f | log loss = log_loss:.4f | seconds:.3f"
        with report(rows, f"{k} classes, {n} rows", columns, n_classes=k, n=n) as add:
            for name, found in turns.items():
                model, seconds, scores = found[-1].value, median_s(found), (np.nan, np.nan)
                if hasattr(model, "predict_proba"):
                    p = model.predict_proba(X[n:])
                    scores = brier(p, y[n:]), float(log_loss(y[n:], p))
                add(method=name, brier=scores[0], log_loss=scores[1], seconds=seconds)


def fit(name: str, X: Any, y: Any) -> Any:
    """Return a fitted machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # that True is deprecated
        return CASES[name]().fit(X, y)
