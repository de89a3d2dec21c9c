"""Machines as scikit-learn's and back, and rows that are not vectors.

Kernel functions may compare texts or matrices. Blocks of rows are for arrays. Of objects a kernel may want to see the
whole set, and comparing them costs more than a matrix of their values holds; so the values of all pairs are computed
once, and the machine is that of a given matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn import calibration, svm
from sklearn.isotonic import IsotonicRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs.linear import copied, of_peer
from dsgd.inputs.sources import is_distributed
from dsgd.svm.calibration import LIBSVM, METHODS, N_FOLDS
from dsgd.types import AnyArray, FloatMatrix


def as_objects(X: Any) -> Any:
    """Return the rows that a callable kernel is given, as an array of objects if that is what they are, else X itself.

    Objects are the elements of a list, or of an array or series of one dimension, that are neither rows of numbers nor
    blocks. Texts are objects here: a callable kernel takes no list of files. So are matrices, and arrays of more
    dimensions, that one array holds: it stays as it is.
    """
    if hasattr(X, "ndim"):
        return np.asarray(X, dtype=object) if X.ndim == 1 and not is_distributed(X) else X
    if not isinstance(X, (list, tuple)) or not len(X):
        return X
    if not all(isinstance(row, str) for row in X):
        if is_distributed(X):
            return X
        try:
            together = np.asarray(X)
            if together.ndim > 1:
                return X if together.ndim == 2 else together
        except ValueError:  # of unequal lengths: objects
            pass
    rows = np.empty(len(X), dtype=object)
    rows[:] = X
    return rows


def are_objects(X: Any) -> bool:
    """Return whether X is what `as_objects` makes of objects."""
    return isinstance(X, np.ndarray) and (X.ndim > 2 or (X.ndim == 1 and X.dtype == object))


def compare(function: Callable[[Any, Any], Any], rows: AnyArray, others: AnyArray) -> FloatMatrix:
    """Return the kernel values of all pairs, shape (n, m)."""
    values = function(*(list(some) if some.ndim == 1 else some for some in (rows, others)))
    values = np.asarray(values.toarray() if sp.issparse(values) else values, dtype=np.float64)
    if values.shape != (len(rows), len(others)):
        raise InvalidDataError(
            f"kernel(A, B) must return shape {(len(rows), len(others))}, one value per pair of rows. "
            f"Got shape {values.shape}."
        )
    return values


_SHARED = ("n_features_in_", "feature_names_in_", "classes_", "n_iter_")


def linear_machine_from_sklearn(kind: Any, given: Any) -> Any:
    """Return our LinearSVC or LinearSVR with the weights of scikit-learn's."""
    model = of_peer(kind, getattr(svm, kind.__name__), given)
    return copied(model, given, (*_SHARED, "coef_", "intercept_"))


def kernel_machine_from_sklearn(kind: Any, given: Any) -> Any:
    """Return our kernel SVM with the support vectors and coefficients of scikit-learn's.

    A callable kernel is given the rows of the fit there, of which only the support vectors are needed; rows that are no
    vectors are all kept, as by a fit here.
    """
    model = of_peer(kind, getattr(svm, kind.__name__), given)
    copied(model, given, (*_SHARED, "class_weight_", "shape_fit_", "fit_status_", "support_"))
    model._gamma = float(given._gamma)
    # Without classes, theirs of sparse rows counts no vectors: it is whatever was in memory.
    counts = given.n_support_ if hasattr(given, "classes_") else [len(given.support_)]
    model._n_support = np.array(counts, dtype=np.int32)
    if callable(model.kernel):
        rows = as_objects(given._BaseLibSVM__Xfit)
        # Theirs does not count the columns of rows for a callable kernel.
        model.n_features_in_ = len(rows) if are_objects(rows) else rows.shape[1]
        if are_objects(rows):
            model._objects = rows
        else:
            model.support_vectors_ = rows[given.support_]
    else:
        model.support_vectors_ = given.support_vectors_.copy()
    if model._is_precomputed():
        model.support_vectors_ = np.empty((0, 0))
    model._is_sparse = sp.issparse(model.support_vectors_)
    if hasattr(model, "classes_"):
        curves = [curve[:, None] for curve in np.stack([given._probA, given._probB], axis=1)]
        model._curves = (LIBSVM if curves else None, curves)
    coefs: Any = given.dual_coef_
    dense = np.asarray(coefs.toarray() if sp.issparse(coefs) else coefs)
    model._keep_coefs(dense, np.array(given.intercept_), model._known_kernel())
    return model


def linear_machine_to_sklearn(model: Any) -> Any:
    """Return scikit-learn's estimator with the weights of a fitted LinearSVC or LinearSVR, calibrated if it is."""
    check_is_fitted(model)
    plain = copied(_plain(model), model, ("coef_", "intercept_", *_SHARED))
    method, curves = getattr(model, "_curves", (None, []))
    return plain if method is None else _calibrated(plain, model, method, curves)


def kernel_machine_to_sklearn(model: Any) -> Any:
    """Return scikit-learn's estimator with the support vectors and coefficients of a fitted kernel SVM.

    LIBSVM stores coefficients and intercepts a second time, for two classes with the signs of the first class, and only
    in float64. There a callable kernel gets the rows of the fit; only the support vectors are known here, so they take
    the place of these rows. Calibration curves of two classes are put around it; those of pairs are refused.
    """
    check_is_fitted(model)
    method, curves = getattr(model, "_curves", (None, []))
    if method in METHODS and len(curves) > 1:
        raise InvalidParameterError(
            f"{type(model).__name__}(probability={method!r}).to_sklearn() with more than two classes: scikit-learn "
            "calibrates each class against the rest, and these curves are of pairs of classes, which it has nothing "
            "to combine with. Fit without probability, and calibrate what to_sklearn() returns."
        )
    plain = _plain(model)
    names = ("dual_coef_", "support_", "support_vectors_", "_gamma", "shape_fit_", "fit_status_", "class_weight_")
    copied(plain, model, (*_SHARED, *names, "intercept_", "offset_"))
    plain._sparse = bool(model._is_sparse) and not callable(model.kernel)
    # LIBSVM has two classes where there are none, and counts all for either.
    plain._n_support = model._n_support.copy() if hasattr(model, "classes_") else np.repeat(model._n_support, 2)
    if model._objects is not None:
        plain._BaseLibSVM__Xfit = list(model._objects)
        plain.shape_fit_ = (len(model._objects),)
    elif callable(model.kernel):
        plain._BaseLibSVM__Xfit = model.support_vectors_
        plain.support_ = np.arange(len(model.support_), dtype=np.int32)
        plain.shape_fit_ = model.support_vectors_.shape
    if sp.issparse(plain.support_vectors_) and plain._sparse:
        # LIBSVM takes float64, and indices of 32 bits.
        vectors = plain.support_vectors_ = sp.csr_matrix(plain.support_vectors_, dtype=np.float64)
        vectors.indices, vectors.indptr = vectors.indices.astype(np.int32), vectors.indptr.astype(np.int32)
    elif callable(model.kernel):
        plain.support_vectors_ = np.empty((0, 0))
    else:
        plain.support_vectors_ = np.ascontiguousarray(plain.support_vectors_, dtype=np.float64)
    coefs = model._dense_coefs()
    plain.dual_coef_ = coefs.copy()
    if plain._sparse:  # with its zeros, as LIBSVM reads the entries of all support vectors
        m, n = coefs.shape
        ends = n * np.arange(m + 1, dtype=np.int32)
        plain.dual_coef_ = sp.csr_matrix((coefs.ravel().copy(), np.tile(np.arange(n, dtype=np.int32), m), ends), (m, n))
    sign = -1.0 if len(getattr(model, "classes_", ())) == 2 else 1.0
    plain._dual_coef_, plain._intercept_ = sign * plain.dual_coef_, sign * plain.intercept_
    sigmoids = np.hstack([np.empty((2, 0)), *(curves if method == LIBSVM else ())])
    if hasattr(plain, "offset_"):
        plain.offset_ = -plain._intercept_  # an array there, and a number here
    plain._probA, plain._probB = sigmoids[0].copy(), sigmoids[1].copy()
    plain._effective_probability = bool(sigmoids.shape[1])
    plain._num_iter = plain.n_iter_
    return plain if method not in METHODS else _calibrated(plain, model, method, curves)


def _calibrated(plain: Any, model: Any, method: str, curves: Sequence[FloatMatrix]) -> Any:
    """Return a fitted CalibratedClassifierCV around scikit-learn's estimator."""
    seed = model._fold_seed
    folds = StratifiedKFold(N_FOLDS, shuffle=seed is not None, random_state=seed)
    out = calibration.CalibratedClassifierCV(_plain(model), method=method, cv=folds, ensemble=False)
    maps: list[Any] = []
    for curve in curves:
        if method == "sigmoid":
            maps.append(calibration._SigmoidCalibration())
            maps[-1].a_, maps[-1].b_ = curve[:, 0].tolist()
        else:  # the corners of a monotone curve are those of the curve that fits them best
            maps.append(IsotonicRegression(out_of_bounds="clip").fit(curve[0], curve[1]))
    wrapped = calibration._CalibratedClassifier(plain, maps, classes=model.classes_, method=method)
    out.calibrated_classifiers_ = [wrapped]
    return copied(out, model, ("classes_", "n_features_in_", "feature_names_in_"))


def _plain(model: Any) -> Any:
    """Return scikit-learn's estimator of the same name, not fitted; parameters that it does not have are left out."""
    kind = next(getattr(svm, base.__name__) for base in type(model).__mro__ if hasattr(svm, base.__name__))
    known = kind().get_params()
    given = {name: value for name, value in model.get_params(deep=False).items() if name in known}
    if getattr(model, "_curves", (None, []))[0] in METHODS:
        given.pop("probability", None)  # which is there for LIBSVM's sigmoids alone
    return kind(**given)
