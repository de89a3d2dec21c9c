"""Sample weights of torch estimators: whole numbers are repeated rows, zeros absent ones, and ones change no bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sklearn.metrics import accuracy_score, r2_score  # noqa: E402 - what comes below needs torch
from torch import nn  # noqa: E402

from dsgd.errors import InvalidDataError, InvalidParameterError  # noqa: E402
from dsgd.local.base import Evaluation  # noqa: E402
from dsgd.sim import SimulatedCluster  # noqa: E402
from dsgd.sync import LocalSGD  # noqa: E402
from dsgd.torch import Passes, TorchClassifier, TorchRegressor  # noqa: E402
from dsgd.torch.oracle import mean_loss, score_sums  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4))
CLASSES = np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
VALUES = np.column_stack([X[:, 0], X[:, 1] - X[:, 2]])
COUNTS = RNG.integers(0, 4, 60)


def network(n_outputs: int = 2) -> nn.Module:
    """Return a module in float64."""
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, n_outputs)).double()


def model(*, classifies: bool = True, **options: Any) -> Any:
    """Return an estimator."""
    kind = TorchClassifier if classifies else TorchRegressor
    return kind(network, **{"lr": 0.3, "max_epochs": 4, "random_state": 0, "optimizer__momentum": 0.5, **options})


def state_of(fitted: Any) -> np.ndarray:
    """Return the parameters."""
    return np.concatenate([tensor.numpy().ravel() for tensor in fitted.module_.state_dict().values()])


@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        ({}, CLASSES),
        ({"criterion": nn.BCEWithLogitsLoss, "module__n_outputs": 1}, CLASSES),
        ({"classifies": False}, VALUES),
        ({"classifies": False, "criterion": nn.SmoothL1Loss(), "module__n_outputs": 1}, VALUES[:, 0]),
    ],
    ids=["cross entropy", "binary", "two values", "one value"],
)
@pytest.mark.parametrize("where", [{"n_jobs": 1}, {"n_jobs": 2}, {"n_jobs": 2, "passes": Passes(rows=7)}])
def test_whole_numbers_are_repeated_rows(kind: dict[str, Any], targets: np.ndarray, where: dict[str, Any]) -> None:
    """In batches of all rows a weight of three is three rows, and zero none: model and training loss."""
    repeated = np.repeat(np.arange(60), COUNTS)
    fitted = model(**kind, **where, batch_size=60).fit(X, targets, COUNTS)
    twin = model(**kind, **where, batch_size=len(repeated)).fit(X[repeated], targets[repeated])
    np.testing.assert_allclose(state_of(fitted), state_of(twin), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(fitted.history_[:, "train_loss"], twin.history_[:, "train_loss"], rtol=1e-11)


@pytest.mark.parametrize(
    "options",
    [{}, {"n_jobs": 2}, {"n_jobs": 2, "sync": LocalSGD(8)}, {"early_stopping": True}],
    ids=["one", "two", "models", "held out"],
)
def test_weights_of_one_change_no_bit(options: dict[str, Any]) -> None:
    """Neither of the model nor of the scores, in small batches."""
    weighted = model(**options, batch_size=8).fit(X, CLASSES, sample_weight=np.ones(60))
    plain = model(**options, batch_size=8).fit(X, CLASSES)
    assert state_of(weighted).tobytes() == state_of(plain).tobytes()
    names = ["train_loss", *(["valid_score"] if "early_stopping" in options else [])]
    assert [weighted.history_[:, name] for name in names] == [plain.history_[:, name] for name in names]


def test_blocks_bring_weights() -> None:
    """Simulated ranks with a block each, one of them without weights, train as one rank with all rows."""
    weights = np.where(np.arange(60) < 30, COUNTS, 1)
    blocks = [(X[:30], CLASSES[:30], COUNTS[:30]), (X[30:], CLASSES[30:])]
    apart = model(client=SimulatedCluster(ranks=2), batch_size=60).fit(blocks)
    np.testing.assert_allclose(state_of(apart), state_of(model(batch_size=60).fit(X, CLASSES, weights)), rtol=1e-10)


def test_scores_are_weighted() -> None:
    """Those of validation rows of one's own, and the sums over rows held out, are scikit-learn's."""
    fitted = model().fit(X, CLASSES, X_val=X, y_val=CLASSES, sample_weight_val=COUNTS)
    expected = accuracy_score(CLASSES, fitted.predict(X), sample_weight=COUNTS)
    assert fitted.history_[-1, "valid_score"] == pytest.approx(expected, rel=1e-15)
    weights = torch.from_numpy(COUNTS / COUNTS.mean())
    values = torch.from_numpy(RNG.standard_normal((60, 2)))
    criterion = nn.MSELoss()
    loss = float(mean_loss(criterion, values, torch.from_numpy(VALUES), weights))
    assert loss == pytest.approx(np.average(((values.numpy() - VALUES) ** 2).mean(axis=1), weights=COUNTS))
    assert criterion.reduction == "mean"
    codes = torch.from_numpy((CLASSES == "same").astype(np.int64))
    found = Evaluation.from_vector(score_sums(values, codes, loss, weights, is_classification=True))
    assert found.accuracy == pytest.approx(accuracy_score(codes, values.argmax(dim=1), sample_weight=COUNTS))
    one, truth = values[:, :1], torch.from_numpy(VALUES[:, 0])
    found = Evaluation.from_vector(score_sums(one, truth, loss, weights, is_classification=False))
    assert found.r2 == pytest.approx(r2_score(truth, one, sample_weight=COUNTS))


class Total(nn.Module):
    """A loss without a `reduction`."""

    def forward(self, output: Any, target: Any) -> Any:
        """Return the mean."""
        return nn.functional.cross_entropy(output, target)


class Stubborn(Total):
    """One that does not heed it."""

    reduction = "mean"


def test_what_cannot_be_weighted() -> None:
    """Losses that divide by something else, or return one number, are refused; so are weights that are none."""
    for criterion, said in (
        (nn.CrossEntropyLoss(weight=torch.ones(2).double()), "weight of a batch"),
        (nn.CrossEntropyLoss(ignore_index=1), "weight of a batch"),
        (Total, "no `reduction`"),
        (Stubborn, "not a loss for each row"),
    ):
        model(criterion=criterion, max_epochs=1).fit(X, CLASSES)
        with pytest.raises(InvalidParameterError, match=said):
            model(criterion=criterion, max_epochs=1).fit(X, CLASSES, COUNTS)
    for weights, said in ((COUNTS[:5], "expected"), (-COUNTS, "Negative"), (np.zeros(60), "non-zero")):
        with pytest.raises(InvalidDataError, match=said):
            model().fit(X, CLASSES, weights)
    with pytest.raises(InvalidDataError, match="without rows"):
        model(dataset=lambda k, n: (X, CLASSES), classes=["other", "same"]).fit(sample_weight=COUNTS)
