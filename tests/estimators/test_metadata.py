"""Metadata requests and clones: what a user asks of an estimator, every copy of it is asked too."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import has_fit_parameter

from dsgd import SGDClassifier, SGDRegressor
from dsgd.progress import Callback
from dsgd.sim import SimulatedCluster
from dsgd.svm import SVC, SVR, LinearSVC, LinearSVR, NuSVC, NuSVR, OneClassSVM

CLASSIFIERS: list[Any] = [SGDClassifier(random_state=0), SVC(), NuSVC(nu=0.2), LinearSVC()]
REGRESSORS: list[Any] = [SGDRegressor(random_state=0), SVR(C=10.0), NuSVR(C=10.0), LinearSVR(C=10.0)]
ALL: list[Any] = [*CLASSIFIERS, *REGRESSORS, OneClassSVM()]
if find_spec("torch") is not None:
    from torch import nn

    from dsgd.torch import TorchClassifier, TorchRegressor

    ALL += [TorchClassifier(nn.Linear, module__in_features=2), TorchRegressor(nn.Linear, module__in_features=2)]


class Silent(Callback):
    """Hears of a fit and says nothing."""


def name(model: Any) -> str:
    """Return the name of an estimator's class."""
    return type(model).__name__


@pytest.fixture(autouse=True)
def _routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.parametrize("model", ALL, ids=name)
def test_clones_keep_what_was_asked(model: Any) -> None:
    """A clone, and a clone of it, has the requests, the callbacks, the parameters and the very client of the model."""
    model = clone(model).set_params(client=SimulatedCluster(2))
    # Torch estimators take validation rows, and no weights.
    of_fit = "sample_weight" if has_fit_parameter(model, "sample_weight") else "X_val"
    asked = {"fit": of_fit, "partial_fit": "sample_weight", "score": "sample_weight"}
    for method, wanted in asked.items():
        if hasattr(model, f"set_{method}_request"):
            getattr(model, f"set_{method}_request")(**{wanted: wanted if method == "fit" else True})
    model.set_callbacks(Silent())
    requests = model.get_metadata_routing()
    assert of_fit in str(requests)
    copy = clone(clone(model))
    assert str(copy.get_metadata_routing()) == str(requests)
    assert copy.client is model.client
    assert copy._skl_callbacks == model._skl_callbacks
    assert {k: repr(v) for k, v in copy.get_params().items()} == {k: repr(v) for k, v in model.get_params().items()}
    # What is asked of the copy later is not asked of the model.
    method = "fit" if hasattr(copy, "set_fit_request") else "score"
    getattr(copy, f"set_{method}_request")(**{asked[method]: False})
    assert str(copy.get_metadata_routing()) != str(requests)
    assert str(model.get_metadata_routing()) == str(requests)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("model", [*CLASSIFIERS, *REGRESSORS], ids=name)
def test_weights_reach_the_last_step_of_a_pipeline(model: Any) -> None:
    """With routing, weights of zero for rows with wrong targets make cross-validation blind to them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 3))
    y = X[:, 0] + 0.5 * X[:, 1]
    wrong, weights = rng.random(120) < 0.5, np.ones(120)
    y = np.where(wrong, -y, y)
    weights[wrong] = 0.0
    if model in CLASSIFIERS:
        y = (y > 0).astype(int)
    asked = clone(model).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
    pipeline = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), asked)
    found = cross_val_score(pipeline, X, y, cv=3, params={"sample_weight": weights})
    assert found.mean() > 0.8
    assert cross_val_score(make_pipeline(StandardScaler(), clone(model)), X, y, cv=3).mean() < 0.7
