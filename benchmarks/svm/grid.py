"""A search over C and gamma: `SVMSearchCV` beside GridSearchCV with our SVC and with scikit-learn's.

Eight C, three gammas and five folds, on sets that take either route of `SVMSearchCV`: the digits, whose
pairs of classes are fitted, and generated rows of two classes, narrow and wide, which follow paths. All run on one
thread, one after another; seconds are those of the processor, which depend less on what else the machine does.

    python -m benchmarks run svm/grid --out rows.jsonl
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import svm
from sklearn.datasets import load_digits, make_classification
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from benchmarks.common.measuring import Options, Rows, table, timed
from dsgd.model_selection import SVMSearchCV
from dsgd.svm import SVC

PAGE = "model-selection"
QUICK_S = 60
QUICK = "sets of at most 1800 rows"
COSTS, FACTORS = np.logspace(-1, 2.5, 8), (0.3, 1.0, 3.0)
SETS = ("digits", "600 x 20", "1800 x 20", "4000 x 20", "4000 x 400")
QUICK_SETS = SETS[:3]


def read(name: str) -> tuple[Any, Any]:
    """Return rows and labels of a set."""
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        return X / 16.0, y
    n, d = (int(number) for number in name.split(" x "))
    X, y = make_classification(
        n, d, n_informative=min(d, 15), n_clusters_per_class=4, flip_y=0.05, random_state=np.random.RandomState(0)
    )
    return (X - X.mean(axis=0)) / X.std(axis=0), y


OPTIONS = {
    "--sets": {"nargs": "+", "choices": SETS, "help": "which sets (default: all)"},
}


def run(options: Options, rows: Rows) -> None:
    """Measure all ways on each set, one after the other."""
    title = "processor seconds of 120 models; the largest difference of a mean score to that of cold fits"
    heads = ("SVMSearchCV:.1f", "GridSearchCV:.1f", "times:.1f", "scikit-learn:.1f", "times :.1f", "apart:.4f")
    with table(title, "set", *heads) as line:
        for name in options.sets or (QUICK_SETS if options.quick else SETS):
            X, y = read(name)
            grid = {"C": COSTS, "gamma": [factor / (X.shape[1] * X.var()) for factor in FACTORS]}
            folds = StratifiedKFold(5)
            ways = {
                "SVMSearchCV": SVMSearchCV(SVC(n_jobs=1), grid, cv=folds, refit=False),
                "GridSearchCV, dsgd": GridSearchCV(SVC(n_jobs=1), grid, cv=folds, refit=False),
                "GridSearchCV, scikit-learn": GridSearchCV(svm.SVC(), grid, cv=folds, refit=False),
            }
            few = slice(None, None, max(1, len(y) // 300))
            seconds, means = [], []
            for way, search in ways.items():
                search.fit(X[few], y[few])  # load compiled kernels
                taken = timed(search.fit, X, y)
                seconds.append(taken.cpu_s)
                means.append(search.cv_results_["mean_test_score"])
                rows.add(case=name, way=way, n=X.shape[0], d=X.shape[1], cpu_seconds=taken.cpu_s, seconds=taken.seconds)
            apart = float(np.abs(means[0] - means[1]).max())
            own, cold, peer = seconds
            line(name, own, cold, cold / own, peer, peer / own, apart)
