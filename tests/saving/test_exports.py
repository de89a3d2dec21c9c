"""What `to_sklearn` gives goes into ONNX and skops, which know scikit-learn's classes; where these are installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsgd import SGDClassifier, SGDRegressor
from dsgd.kernel_approximation import Nystroem, RandomFeatures
from dsgd.preprocessing import ColumnEncoder
from dsgd.svm import SVC, SVR, LinearSVC, LinearSVR, NuSVC, NuSVR, OneClassSVM

pytestmark = pytest.mark.filterwarnings("ignore")  # those of other packages, of which we hold no version

X = np.random.default_rng(0).standard_normal((90, 5)).astype(np.float32)
LABELS = np.array(["no", "perhaps", "yes"])[np.argmax(X[:, :3], axis=1)]
VALUES = 2 * X[:, 0]
MODELS: dict[str, Callable[[], Any]] = {
    "LinearSVC": lambda: LinearSVC().fit(X, LABELS),
    "LinearSVR": lambda: LinearSVR().fit(X, VALUES),
    "NuSVC": lambda: NuSVC(nu=0.2).fit(X, LABELS),
    "NuSVR": lambda: NuSVR().fit(X, VALUES),
    "OneClassSVM": lambda: OneClassSVM().fit(X),
    "SGDClassifier": lambda: SGDClassifier(random_state=0).fit(X, LABELS),
    "SGDClassifier of softmax": lambda: SGDClassifier("softmax", random_state=0).fit(X, LABELS),
    "SGDRegressor": lambda: SGDRegressor(random_state=0).fit(X, VALUES),
    "SVC": lambda: SVC().fit(X, LABELS),
    "SVC of two": lambda: SVC(kernel="poly").fit(X, X[:, 0] > 0),
    "SVR": lambda: SVR().fit(X, VALUES),
}


@pytest.mark.parametrize("name", MODELS)
def test_onnx_predicts_the_same(name: str) -> None:
    """The graph that skl2onnx makes of a model predicts its labels, and its values to single precision."""
    skl2onnx, runtime = pytest.importorskip("skl2onnx"), pytest.importorskip("onnxruntime")
    model = MODELS[name]()
    graph = skl2onnx.to_onnx(model.to_sklearn(), X[:1]).SerializeToString()
    found = runtime.InferenceSession(graph, providers=["CPUExecutionProvider"]).run(None, {"X": X})[0].ravel()
    wanted = model.predict(X)
    if wanted.dtype.kind == "f":
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        return
    scores = model.decision_function(X).reshape(len(X), -1)
    gaps = np.abs(scores[:, 0]) if scores.shape[1] == 1 else -np.diff(np.sort(-scores, axis=1)[:, :2])[:, 0]
    is_certain = np.abs(gaps) > 1e-4
    assert is_certain.mean() > 0.9
    assert found[is_certain].tolist() == wanted[is_certain].tolist()


@pytest.mark.parametrize("name", [*MODELS, "RandomFeatures", "Nystroem", "features"])
def test_skops_needs_to_trust_nobody(name: str) -> None:
    """A file of skops holds only types of scikit-learn, and the same predictions."""
    skops = pytest.importorskip("skops.io")
    others = {
        "RandomFeatures": lambda: RandomFeatures(9).fit(X),
        "Nystroem": lambda: Nystroem(n_components=9).fit(X),
        "features": lambda: SGDClassifier(features=RandomFeatures(9), random_state=0).fit(X, LABELS),
    }
    plain = {**MODELS, **others}[name]().to_sklearn()
    content = skops.dumps(plain)
    assert skops.get_untrusted_types(data=content) == []
    method = "predict" if hasattr(plain, "predict") else "transform"
    assert getattr(skops.loads(content), method)(X).tolist() == getattr(plain, method)(X).tolist()


def test_skops_names_the_encoder() -> None:
    """A model of tables becomes a pipeline with our encoder in it, of which skops asks whether it is trusted."""
    skops, pandas = pytest.importorskip("skops.io"), pytest.importorskip("pandas")
    frame = pandas.DataFrame({"city": ["Oslo", "Rome", "Oslo", None], "size": [1.0, 2.0, np.nan, 4.0]})
    plain = SGDClassifier(encoder=ColumnEncoder(), random_state=0).fit(frame, [0, 1, 0, 1]).to_sklearn()
    content = skops.dumps(plain)
    types = skops.get_untrusted_types(data=content)
    assert "dsgd.preprocessing.encoder.ColumnEncoder" in types
    assert {name.split(".")[0] for name in types} <= {"dsgd", "builtins"}
    assert skops.loads(content, trusted=types).predict(frame).tolist() == plain.predict(frame).tolist()
