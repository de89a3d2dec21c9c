"""The coefficients that a fitted kernel SVM proves for every optimum."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.svm.certify import feature_norms, gap_ball, prove
from dsgd.svm.estimators.single import SVR, OneClassSVM
from dsgd.svm.estimators.svc import SVC
from dsgd.svm.kernel_solver.problem import Dual
from dsgd.types import AnyArray, FloatMatrix, FloatVector


def screen(model: SVC | SVR | OneClassSVM, X: Any, y: Any = None, *, sample_weight: Any = None) -> FloatMatrix:
    r"""Return the dual coefficients of training rows that the gap of a fitted model proves.

    The solution is within :math:`\sqrt{G}` of the optimum in feature space, where G is its duality gap, computed over
    all rows in float64. Rows outside the margin by more than this and the remaining uncertainty of the intercept have
    the coefficient 0 at every optimum; rows inside by as much have the coefficient of their bound. Free support vectors
    are never proven. The smaller ``tol``, the more rows are proven. (`dsgd.svm.certify` has the proof.)

    Parameters
    ----------
    model : SVC, SVR or OneClassSVM
        A fitted model whose kernel is an inner product: linear, rbf, or polynomial with an integer degree and ``coef0
        >= 0``.
    X : array or sparse matrix, shape (n_samples, n_features)
        All rows that it was fitted on.
    y : array-like, shape (n_samples,), or None
        Their labels or targets; None for `OneClassSVM`.
    sample_weight : array-like, shape (n_samples,), or None
        Their weights.

    Returns
    -------
    array of float64, shape (n_samples,) or (n_samples, n_pairs)
        The coefficient (the sign of the class included) at every optimum, or NaN where nothing is proven; one column
        per pair of classes if there are more than two, 0 for rows of other classes.

    Raises
    ------
    InvalidParameterError
        The kernel is not known to be an inner product, or the model is of another class.
    InvalidDataError
        The number of rows differs from ``fit``.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd.svm import SVC, screen
    >>> X = np.array([[-3.0], [-1.0], [1.0], [3.0]])
    >>> model = SVC(kernel="linear", tol=1e-9).fit(X, [0, 0, 1, 1])
    >>> screen(model, X, [0, 0, 1, 1])
    array([ 0., nan, nan,  0.])
    """
    if not isinstance(model, SVC | SVR | OneClassSVM):
        raise InvalidParameterError(f"screen(model=...) must be a fitted SVC, SVR or OneClassSVM. Got {model!r}.")
    X = X.astype(np.float64) if hasattr(X, "nnz") else np.asarray(X, dtype=np.float64)
    norms = None if callable(model.kernel) else feature_norms(model._known_kernel(), X)
    if norms is None:
        raise InvalidParameterError(
            f"screen needs a kernel that is known to be an inner product: linear, rbf, or poly of whole degree with "
            f"coef0 >= 0. Got kernel={model.kernel!r}."
        )
    if X.shape[0] != model.shape_fit_[0]:
        raise InvalidDataError(f"screen needs the {model.shape_fit_[0]} rows of the fit, got {X.shape[0]}.")
    weights = np.ones(len(norms)) if sample_weight is None else np.broadcast_to(sample_weight, norms.shape)
    if isinstance(model, SVC):
        return _screen_pairs(model, X, np.asarray(y), weights, norms)
    coefs = np.zeros(len(norms))
    coefs[model.support_] = model._dense_coefs()[0]
    target = np.zeros(len(norms)) if isinstance(model, OneClassSVM) else np.asarray(y, dtype=np.float64)
    return _prove_rows(model._pose(target, model._bounds(weights)), coefs, model._sums(X)[:, 0], norms)


def _screen_pairs(model: SVC, X: Any, y: AnyArray, weights: FloatVector, norms: FloatVector) -> FloatMatrix:
    n_classes, codes = len(model.classes_), np.searchsorted(model.classes_, y)
    bounds = model._bounds(codes, weights)
    pair_coefs = model._pair_coefs()
    sums = model._sums(X)
    out = np.zeros(sums.shape)
    for k, pair in enumerate(combinations(range(n_classes), 2)):
        rows = np.flatnonzero(np.isin(codes, pair) & (bounds > 0))
        sign = np.where(codes[rows] == pair[0], 1.0, -1.0) * model._sign_of_first()
        beta = np.zeros(len(codes))
        beta[model.support_] = pair_coefs[:, k]
        dual = model._pose(sign, bounds[rows], np.array([len(rows)]))
        out[rows, k] = _prove_rows(dual, beta[rows], sums[rows, k], norms[rows])
    return out[:, 0] if n_classes == 2 else out


def _prove_rows(dual: Dual, coefs: FloatVector, u: FloatVector, norms: FloatVector) -> FloatVector:
    """Return the proven coefficients of the samples, shape (n,), given the solution."""
    dual = replace(dual, alpha=np.maximum(dual.y * coefs, 0.0))
    values: FloatVector = (dual.y * prove(dual, gap_ball(dual, u), norms)).sum(axis=0) + 0.0
    return values
