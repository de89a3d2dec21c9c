"""What scikit-learn does around our fits: machines of classes and of folds side by side, and calibration on one core.

Problem: ``OneVsRestClassifier`` trains its machines one after another, and so do functions that validate on folds. Each
of our fits uses all cores, but cores wait for each other at the end of every step of a solver, and some steps are done
by one core. ``CalibratedClassifierCV`` fits its curves by dot products that BLAS divides among all cores: at 40,000
rows that takes ten times the processor time of one core, and on busy cores half a second for what takes twenty
milliseconds.

Method: if the estimator inside is one of ours and worth it, the loops of ``OneVsRestClassifier``, ``cross_validate``
and the like run on threads, with one machine at a time on each. While ``CalibratedClassifierCV`` fits, BLAS has one
thread, and each linear machine begins at the weights of the one before (`dsgd.accel.searches`). All else stays
scikit-learn's.

Cost: ``cache_size`` of kernel rows for each thread.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import joblib
import numpy as np

from dsgd.accel.classes import n_threads, will_be_ours
from dsgd.accel.searches import is_searching, near_fits

#: What a calibration fits at least, by cross-validation.
_FEWEST_FITS = 2
#: Folds where `cv` is None.
_FOLDS = 5


def side_by_side(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``fit`` of ``OneVsRestClassifier``, with machines of ours trained side by side on threads.

    That is so if ``n_jobs`` is None, outside other parallel loops and searches, and with as many classes as threads.
    """

    @functools.wraps(fit)
    def fit_machines(self: Any, X: Any, y: Any, **fit_params: Any) -> Any:
        with _threads_for(self.estimator, self.n_jobs, X, lambda: _count_machines(y)):
            return fit(self, X, y, **fit_params)

    return fit_machines


def folds_side_by_side(validate: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of ``sklearn.model_selection``, with machines of ours trained side by side on threads.

    That is so under the same conditions, and if no function of the script's own finds the scores.
    """

    @functools.wraps(validate)
    def validate_folds(estimator: Any, X: Any, y: Any = None, **options: Any) -> Any:
        scoring = options.get("scoring")
        if any(map(callable, scoring.values() if isinstance(scoring, dict) else [scoring])):
            return validate(estimator, X, y, **options)
        with _threads_for(estimator, options.get("n_jobs"), X, lambda: _count_fits(options)):
            return validate(estimator, X, y, **options)

    return validate_folds


def calibrated(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``fit`` of ``CalibratedClassifierCV``: ours begin near each other, and BLAS has one thread."""

    @functools.wraps(fit)
    def fit_calibrated(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        if not will_be_ours(self._get_estimator(), X, _FEWEST_FITS):
            return fit(self, X, *args, **kwargs)
        from dsgd.runtime.pools import limit_blas

        with limit_blas(1), near_fits():
            return fit(self, X, *args, **kwargs)

    return fit_calibrated


def _threads_for(
    estimator: Any, n_jobs: Any, X: Any, count: Callable[[], int]
) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which joblib trains so many machines of an estimator as `count` returns."""
    n = n_threads()
    # A search solves chains of fits, which know of each other in one thread only.
    is_alone = n_jobs is None and joblib.parallel.get_active_backend()[1] in (None, 1) and not is_searching()
    # Folds of probabilities are drawn from one stream of random numbers, in the order of the fits.
    has_kernel = getattr(estimator, "kernel", None) is not None
    if n < 2 or not is_alone or not has_kernel or getattr(estimator, "probability", False) not in (False, "deprecated"):
        return contextlib.nullcontext()
    n_machines = count()
    if n_machines < n or not will_be_ours(estimator, X, n_machines, load=True):
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[Any] = joblib.parallel_config(backend="threading", n_jobs=n)
    return context


def _count_fits(options: Mapping[str, Any]) -> int:
    """Return about how many fits a function does for these options; for splits of unknown number the fewest."""
    cv = options.get("cv")
    n_splits = _FOLDS if cv is None else cv if isinstance(cv, int) else _FEWEST_FITS
    return n_splits * max(1, np.size(options.get("train_sizes", 1)), np.size(options.get("param_range", 1)))


def _count_machines(y: Any) -> int:
    """Return the number of machines for labels, shape (n,), or an indicator matrix, shape (n, n_labels).

    It is 0 for labels that scikit-learn refuses, in its own words.
    """
    try:
        shape = getattr(y, "shape", None) or np.shape(y)
        if len(shape) > 1:
            return int(shape[1])
        n_classes = len(np.unique(np.asarray(y)))
    except (TypeError, ValueError):  # rows of several lengths, or numbers among strings
        return 0
    return n_classes if n_classes > 2 else 1
