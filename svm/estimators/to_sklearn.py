"""Conversion of a fitted SVM to scikit-learn's estimator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn import calibration, svm
from sklearn.isotonic import IsotonicRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import InvalidParameterError
from dsgd.svm.calibration import N_FOLDS
from dsgd.types import FloatMatrix

_SHARED = ("n_features_in_", "feature_names_in_", "classes_", "intercept_", "n_iter_")


def linear_machine_to_sklearn(model: Any) -> Any:
    """Return scikit-learn's estimator with the weights of a fitted LinearSVC or LinearSVR, calibrated if it is."""
    check_is_fitted(model)
    plain = _with_attributes(_plain(model), model, ("coef_", *_SHARED))
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
    if method is not None and len(curves) > 1:
        raise InvalidParameterError(
            f"{type(model).__name__}(probability={method!r}).to_sklearn() with more than two classes: scikit-learn "
            "calibrates each class against the rest, and these curves are of pairs of classes, which it has nothing "
            "to combine with. Fit without probability, and calibrate what to_sklearn() returns."
        )
    plain = _plain(model)
    names = ("dual_coef_", "support_", "support_vectors_", "_gamma", "shape_fit_", "fit_status_", "class_weight_")
    _with_attributes(plain, model, (*_SHARED, *names, "offset_"))
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
        plain.support_vectors_ = _in_double(plain.support_vectors_)
    elif callable(model.kernel):
        plain.support_vectors_ = np.empty((0, 0))
    else:
        plain.support_vectors_ = np.ascontiguousarray(plain.support_vectors_, dtype=np.float64)
    coefs = model._dense_coefs()
    plain.dual_coef_ = _with_all_entries(coefs) if plain._sparse else coefs.copy()
    sign = -1.0 if len(getattr(model, "classes_", ())) == 2 else 1.0
    plain._dual_coef_, plain._intercept_ = sign * plain.dual_coef_, sign * plain.intercept_
    sigmoids = getattr(model, "_sigmoids", np.empty((2, 0)))
    if hasattr(plain, "offset_"):
        plain.offset_ = -plain._intercept_  # an array there, and a number here
    plain._probA, plain._probB = sigmoids[0].copy(), sigmoids[1].copy()
    plain._effective_probability = bool(sigmoids.shape[1])
    plain._num_iter = plain.n_iter_
    return plain if method is None else _calibrated(plain, model, method, curves)


def _calibrated(plain: Any, model: Any, method: str, curves: Sequence[FloatMatrix]) -> Any:
    """Return a fitted CalibratedClassifierCV around scikit-learn's estimator."""
    seed = model._fold_seed
    folds = StratifiedKFold(N_FOLDS, shuffle=seed is not None, random_state=seed)
    out = calibration.CalibratedClassifierCV(_plain(model), method=method, cv=folds, ensemble=False)
    maps = [_sigmoid(curve) if method == "sigmoid" else _isotonic(curve) for curve in curves]
    wrapped = calibration._CalibratedClassifier(plain, maps, classes=model.classes_, method=method)
    out.calibrated_classifiers_ = [wrapped]
    return _with_attributes(out, model, ("classes_", "n_features_in_", "feature_names_in_"))


def _sigmoid(curve: FloatMatrix) -> Any:
    out = calibration._SigmoidCalibration()
    out.a_, out.b_ = curve[:, 0].tolist()
    return out


def _isotonic(curve: FloatMatrix) -> Any:
    # The corners of a monotone curve are those of the curve that fits them best.
    return IsotonicRegression(out_of_bounds="clip").fit(curve[0], curve[1])


def _plain(model: Any) -> Any:
    """Return scikit-learn's estimator of the same name, not fitted; parameters that it does not have are left out."""
    kind = next(getattr(svm, base.__name__) for base in type(model).__mro__ if hasattr(svm, base.__name__))
    known = kind().get_params()
    given = {name: value for name, value in model.get_params(deep=False).items() if name in known}
    if getattr(model, "_curves", (None, []))[0] is not None:
        given.pop("probability", None)  # which is there for LIBSVM's sigmoids alone
    return kind(**given)


def _with_attributes(plain: Any, model: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if hasattr(model, name):
            value = getattr(model, name)
            setattr(plain, name, value.copy() if hasattr(value, "copy") else value)
    return plain


def _with_all_entries(coefs: FloatMatrix) -> Any:
    """Return a CSR matrix that holds its zeros too, as LIBSVM reads the entries of all support vectors."""
    m, n = coefs.shape
    columns = np.tile(np.arange(n, dtype=np.int32), m)
    return sp.csr_matrix((coefs.ravel().copy(), columns, n * np.arange(m + 1, dtype=np.int32)), shape=(m, n))


def _in_double(rows: Any) -> Any:
    """Return CSR rows as LIBSVM takes them: float64, indices of 32 bits."""
    out = sp.csr_matrix(rows, dtype=np.float64)
    out.indices, out.indptr = out.indices.astype(np.int32), out.indptr.astype(np.int32)
    return out
