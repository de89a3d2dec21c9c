"""Conversion of fitted estimators to scikit-learn's, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy.sparse import issparse

from dsgd.estimators.start import BESIDE
from dsgd.inputs.linear import copied, of_peer
from dsgd.local import CustomLoss
from dsgd.local.cycles import cycle_of
from dsgd.local.features import RandomMap

if TYPE_CHECKING:
    from sklearn.kernel_approximation import RBFSampler


#: Fitted attributes that all linear models have, here and there.
_SHARED: Final = ("coef_", "intercept_", "n_iter_", "t_", "n_features_in_", "feature_names_in_")

#: Parameters that mean the same to scikit-learn's logistic regression.
_OF_ANY_FIT: Final = {"fit_intercept", "class_weight", "max_iter", "random_state", "verbose", "warm_start"}


def peer_of(loss: str | CustomLoss) -> type:
    """Return the class of scikit-learn that regresses with a loss."""
    from sklearn import linear_model

    others = {
        "quantile": linear_model.QuantileRegressor,
        "poisson": linear_model.PoissonRegressor,
        "gamma": linear_model.GammaRegressor,
        "tweedie": linear_model.TweedieRegressor,
    }
    return others.get(str(loss), linear_model.SGDRegressor)  # type: ignore[no-any-return]


def to_plain(model: Any, plain: type, extra: tuple[str, ...]) -> Any:
    """Return a fitted estimator of scikit-learn with the coefficients of `model`.

    - returned: an instance of `plain`; parameters that it does not have are left out. Of a model that is linear in
      features a pipeline, with `RBFSampler` before it.
    """
    ours = model.get_params(deep=False)
    theirs = {name: value for name, value in ours.items() if name in plain().get_params()}
    if isinstance(model.loss, CustomLoss):
        del theirs["loss"]  # what scikit-learn has no name for; only further training would use it
    rate = theirs.get("learning_rate", "constant")
    if cycle_of(rate) is not None:
        theirs["learning_rate"] = "constant"
    elif rate in {"pegasos", "per_epoch"}:
        theirs["learning_rate"] = "optimal"  # the nearest that scikit-learn has; only further training would use it
    if "penalty" not in theirs and model.penalty is None:
        theirs["alpha"] = 0.0
    if model.loss == "softmax":
        # Of its solvers, in other units.
        theirs = {name: value for name, value in theirs.items() if name in _OF_ANY_FIT}
    if model._deviance is not None:
        del theirs["tol"]  # of its solver, and never None
        theirs |= {"power": ours["tweedie_power"], "link": "log"} if model._deviance.loss == "tweedie" else {}
    estimator = copied(plain(**theirs), model, (*_SHARED, *extra))
    if model._deviance is not None:
        # Its fit sets it, and its predict reads its link.
        estimator._base_loss = estimator._get_loss()
    if model.loss == "softmax":
        estimator.n_iter_ = np.array([model.n_iter_], np.int32)
    if not hasattr(plain, "sparsify"):
        coef = estimator.coef_.toarray() if issparse(estimator.coef_) else estimator.coef_
        estimator.coef_, estimator.intercept_ = coef.ravel(), float(estimator.intercept_[0])
    steps = [] if model.encoder_ is None else [model.encoder_]
    if model._random_map is not None:
        steps.append(_sampler(model, model._random_map))
    if not steps:
        return estimator
    estimator.n_features_in_ = model._width if model._random_map is None else model._random_map.n_components
    vars(estimator).pop("feature_names_in_", None)
    from sklearn.pipeline import make_pipeline

    return make_pipeline(*steps, estimator)


def from_plain(kind: type[Any], given: Any) -> Any:
    """Return our estimator with the coefficients of scikit-learn's; further training goes on from its last step."""
    from sklearn import linear_model

    classifies = kind._is_classification
    plain = linear_model.SGDClassifier if classifies else linear_model.SGDRegressor
    model = copied(of_peer(kind, plain, given), given, (*_SHARED, "classes_") if classifies else _SHARED)
    if model.average:
        copied(model, given, BESIDE)
        # It counts steps, and begins with this one.
        model._n_averaged = max(0, int(given.t_) - int(model.average))
    return model


def _sampler(model: Any, given: RandomMap) -> RBFSampler:
    """Return a transformer of scikit-learn that makes the features of a model: its formula is that of every kernel."""
    from sklearn.kernel_approximation import RBFSampler

    drawn = given.drawn(model._width, model.coef_.dtype)
    sampler = RBFSampler(gamma=given.gamma, n_components=given.n_components, random_state=given.seed)
    sampler.random_weights_, sampler.random_offset_ = drawn.frequencies.copy(), drawn.offsets.copy()
    sampler._n_features_out = given.n_components
    sampler.n_features_in_ = model._width
    for name in ("feature_names_in_",):
        if hasattr(model, name) and model.encoder_ is None:
            setattr(sampler, name, getattr(model, name))
    return sampler
