"""Large batches and half precision on torch modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dsgd.compress import GTopK, Half  # noqa: E402
from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError  # noqa: E402
from dsgd.sync import ASGD, LocalSGD, MinibatchSGD  # noqa: E402
from dsgd.torch import LARS, Passes, TorchClassifier  # noqa: E402


def _pair() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double(), torch.randn(7, 5, dtype=torch.float64)


def test_lars_takes_the_steps_of_its_equations() -> None:
    """Three steps with momentum and weight decay equal those written out; biases have the plain rate."""
    module, inputs = _pair()
    optimizer = LARS(module.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01, trust=0.1)
    weights = [parameter.detach().clone() for parameter in module.parameters()]
    velocity = [torch.zeros_like(weight) for weight in weights]
    for _ in range(3):
        optimizer.zero_grad()
        module(inputs).square().mean().backward()
        for k, parameter in enumerate(module.parameters()):
            gradient, weight = parameter.grad.clone(), weights[k]
            rate = 0.5
            if weight.ndim > 1:
                rate *= 0.1 * weight.norm() / (gradient.norm() + 0.01 * weight.norm())
                gradient = gradient + 0.01 * weight
            velocity[k] = 0.9 * velocity[k] + rate * gradient
            weights[k] = weight - velocity[k]
        optimizer.step()
    for parameter, weight in zip(module.parameters(), weights, strict=True):
        torch.testing.assert_close(parameter.detach(), weight, rtol=1e-12, atol=1e-14)


def test_lars_refuses_values_out_of_range() -> None:
    """The parameter is named."""
    weights = [nn.Parameter(torch.ones(2))]
    for options in ({"lr": -1.0}, {"lr": 1.0, "momentum": 1.0}, {"lr": 1.0, "trust": 0.0}):
        with pytest.raises(InvalidParameterError, match=list(options)[-1]):
            LARS(weights, **options)


class Net(nn.Module):
    """Three layers, one of which is used twice, and a parameter that plays no part in half of all passes."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.twice = nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)
        self.unused = nn.Parameter(torch.ones(4))
        self.factor = factor

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return scores."""
        hidden = torch.relu(self.first(inputs * self.factor))
        return self.last(torch.relu(self.twice(torch.relu(self.twice(hidden)))))


def _rows(n: int = 240) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).standard_normal((n, 6)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)


def _fit(**options: Any) -> TorchClassifier:
    defaults: dict[str, Any] = {
        "optimizer__momentum": 0.9, "lr": 0.05, "max_epochs": 3, "random_state": 0, "n_jobs": 2,
    }  # fmt: skip
    return TorchClassifier(Net, **{**defaults, **options}).fit(*_rows())


def _vector(model: TorchClassifier) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for p in model.module_.parameters()])


@pytest.mark.parametrize("n_jobs", [1, 2, 3])
def test_accumulated_gradients_are_those_of_the_batch(n_jobs: int) -> None:
    """Parts of uneven length, under a strategy of gradients and one of models: the same steps but for rounding."""
    for sync, batch in ((MinibatchSGD(48), None), (LocalSGD(40), 20)):
        whole = _fit(sync=sync, batch_size=batch, n_jobs=n_jobs)
        parts = _fit(sync=sync, batch_size=batch, n_jobs=n_jobs, passes=Passes(rows=7))
        np.testing.assert_allclose(_vector(parts), _vector(whole), rtol=2e-4, atol=2e-6)


def test_clipping_limits_the_step_of_the_mean_gradient() -> None:
    """Without momentum one step changes the model by the rate times the limit, on two ranks as on one."""
    X, y = _rows()
    found = []
    for n_jobs in (1, 2):
        model = TorchClassifier(
            Net,
            lr=1.0,
            max_epochs=1,
            random_state=0,
            n_jobs=n_jobs,
            shuffle=False,
            sync=MinibatchSGD(240),
            passes=Passes(clip=1e-2),
        ).fit(X, y)
        free = TorchClassifier(Net, lr=1e-9, max_epochs=1, random_state=0, sync=MinibatchSGD(240)).fit(X, y)
        change = _vector(model) - _vector(free)
        assert np.linalg.norm(change) == pytest.approx(1e-2, rel=1e-3)
        found.append(change)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("sync", [MinibatchSGD(24), LocalSGD(48)], ids=["gradients", "models"])
def test_half_precision_learns_what_float32_learns(precision: Any, sync: Any) -> None:
    """Weights stay float32, and the loss ends about where it does in float32."""
    batch = 12 if isinstance(sync, LocalSGD) else None
    exact = _fit(sync=sync, batch_size=batch, max_epochs=6)
    half = _fit(sync=sync, batch_size=batch, max_epochs=6, passes=Passes(precision=precision))
    assert _vector(half).dtype == np.float32
    assert half.history_[-1]["train_loss"] == pytest.approx(exact.history_[-1]["train_loss"], rel=0.1)
    assert not np.array_equal(_vector(half), _vector(exact))


def test_a_step_that_overflows_is_left_out_on_all_ranks_together() -> None:
    """Rows of one rank are so large that float16 overflows: all skip until the scale fits, and no memory is spoiled."""
    X, y = _rows()
    X[:120] *= 60.0  # the rows of rank 0
    models = {}
    for name, compressor in (("dense", None), ("gtopk", GTopK(0.2))):
        model = TorchClassifier(
            Net,
            lr=1e-3,
            max_epochs=2,
            random_state=0,
            n_jobs=2,
            sync=MinibatchSGD(24, compressor=compressor),
            passes=Passes(precision="float16", scale=2.0**24),
        ).fit(X, y)
        models[name] = model
        assert np.isfinite(_vector(model)).all()
        assert np.isfinite([line["train_loss"] for line in model.history_]).all()
    # Ranks that skip apart would have models that differ, and the strategy returns that of one of them.
    assert models["dense"].history_[-1]["train_loss"] < models["dense"].history_[0]["train_loss"]


def test_the_scale_halves_and_doubles() -> None:
    """Half after what is not finite, never below one; double after 2,000 clean steps in a row."""
    scale = Passes(precision="float16", scale=2.0).new_scale()
    for expected in (1.0, 1.0):
        scale.update(is_finite=False)
        assert scale.value == expected
    for _ in range(2000):
        assert scale.value == 1.0
        scale.update(is_finite=True)
    assert scale.value == 2.0
    assert scale.n_skipped == 2
    assert Passes().new_scale().value == 1.0


def test_a_loss_that_overflows_at_any_scale_is_an_error() -> None:
    """With values that no float16 holds S falls to one, and then the rows are named."""
    X, y = _rows(48)
    with pytest.raises(InvalidDataError, match="the loss of rows"):
        TorchClassifier(
            Net,
            module__factor=1e30,
            lr=1e-3,
            max_epochs=1,
            random_state=0,
            sync=MinibatchSGD(8),
            passes=Passes(precision="float16", scale=4.0),
        ).fit(X, y)


@pytest.mark.parametrize("n_jobs", [2, 3])
@pytest.mark.parametrize("passes", [None, Passes(rows=5), Passes(precision="bfloat16")], ids=["plain", "parts", "half"])
def test_sums_beside_the_backward_pass_change_no_bit(n_jobs: int, passes: Passes | None) -> None:
    """Buckets in reverse layer order: overlapped or one after the other, models are bit for bit the same."""
    options: dict[str, Any] = {"n_jobs": n_jobs, "passes": passes, "max_epochs": 1}
    apart, beside = (
        _vector(_fit(sync=MinibatchSGD(24, bucket_bytes=300, overlap=overlap), **options)) for overlap in (False, True)
    )
    assert apart.tobytes() == beside.tobytes()
    if n_jobs == 2:
        assert apart.tobytes() == _vector(_fit(sync=MinibatchSGD(24), **options)).tobytes()


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_gradients_travel_in_half_precision(half: Any) -> None:
    """Half the bytes but for headers, sums in float32, and nearly the model of whole gradients."""
    whole = _fit(sync=MinibatchSGD(24))
    short = _fit(sync=MinibatchSGD(24, compressor=Half(half)))
    assert short.ledger_.totals()["bytes_sent"] < 0.65 * whole.ledger_.totals()["bytes_sent"]
    np.testing.assert_allclose(_vector(short), _vector(whole), atol=0.02)


def test_linear_scaling_with_warm_up_reaches_the_large_batch_rate() -> None:
    """A batch four times as large takes a rate that grows from one to four times the base in the first epoch."""
    steps = []

    class Recorder(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            steps.append(self.param_groups[0]["lr"])
            return super().step(closure)

    sync = MinibatchSGD(48, base_batch=12, warmup=1.0)
    TorchClassifier(Net, optimizer=Recorder, lr=0.01, max_epochs=2, random_state=0, sync=sync).fit(*_rows())
    taken = steps[-10:]  # what is remembered is found out by a step of a copy
    assert taken == pytest.approx([0.01 * (1 + 3 * k / 5) for k in range(1, 6)] + [0.04] * 5)


def test_passes_that_cannot_be_are_refused() -> None:
    """Unknown precisions, empty parts, float16 where ranks do not wait for each other."""
    with pytest.raises(InvalidParameterError, match="precision"):
        Passes(precision="float8")  # type: ignore[arg-type]
    with pytest.raises(IncompatiblePartsError, match="bfloat16"):
        _fit(sync=ASGD(), passes=Passes(precision="float16"))
    with pytest.raises(InvalidParameterError, match="passes"):
        _fit(passes="float16")
