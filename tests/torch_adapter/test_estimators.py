"""Torch modules as estimators, and what can go wrong with them."""

from __future__ import annotations

import difflib
import importlib.util
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sklearn.base import clone  # noqa: E402 - what comes below needs torch
from sklearn.model_selection import GridSearchCV  # noqa: E402
from torch import nn  # noqa: E402

from dsgd.errors import (  # noqa: E402
    IncompatiblePartsError,
    InvalidDataError,
    InvalidParameterError,
    VersionMismatchError,
)
from dsgd.sim import SimulatedCluster  # noqa: E402
from dsgd.sync import (  # noqa: E402
    DiLoCo,
    LocalSGD,
    MinibatchSGD,
)
from dsgd.torch import FlatModule, Synchronizer, TorchClassifier, TorchRegressor, launch  # noqa: E402
from dsgd.torch.parts import check_same, fingerprint  # noqa: E402


class MLP(nn.Module):
    """A hidden layer, optionally with layers that have state and layers that draw random numbers."""

    def __init__(self, hidden: int = 8, *, n_outputs: int = 2, normalised: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(4, hidden)
        self.norm = nn.BatchNorm1d(hidden) if normalised else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(hidden, n_outputs)

    def forward(self, X: Any) -> Any:
        """Return the outputs."""
        return self.last(self.dropout(torch.relu(self.norm(self.first(X)))))


def rows(n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of floats, and the quadrant of each as its class."""
    X = np.random.default_rng(seed).standard_normal((n, 4)).astype(np.float32)
    return X, np.where(X[:, 0] * X[:, 1] > 0, "same", "other")


def classifier(**options: Any) -> TorchClassifier:
    """Return an estimator that learns the rows in a moment."""
    return TorchClassifier(MLP, **{"lr": 0.2, "batch_size": 16, "max_epochs": 20, "random_state": 0, **options})


def state_of(module: nn.Module) -> bytes:
    """Return everything in the state of a module as bytes."""
    return b"".join(tensor.numpy().tobytes() for tensor in module.state_dict().values())


# ---- the flat vector


def test_a_flat_module_keeps_its_state_dict() -> None:
    """A state goes out and comes in again, buffers included, and the vector stays the same memory."""
    module = MLP(normalised=True)
    flat = FlatModule(module)
    other = MLP(normalised=True)
    other(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)))
    vector = flat.params
    flat.load_state_dict(other.state_dict())
    assert flat.params is vector
    assert state_of(module) == state_of(other)
    assert {k: v.tolist() for k, v in flat.state_dict().items()} == {
        k: v.tolist() for k, v in other.state_dict().items()
    }


def test_what_cannot_be_one_vector_is_refused() -> None:
    """A module without parameters, of two dtypes or of halves says so; so does a vector that does not fit."""
    with pytest.raises(InvalidParameterError, match="nothing to train"):
        FlatModule(nn.ReLU())
    with pytest.raises(InvalidParameterError, match="must all be float32"):
        FlatModule(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))
    with pytest.raises(InvalidDataError, match="has 10 parameters"):
        FlatModule(nn.Linear(4, 2)).bind(np.zeros(9, np.float32))


# ---- estimators


@pytest.mark.parametrize(
    "options",
    [
        {"n_jobs": 3},
        {"n_jobs": 2, "sync": LocalSGD(32), "optimizer__momentum": 0.9, "lr": 0.05},
        {"n_jobs": 2, "sync": DiLoCo(32), "optimizer": torch.optim.AdamW, "lr": 0.02, "module__normalised": True},
        {"n_jobs": 2, "sync": LocalSGD(32, momentum="average"), "optimizer": torch.optim.Adam, "lr": 0.02},
    ],
    ids=str,
)
def test_a_classifier_learns_and_repeats(options: dict[str, Any]) -> None:
    """With ranks, an optimiser and a strategy as the user likes, classes are learned; a seed gives the same bits."""
    X, y = rows()
    fitted = classifier(module__hidden=16, **options).fit(X, y)
    assert fitted.score(X, y) > 0.85
    assert fitted.predict_proba(X).sum(axis=1) == pytest.approx(1.0)
    assert set(fitted.predict(X)) == {"same", "other"}
    assert len(fitted.history_) == fitted.n_iter_ == 20
    assert fitted.history[-1, "train_loss"] < fitted.history[0, "train_loss"]
    assert fitted.ledger_.totals()["bytes_sent"] > 0
    assert state_of(clone(fitted).fit(X, y).module_) == state_of(fitted.module_)


def test_a_regressor_learns() -> None:
    """Values and vectors of values are learned; dask input gives the score block by block."""
    import dask.array as da

    X, _ = rows()
    y = X[:, 0] + 2.0 * X[:, 1]
    options = {"module__n_outputs": 1, "lr": 0.05, "max_epochs": 30, "batch_size": 16, "random_state": 0}
    fitted = TorchRegressor(MLP, n_jobs=2, **options).fit(X, y)
    assert fitted.predict(X).shape == (120,)
    assert fitted.score(X, y) > 0.9
    lazy = fitted.score(da.from_array(X, chunks=(50, 4)), da.from_array(y, chunks=50))
    assert lazy == pytest.approx(fitted.score(X, y), abs=1e-5)
    both = TorchRegressor(MLP, **{**options, "module__n_outputs": 2}).fit(X, np.stack([y, -y], axis=1))
    assert both.predict(X).shape == (120, 2)


def test_one_output_is_two_classes() -> None:
    """With a criterion for one number per row, its sign decides."""
    X, y = rows()
    fitted = classifier(module__n_outputs=1, module__hidden=16, criterion=nn.BCEWithLogitsLoss, max_epochs=40)
    fitted.fit(X, y)
    assert fitted.predict_proba(X).shape == (120, 2)
    assert fitted.score(X, y) > 0.85


def test_the_trained_module_is_a_plain_one() -> None:
    """It has tensors of its own, and goes through pickle, as does the estimator."""
    X, y = rows()
    fitted = classifier(max_epochs=2).fit(X, y)
    module = pickle.loads(pickle.dumps(fitted.module_))
    assert type(module) is MLP
    assert len({p.untyped_storage().data_ptr() for p in module.parameters()}) == 4
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))


def test_it_is_an_estimator_of_scikit_learn() -> None:
    """Options of the parts are parameters: they are set, cloned and searched like all others."""
    X, y = rows(60)
    search = GridSearchCV(classifier(max_epochs=1), {"module__hidden": [2, 3], "lr": [0.1]}, cv=2)
    search.fit(X, y)
    assert search.best_params_["module__hidden"] in (2, 3)
    assert clone(search.best_estimator_).get_params()["module__hidden"] == search.best_params_["module__hidden"]
    with pytest.raises(TypeError, match="unexpected argument 'hidden'"):
        classifier(hidden=3)


def test_images_in_chunks() -> None:
    """Rows may be images; predictions of a dask array of them are lazy and keep its chunks."""
    import dask.array as da

    def network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))

    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 1, 6, 6)).astype(np.float32)
    y = (X.mean(axis=(1, 2, 3)) > 0).astype(int)
    fitted = TorchClassifier(
        network, lr=0.1, max_epochs=15, batch_size=10, random_state=0, client=SimulatedCluster(2)
    ).fit(X, y)
    found = fitted.predict(da.from_array(X, chunks=(25, 1, 6, 6)))
    assert found.chunks == ((25, 25, 10),)
    np.testing.assert_array_equal(found.compute(), fitted.predict(X))
    assert fitted.predict_proba(da.from_array(X, chunks=(25, 1, 6, 6))).compute().shape == (60, 2)
    with pytest.raises(InvalidDataError, match="axis 2"):
        fitted.predict(da.from_array(X, chunks=(25, 1, 3, 6)))


def test_a_dataset_is_made_on_each_rank() -> None:
    """A factory gives every rank its part, as arrays or as a dataset of torch; the model is that of the same rows."""
    X, y = rows(90)
    codes = (y == "same").astype(np.int64)

    def arrays(part: int, n_parts: int) -> Any:
        cut = slice(90 * part // n_parts, 90 * (part + 1) // n_parts)
        return X[cut], codes[cut]

    def dataset(part: int, n_parts: int) -> Any:
        return torch.utils.data.TensorDataset(*map(torch.from_numpy, arrays(part, n_parts)))

    options: dict[str, Any] = {"n_jobs": 3, "max_epochs": 2, "random_state": 0, "shuffle": False}
    expected = classifier(**options).fit(X, codes)
    for factory in (arrays, dataset):
        found = classifier(dataset=factory, classes=[0, 1], **options).fit()
        assert state_of(found.module_) == state_of(expected.module_)
        np.testing.assert_array_equal(found.predict(X), expected.predict(X))
    with pytest.raises(InvalidParameterError, match="classes="):
        classifier(dataset=arrays, **options).fit()


def test_early_stopping_holds_rows_out() -> None:
    """The score on rows that are held out ends training, and is in the history."""
    X, y = rows()
    fitted = classifier(early_stopping=True, n_iter_no_change=2, max_epochs=60, n_jobs=2).fit(X, y)
    assert fitted.n_iter_ < 60
    assert 0.0 <= fitted.history_[-1]["valid_score"] <= 1.0


def test_callbacks_of_skorch_are_told() -> None:
    """Callbacks with skorch's methods get the beginning, epochs and the end, and can end training."""
    heard = []

    class Stop:
        def on_train_begin(self, net: Any, X: Any = None, y: Any = None) -> None:
            heard.append("begin")

        def on_epoch_end(self, net: Any, **_: Any) -> None:
            heard.append(net.history[-1, "epoch"])
            raise KeyboardInterrupt

        def on_train_end(self, net: Any, X: Any = None, y: Any = None) -> None:
            heard.append(net.n_iter_)

    X, y = rows()
    classifier(callbacks=[("stop", Stop())], max_epochs=2000).fit(X, y)
    assert heard[0] == "begin"
    assert heard[1] < 2000
    assert heard[-1] < 2000


# ---- what goes wrong


@pytest.mark.parametrize("sync", [None, LocalSGD(32)], ids=repr)
def test_a_loss_that_is_not_finite_ends_training(sync: Any) -> None:
    """Training that diverges says so at the first loss that shows it."""
    X, y = rows()
    with pytest.raises(InvalidDataError, match="smaller lr"):
        classifier(lr=1e30, n_jobs=2, sync=sync).fit(X, y)


class Fragile(MLP):
    """Refuses some rows."""

    def forward(self, X: Any) -> Any:
        """Return the outputs."""
        if (X > 100).any():
            raise ArithmeticError("these rows are too much")
        return super().forward(X)


def test_a_rank_that_raises_stops_the_others() -> None:
    """An error in the forward pass of a module on one rank is raised by fit, and no rank waits for that one."""
    X, y = rows()
    X[-1] = 1000.0
    with pytest.raises(ArithmeticError, match="too much"):
        TorchClassifier(Fragile, n_jobs=3, random_state=0).fit(X, y)


def test_another_module_is_found_out() -> None:
    """A module whose parameters or whose code are not those of the client is refused; comments do not count."""
    mine = fingerprint(MLP())
    check_same(mine, fingerprint(MLP()), "MLP")
    with pytest.raises(VersionMismatchError, match="names, shapes or dtypes"):
        check_same(mine, fingerprint(MLP(hidden=9)), "MLP")
    with pytest.raises(VersionMismatchError, match="the code of its classes"):
        check_same(mine, fingerprint(Fragile()), "MLP")


def test_parts_that_do_not_go_together_are_refused() -> None:
    """Every refusal comes before work starts and says what to do."""
    X, y = rows()
    with pytest.raises(IncompatiblePartsError, match="batch of its own"):
        classifier(sync=MinibatchSGD(32)).fit(X, y)
    with pytest.raises(IncompatiblePartsError, match="takes no compressor"):
        classifier(sync="easgd", compressor="auto").fit(X, y)
    with pytest.raises(IncompatiblePartsError, match="leave it out"):
        classifier(sync="dpsgd:keep_models=true").fit(X, y)
    with pytest.raises(IncompatiblePartsError, match="takes other steps"):
        classifier(sync="scaffold", optimizer__momentum=0.9).fit(X, y)
    with pytest.raises(InvalidParameterError, match="reduction='mean'"):
        classifier(criterion__reduction="sum").fit(X, y)
    with pytest.raises(InvalidParameterError, match="closure"):
        classifier(optimizer=torch.optim.LBFGS).fit(X, y)
    with pytest.raises(InvalidDataError, match="greater than one"):
        classifier().fit(X, np.zeros(len(X)))


def test_running_statistics_follow_their_policy() -> None:
    """The mean over ranks, those of rank 0, and those of a pass through the final model are three different things."""
    X, y = rows()
    X[60:] += 3.0  # two ranks with rows of different kinds
    fit: dict[str, Any] = {"module__normalised": True, "n_jobs": 2, "max_epochs": 3, "shuffle": False, "batch_size": 60}
    found = {p: classifier(batch_norm=p, **fit).fit(X, y).module_ for p in ("average", "local", "recompute")}
    weights = {policy: module.first.weight.detach().numpy().tobytes() for policy, module in found.items()}
    assert len(set(weights.values())) == 1  # no gradient depends on them
    with torch.no_grad():
        hidden = found["recompute"].first(torch.from_numpy(X))
    means = [hidden[:60].mean(0), hidden[60:].mean(0)]
    torch.testing.assert_close(found["recompute"].norm.running_mean, (means[0] + means[1]) / 2, rtol=1e-4, atol=1e-5)
    alone = classifier(batch_norm="local", **{**fit, "n_jobs": 1, "batch_size": 120})
    assert not torch.equal(found["average"].norm.running_mean, found["local"].norm.running_mean)
    assert alone.fit(X, y).module_.norm.num_batches_tracked == 3


def test_uneven_ranks_take_the_gradient_of_the_batch() -> None:
    """Ranks with different numbers of rows, one with none, take the steps of one rank that has all rows of a batch."""
    X, y = rows(40)

    def part(number: int, n_parts: int) -> Any:
        return (X, codes) if n_parts == 1 else ((X[:25], codes[:25]), (X[25:], codes[25:]), (X[:0], codes[:0]))[number]

    codes = (y == "same").astype(np.int64)
    fit: dict[str, Any] = {"dataset": part, "classes": [0, 1], "max_epochs": 5, "batch_size": 40}
    one, three = (classifier(n_jobs=n, **fit).fit().module_ for n in (1, 3))
    for found, expected in zip(three.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_without_torch_it_says_what_to_install() -> None:
    """`import dsgd.torch` names the extra; everything else of the library works."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import dsgd, dsgd.sync\n"
        "try:\n    import dsgd.torch\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "dsgd[torch]"' in done.stdout


# ---- users' own loops


def script(name: str) -> Any:
    """Return a script of the documentation as a module."""
    path = Path(__file__).parents[2] / "docs" / "torch" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"docs_torch_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_script_becomes_distributed_by_five_lines() -> None:
    """The two scripts of the documentation differ by five lines at most, and both learn."""
    texts = [
        (Path(__file__).parents[2] / "docs" / "torch" / f"{name}.py").read_text() for name in ("single", "distributed")
    ]
    changes = [line for line in difflib.ndiff(*(text.splitlines() for text in texts)) if line[:2] == "+ " and line[2:]]
    assert 0 < len(changes) <= 5
    alone, apart = script("single"), script("distributed")
    expected = alone.accuracy(alone.train())
    gang = launch(apart.train, SimulatedCluster(2))
    assert expected > 0.95
    assert apart.accuracy(gang.value) > expected - 0.03
    assert gang.ledger.totals()["bytes_sent"] > 0


def test_what_a_loop_cannot_do_is_refused() -> None:
    """Strategies that need the rank loop, an epoch or a loss, ranks with other modules, and no rank at all."""

    def with_strategy(rank: Any, **options: Any) -> None:
        module = nn.Linear(2, 1 + rank.number * options.pop("grows", 0))
        synchronizer = Synchronizer(module, torch.optim.SGD(module.parameters(), lr=0.1), **options)
        synchronizer.step()

    for options, message in (
        ({"sync": "asgd"}, "needs the rank loop"),
        ({"sync": "epoch"}, "steps_per_epoch"),
        ({"sync": "leader"}, "call step"),
        ({"sync": 4, "grows": 1}, "not that of rank 0"),
    ):
        with pytest.raises((IncompatiblePartsError, InvalidParameterError, VersionMismatchError), match=message):
            launch(partial(with_strategy, **options), SimulatedCluster(2))
    module = nn.Linear(2, 1)
    with pytest.raises(InvalidParameterError, match="there is no rank"):
        Synchronizer(module, torch.optim.SGD(module.parameters(), lr=0.1))
