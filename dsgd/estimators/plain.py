"""Conversion of fitted estimators to scikit-learn's, and back."""

from __future__ import annotations

from typing import Any, Final

from sklearn.kernel_approximation import RBFSampler
from sklearn.pipeline import make_pipeline

from dsgd.estimators.base import BESIDE, AbstractSGD
from dsgd.inputs.peers import copied, of_peer
from dsgd.local import RandomMap, cycle_of

__all__ = ["from_plain", "to_plain"]

#: Fitted attributes that all linear models have, here and there.
_SHARED: Final = ("coef_", "intercept_", "n_iter_", "t_", "n_features_in_", "feature_names_in_")


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
    copied(estimator, model, (*_SHARED, *extra))
    steps = [] if model.encoder_ is None else [model.encoder_]
    if model._random_map is not None:
        steps.append(_sampler(model, model._random_map))
    if not steps:
        return estimator
    estimator.n_features_in_ = model._width if model._random_map is None else model._random_map.n_components
    vars(estimator).pop("feature_names_in_", None)
    return make_pipeline(*steps, estimator)


def from_plain(kind: type[AbstractSGD], plain: type, given: Any, extra: tuple[str, ...]) -> Any:
    """Return our estimator with the coefficients of scikit-learn's; further training goes on from its last step.

    Parameters
    ----------
    kind : type
        Ours.
    plain : type
        Theirs.
    given : estimator
        An instance of `plain`, fitted.
    extra : tuple of str
        As of `to_plain`.

    Raises
    ------
    InvalidParameterError
        It is another kind of estimator.
    """
    model = copied(of_peer(kind, plain, given), given, (*_SHARED, *extra))
    if model.average:
        copied(model, given, BESIDE)
        # It counts steps, and begins with this one.
        model._n_averaged = max(0, int(given.t_) - int(model.average))
    return model


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
