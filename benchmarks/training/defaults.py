"""Every strategy with all defaults on ten unlike sets: test accuracy on eight simulated ranks less that of one rank.

Prints a line per strategy with the points by which it ends above one rank on each set, the medians over seeds of both
compared, and writes one row per run. A strategy passes on a set where it ends at most 1.5 points below. The sets are
dense and sparse, of 2 to 100 classes, scaled and unscaled; they come with scikit-learn or are generated, and need no
file. The estimator has its defaults too, but for the number of epochs, which is the same for all. ``Hogwild`` runs on
threads.

    python -m benchmarks run defaults --out rows.jsonl
    python -m benchmarks run defaults --quick
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from benchmarks.common.measuring import Options, Rows, table
from dsgd import SGDClassifier
from dsgd.datasets import make_classification_twin
from dsgd.errors import InvalidDataError
from dsgd.sim import SimulatedCluster
from dsgd.sync import STRATEGIES

PAGE = "strategies"
QUICK_S = 60
QUICK = "three small sets"
REPEATS = (3, 3)
CASES = STRATEGIES

N_RANKS, N_EPOCHS, MOST_BELOW = 8, 8, 1.5


def made(n_rows: int, n_columns: int, n_informative: int, n_classes: int = 2, **options: Any) -> tuple[Any, Any]:
    """Return dense rows around the corners of a cube."""
    options = {"n_clusters_per_class": 1, "flip_y": 0.05, "random_state": 0, **options}
    X, y = make_classification(n_rows, n_columns, n_informative=n_informative, n_classes=n_classes, **options)
    return X.astype(np.float64), y


def text(n_rows: int, n_columns: int, n_classes: int) -> tuple[Any, Any]:
    """Return counts of words, of which every class has some more often than others have."""
    rng = np.random.default_rng(0)
    common = 1.0 / np.arange(1, n_columns + 1)
    words = common * np.exp(0.7 * rng.standard_normal((n_classes, n_columns)))
    words /= words.sum(axis=1, keepdims=True)
    y = rng.integers(0, n_classes, n_rows)
    lengths = rng.poisson(60, n_rows) + 5
    columns = np.concatenate([rng.choice(n_columns, length, p=words[k]) for k, length in zip(y, lengths, strict=True)])
    return sp.csr_array((np.ones(columns.size), columns, np.r_[0, np.cumsum(lengths)]), shape=(n_rows, n_columns)), y


def twin(n_rows: int, n_columns: int, density: float) -> tuple[Any, Any]:
    """Return sparse rows of length one, and labels of which one in twenty is wrong."""
    made = make_classification_twin(n_rows, n_columns, density=density, unit_norm=True)
    return made.X, made.y


def times(factor: float, Xy: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return rows that are so much longer."""
    return Xy[0] * factor, Xy[1]


def in_units(Xy: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return rows whose columns are in units of their own, the largest a thousand times the smallest."""
    return Xy[0] * np.geomspace(0.1, 100.0, Xy[0].shape[1]), Xy[1]


def standardised(Xy: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return rows whose columns have mean 0 and variance 1."""
    return StandardScaler().fit_transform(Xy[0]), Xy[1]


#: By name, what makes all rows of a set and their classes; two fifths of them are tested on.
SETS: dict[str, Any] = {
    "dense": lambda: made(20_000, 8, 5, n_clusters_per_class=2),
    "dense x 10": lambda: times(10.0, made(20_000, 8, 5, n_clusters_per_class=2)),
    "cancer": lambda: standardised(load_breast_cancer(return_X_y=True)),
    "units": lambda: in_units(made(10_000, 20, 10)),
    "digits": lambda: times(1 / 16, load_digits(return_X_y=True)),
    "digits, raw": lambda: load_digits(return_X_y=True),
    "5 classes": lambda: made(10_000, 30, 10, 5),
    "100 classes": lambda: made(20_000, 40, 24, 100, flip_y=0.0, class_sep=3.0),
    "sparse": lambda: twin(10_000, 2_000, 0.02),
    "text counts": lambda: text(12_000, 1_500, 20),
}
QUICK_SETS = ("cancer", "digits, raw", "sparse")


@cache
def split(name: str) -> tuple[Any, Any, Any, Any]:
    """Return training and test data of a set."""
    X, y = SETS[name]()
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)
    return X, y, X_test, y_test


def score(data: str, sync: str | None, seed: int, options: dict[str, Any]) -> float:
    """Return the test accuracy, in points, of one rank where `sync` is None; nothing where the model overflows."""
    X, y, X_test, y_test = split(data)
    where: dict[str, Any] = {}
    if sync is not None:
        where["sync"] = sync
        where |= {"n_jobs": N_RANKS} if sync == "hogwild" else {"client": SimulatedCluster(N_RANKS)}
    try:
        return 100.0 * float(SGDClassifier(random_state=seed, **options, **where).fit(X, y).score(X_test, y_test))
    except InvalidDataError:
        return 0.0


OPTIONS = {
    "--epochs": {"type": int, "default": N_EPOCHS, "help": "0: until the default rule stops"},
    "--sets": {"nargs": "+", "help": "only these sets", "choices": SETS, "metavar": "SET"},
}


def run(arguments: Options, rows: Rows) -> None:
    """Run all and print the table; a seed for every repeat."""
    warnings.simplefilter("ignore")
    options: dict[str, Any] = {"max_iter": arguments.epochs, "tol": None} if arguments.epochs else {}
    names = arguments.sets or (QUICK_SETS if arguments.quick else SETS)

    def median(data: str, sync: str | None) -> float:
        scores = [score(data, sync, seed, options) for seed in range(arguments.repeats)]
        for seed, value in enumerate(scores):
            rows.add(case=data, strategy=sync, ranks=N_RANKS if sync else 1, seed=seed, score=value, **options)
        return float(np.median(scores))

    alone = {data: median(data, None) for data in names}
    n_below = 0
    with table("points above one rank", "strategy", *names) as line:
        line("one rank", *(f"{alone[data]:.2f}" for data in names))
        for sync in arguments.only:
            gains = [median(data, sync) - alone[data] for data in names]
            n_below += sum(gain < -MOST_BELOW for gain in gains)
            line(sync, *(f"{gain:+.2f}{'*' if gain < -MOST_BELOW else ' '}" for gain in gains))
    print(f"* {n_below} more than {MOST_BELOW} points below one rank")
