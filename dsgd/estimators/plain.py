"""Conversion of a fitted estimator to scikit-learn's."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.kernel_approximation import RBFSampler
from sklearn.pipeline import make_pipeline

from dsgd.estimators.base import AbstractSGD
from dsgd.local import RandomMap, cycle_of

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
        An instance of `plain`; parameters that it does not have are left out. Of a model that is linear in features a
        pipeline, with `RBFSampler` before it.
    """
    ours = model.get_params(deep=False)
    theirs = {name: value for name, value in ours.items() if name in plain().get_params()}
    if cycle_of(theirs["learning_rate"]) is not None:
        theirs["learning_rate"] = "constant"
    elif theirs["learning_rate"] in {"pegasos", "per_epoch"}:
        theirs["learning_rate"] = "optimal"  # the nearest that scikit-learn has; only further training would use it
    estimator = plain(**theirs)
    for name in ("coef_", "intercept_", "n_iter_", "t_", "n_features_in_", "feature_names_in_", *extra):
        if hasattr(model, name):
            value = getattr(model, name)
            setattr(estimator, name, value.copy() if isinstance(value, np.ndarray) else value)
    steps = [] if model.encoder_ is None else [model.encoder_]
    if model._random_map is not None:
        steps.append(_sampler(model, model._random_map))
    if not steps:
        return estimator
    estimator.n_features_in_ = model._width if model._random_map is None else model._random_map.n_components
    vars(estimator).pop("feature_names_in_", None)
    return make_pipeline(*steps, estimator)


def _sampler(model: AbstractSGD, given: RandomMap) -> RBFSampler:
    """Return a transformer of scikit-learn that makes the features of a model: its formula is that of every kernel."""
    drawn = given.drawn(model._width, model.coef_.dtype)
    sampler = RBFSampler(gamma=given.gamma, n_components=given.n_components, random_state=given.seed)
    sampler.random_weights_, sampler.random_offset_ = drawn.frequencies.copy(), drawn.offsets.copy()
    sampler._n_features_out = given.n_components
    sampler.n_features_in_ = model._width
    for name in ("feature_names_in_",):
        if hasattr(model, name) and model.encoder_ is None:
            setattr(sampler, name, getattr(model, name))
    return sampler
