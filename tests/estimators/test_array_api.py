"""Arrays of other libraries in, and out again where scikit-learn would return them."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsgd import SGDClassifier, SGDRegressor
from dsgd.errors import InvalidDataError

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 4))
Y = (X[:, 0] > 0).astype(np.int64)


def test_tensors_are_trained_on_as_arrays() -> None:
    """A fit on tensors is that on the same arrays, and by default predictions are numpy's, as scikit-learn's are."""
    given = torch.asarray(X), torch.asarray(Y)
    found = SGDClassifier(random_state=0).fit(*given)
    wanted = SGDClassifier(random_state=0).fit(X, Y)
    np.testing.assert_array_equal(found.coef_, wanted.coef_)
    assert isinstance(found.predict(given[0]), np.ndarray)
    assert found.score(*given) == wanted.score(X, Y)
    regressor = SGDRegressor(random_state=0).fit(given[0], given[0][:, 1], sample_weight=torch.ones(300))
    assert regressor.score(*given[:1], X[:, 1]) > 0.9


@pytest.mark.slow
def test_with_dispatch_predictions_are_tensors() -> None:
    """With ``array_api_dispatch`` every prediction comes back in the library of X."""
    # In a process of its own, as scipy reads its setting once.
    code = """
import os
os.environ["SCIPY_ARRAY_API"] = "1"
import numpy as np, sklearn, torch
from dsgd import SGDClassifier, SGDRegressor
X = torch.asarray(np.random.default_rng(0).standard_normal((300, 4)))
y = (X[:, 0] > 0).to(torch.int64)
plain = SGDClassifier(loss="log_loss", random_state=0).fit(X.numpy(), y.numpy())
with sklearn.config_context(array_api_dispatch=True):
    model = SGDClassifier(loss="log_loss", random_state=0).fit(X, y)
    assert (model.coef_ == plain.coef_).all()
    for method in ("predict", "decision_function", "predict_proba", "predict_log_proba"):
        found = getattr(model, method)(X)
        assert isinstance(found, torch.Tensor), method
        assert (found.numpy() == getattr(plain, method)(X.numpy())).all(), method
    assert abs(model.score(X, y) - plain.score(X.numpy(), y.numpy())) < 1e-7  # means of torch are float32
    assert isinstance(SGDRegressor(random_state=0).fit(X, X[:, 1]).predict(X), torch.Tensor)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_arrays_on_other_devices_are_refused() -> None:
    """An array of a GPU is an error that says how to copy it."""

    class Array:
        """As one of cupy."""

        device = SimpleNamespace(id=0)

        def __array_namespace__(self, api_version: Any = None) -> Any:
            return np

    Array.__module__ = "cupy._core.core"
    with pytest.raises(InvalidDataError, match=r"X is an array of cupy .* Pass X.get\(\)"):
        SGDClassifier().fit(Array(), Y)
    with pytest.raises(InvalidDataError, match=r"Pass X.get\(\)"):
        SGDClassifier(random_state=0).fit(X, Y).predict(Array())
    with pytest.raises(InvalidDataError, match=r"X.cpu\(\)"):
        SGDClassifier().fit(torch.empty((4, 2), device="meta"), Y[:4])
