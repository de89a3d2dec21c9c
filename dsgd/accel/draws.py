"""The random numbers that a fit of scikit-learn takes from a generator that the script goes on with.

Problem: most fits draw some numbers from ``random_state``, or from the global state of numpy if that is None, whether
their results depend on them or not. A script that draws later gets others if a fit of ours draws none, or more.

Method: a fit of ours draws as many as scikit-learn's, and has the first for a seed, so it repeats after
``np.random.seed``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from numbers import Integral
from typing import Any, Final

import numpy as np
from sklearn.utils import check_random_state

_END: Final = np.iinfo(np.int32).max
#: Solvers that draw, of classes that have several.
_STOCHASTIC: Final = ("sag", "saga")


@contextlib.contextmanager
def drawn_seed(estimator: Any, y: Any) -> Iterator[Any]:
    """Draw what scikit-learn's fit would, for a fit inside that gets a seed; if that fails, nothing was drawn."""
    given = getattr(estimator, "random_state", None)
    if isinstance(given, Integral):
        yield given
        return
    generator = check_random_state(given)
    before = generator.get_state()
    try:
        yield _draw(estimator, y, generator)
    except BaseException:
        generator.set_state(before)
        raise


def _draw(estimator: Any, y: Any, generator: np.random.RandomState) -> int | None:
    name, n_draws = type(estimator).__name__, 1
    if name.startswith("SGD"):
        labels = np.asarray(y)
        n_classes = len(np.unique(labels)) if name == "SGDClassifier" else 0
        # The order, and the rows; of more classes each has a generator of its own, with this seed.
        n_draws = n_classes if n_classes > 2 else 2
        if estimator.early_stopping:
            if n_classes == 2:  # the rows come first
                generator.randint(_END)
                n_draws = 1
            estimator._make_validation_split(labels, sample_mask=np.ones(len(labels), dtype=bool))
    elif name == "PoissonRegressor" or getattr(estimator, "solver", "sag") not in _STOCHASTIC:
        return None
    return int(generator.randint(_END, size=n_draws)[0])
