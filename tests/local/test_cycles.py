"""Cyclical and one-cycle rates: those of their definition and of torch, in steps, sums, estimators and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsgd import SGDRegressor
from dsgd.kernels.state import CYCLES, cycle_factor
from dsgd.local import SGD, AbstractCycle, Cyclical, Objective, OneCycle

CASES: list[AbstractCycle] = [
    Cyclical("triangular", 4.0, 7),
    Cyclical("triangular2", 4.0, 7),
    Cyclical("exp_range", 4.0, 7, 0.97),
    OneCycle(5.0, 39, 21),
]


def factor(cycle: AbstractCycle, t: float) -> float:
    """Return the factor of a step, by the compiled function."""
    return cycle_factor(CYCLES[cycle.name].code, t, cycle.peak, float(cycle.half_cycle), cycle.third)


def twin(cycle: AbstractCycle, t: int) -> float:
    """Return the factor as the sources describe it: where in its cycle a step is, and how high that one is."""
    number, place = divmod(t - 1, 2 * cycle.half_cycle)
    way = place / cycle.half_cycle if place <= cycle.half_cycle else 2 - place / cycle.half_cycle
    if isinstance(cycle, OneCycle):
        after = t - 1 - 2 * cycle.half_cycle
        return 1 + (cycle.peak - 1) * way if after <= 0 else max(1e-3, 1 - 0.999 * after / cycle.tail)
    assert isinstance(cycle, Cyclical)
    height = {"triangular": 1.0, "triangular2": 0.5**number, "exp_range": cycle.decay ** (t - 1)}[cycle.shape]
    return 1 + (cycle.peak - 1) * height * way


@pytest.mark.parametrize("cycle", CASES, ids=repr)
def test_factors_are_those_of_torch(cycle: AbstractCycle) -> None:
    """Torch's schedulers, told the same bounds and steps, give the same rates; one cycle is theirs of three phases."""
    torch = pytest.importorskip("torch")
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedulers: Any = torch.optim.lr_scheduler
    if isinstance(cycle, Cyclical):
        theirs = schedulers.CyclicLR(
            optimiser, 1.0, cycle.peak, cycle.half_cycle, mode=cycle.shape, gamma=cycle.decay, cycle_momentum=False
        )
    else:
        theirs = schedulers.OneCycleLR(
            optimiser,
            cycle.peak,
            total_steps=100,
            pct_start=0.4,
            anneal_strategy="linear",
            div_factor=cycle.peak,
            final_div_factor=1e3,
            three_phase=True,
            cycle_momentum=False,
        )
    for t in range(1, 100):
        assert factor(cycle, float(t)) == pytest.approx(theirs.get_last_lr()[0], rel=1e-6)
        optimiser.step()
        theirs.step()


@pytest.mark.parametrize("cycle", CASES, ids=repr)
def test_steps_have_the_rates_of_the_cycle(cycle: AbstractCycle) -> None:
    """A fit of one rank goes where plain steps at these rates go, and a fit that is cut in two goes there too."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 3)), rng.standard_normal(60)
    options: dict[str, Any] = {"learning_rate": cycle, "eta0": 0.01, "penalty": None, "shuffle": False}
    model = SGDRegressor(max_iter=2, tol=None, **options).fit(X, y)
    w, t = np.zeros(4), 1
    for _ in range(2):
        for row, target in zip(np.column_stack([X, np.ones(60)]), y, strict=True):
            w -= 0.01 * twin(cycle, t) * (row @ w - target) * row
            t += 1
    np.testing.assert_allclose([*model.coef_, *model.intercept_], w, rtol=1e-10)
    part = SGDRegressor(**options).partial_fit(X, y).partial_fit(X, y)
    np.testing.assert_array_equal(part.coef_, model.coef_)


@pytest.mark.parametrize("cycle", CASES, ids=repr)
def test_sums_of_rates_are_those_of_the_steps(cycle: AbstractCycle) -> None:
    """Ranks that begin elsewhere, or take other numbers of steps, count by the sums of their factors."""
    sgd = SGD(Objective(), schedule=cycle)
    starts, counts = np.array([1.0, 20.0, 20.0, 50.0]), np.array([19.0, 30.0, 30.0, 0.0])
    expected = [
        sum(twin(cycle, int(start) + j) for j in range(int(n))) for start, n in zip(starts, counts, strict=True)
    ]
    np.testing.assert_allclose(sgd.planned_rates(starts, counts), expected, rtol=1e-12)
