"""Coefficients of linear models by the names of their features."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import InvalidDataError, MissingPackageError


class CoefficientsMixin:
    """A linear model that shows its coefficients."""

    def coefficients(self) -> Any:
        """Return the coefficients by the names of features, as a data frame.

        Those of an encoder are of its features: of standardised numbers, say.

        Returns
        -------
        pandas.DataFrame, shape (n_features * n_outputs, 4)
            ``feature``, ``column`` (of the table; missing where hashed columns share a feature), ``class`` (of a
            classifier; of two classes the second) and ``coefficient``.

        Raises
        ------
        MissingPackageError
            pandas is not installed.
        InvalidDataError
            The model is linear in random features, which have no names.
        """
        check_is_fitted(self)
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingPackageError("coefficients() needs pandas: pip install pandas") from error
        model: Any = self
        if getattr(model, "_random_map", None) is not None:
            raise InvalidDataError("coefficients() are of features of X, and this model is linear in random ones.")
        encoder = getattr(model, "encoder_", None)
        if encoder is not None:
            features, columns = encoder.get_feature_names_out(), encoder.columns_of_features()
        else:
            unnamed = np.array([f"x{k}" for k in range(model.n_features_in_)], dtype=object)
            features = columns = getattr(model, "feature_names_in_", unnamed)
        coef = model.coef_.toarray() if sp.issparse(model.coef_) else np.atleast_2d(model.coef_)
        found = {"feature": np.tile(features, len(coef)), "column": np.tile(columns, len(coef))}
        if hasattr(model, "classes_"):
            classes = model.classes_ if len(coef) == len(model.classes_) else model.classes_[1:]
            found["class"] = np.repeat(classes, coef.shape[1])
        return pd.DataFrame({**found, "coefficient": coef.ravel()})
