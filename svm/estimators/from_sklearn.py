"""SVMs of scikit-learn as ours, which predict the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn import svm

from dsgd.inputs.linear import copied, of_peer
from dsgd.svm.estimators.objects import are_objects, as_objects

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
    model.support_vectors_ = _support_vectors(model, given)
    model._is_sparse = sp.issparse(model.support_vectors_)
    if hasattr(model, "classes_"):
        model._sigmoids = np.stack([given._probA, given._probB])
    coefs: Any = given.dual_coef_
    dense = np.asarray(coefs.toarray() if sp.issparse(coefs) else coefs)
    model._keep_coefs(dense, np.array(given.intercept_), model._known_kernel())
    if hasattr(given, "offset_"):
        model.offset_ = -float(model.intercept_[0])
    return model


def _support_vectors(model: Any, given: Any) -> Any:
    if callable(model.kernel):
        rows = as_objects(given._BaseLibSVM__Xfit)
        # Theirs does not count the columns of rows for a callable kernel.
        model.n_features_in_ = len(rows) if are_objects(rows) else rows.shape[1]
        if not are_objects(rows):
            return rows[given.support_]
        model._objects = rows
    return np.empty((0, 0)) if model._is_precomputed() else given.support_vectors_.copy()
