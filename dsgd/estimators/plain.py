"""Conversion of a fitted estimator to scikit-learn's."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsgd.estimators.base import AbstractSGD

__all__ = ["to_plain"]


def to_plain(model: AbstractSGD, plain: type, extra: tuple[str, ...]) -> Any:
    """Return a fitted estimator of scikit-learn with the coefficients of `model`.

    Parameters
    ----------
    model : AbstractSGD
        Fitted.
    plain : type
        The class of scikit-learn.
    extra : tuple of str
        Fitted attributes to carry over beside those that all linear models have.

    Returns
    -------
    estimator
        An instance of `plain`; parameters that it does not have are left out.
    """
    ours = model.get_params(deep=False)
    theirs = {name: value for name, value in ours.items() if name in plain().get_params()}
    if theirs["learning_rate"] in {"pegasos", "per_epoch"}:
        theirs["learning_rate"] = "optimal"  # the nearest that scikit-learn has; only further training would use it
    estimator = plain(**theirs)
    for name in ("coef_", "intercept_", "n_iter_", "t_", "n_features_in_", "feature_names_in_", *extra):
        if hasattr(model, name):
            value = getattr(model, name)
            setattr(estimator, name, value.copy() if isinstance(value, np.ndarray) else value)
    return estimator
