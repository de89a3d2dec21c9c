"""Rates of local gradient descent: powers that were planted are found, and the estimator takes these steps."""

from __future__ import annotations

import numpy as np
import pytest

from dsgd.study.claims.local_gd import PROBLEMS, _claim, by_estimator, losses, margin_of, powers

EVERY = (1, 4, 16)


def test_planted_powers_are_found_problem_by_problem() -> None:
    """A power that is taken of another factor, or of another problem, would be seen."""
    cells = {(k, r): np.array([3.0 * k**-1.0 * r**-0.5, 7.0 * k**0.25 * r**-2.0]) for k in EVERY for r in (100, 300)}
    assert powers(cells) == pytest.approx(np.array([[-1.0, 0.25], [-0.5, -2.0]]))


def test_of_one_row_the_loss_is_known() -> None:
    """One client with a row of length one half: the loss tends to 4 / (eta K R), and only the product counts."""
    Z, rates = np.full((1, 1, 1, 1), 0.5), np.full((2_048, 2), (4.0, 64.0))
    found = {every: losses(Z, rates, every)[:, 0] for every in EVERY}
    at = [(eta, every, r) for eta in (0, 1) for every in EVERY for r in (1_024, 2_048)]
    cells = {(rates[0, eta], every, r): found[every][r - 1, [eta]] for eta, every, r in at}
    assert powers(cells) == pytest.approx(-np.ones((3, 1)), abs=0.03)
    assert found[16][-1] * rates[-1] * 16 * 2_048 == pytest.approx(4.0, rel=0.01)
    # One client alone takes rounds of four steps, or four times as many rounds.
    assert found[4][:512] == pytest.approx(found[1][3::4])
    assert margin_of(np.array([[[0.5, 0.1], [0.5, -0.1]]])) == pytest.approx(0.5)


@pytest.mark.parametrize("rate", [1.0, 64.0])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_estimator_takes_these_steps(name: str, rate: float) -> None:
    """Of clients that step four times along their whole gradients, at small steps and at those that overshoot."""
    Z = PROBLEMS[name](3)
    assert by_estimator(Z, rate, 4, 6) == pytest.approx(losses(Z[None], np.full((6, 1), rate), 4)[:, 0, 0], rel=1e-9)


def test_problems_are_what_the_theory_is_about() -> None:
    """A plane separates the rows, none is longer than one, clients alone would go elsewhere, and seeds draw anew."""
    for make in PROBLEMS.values():
        Z = make(0)
        assert margin_of(Z) > 0.03
        assert np.linalg.norm(Z, axis=-1).max() == pytest.approx(1.0)
        assert np.ptp(Z.mean(axis=1), axis=0).max() > 0.1
        assert not np.array_equal(Z, make(1))


def test_a_rate_holds_on_every_problem_and_for_every_factor() -> None:
    """One power of one problem that is off fails or leaves it open; a control must have one that is."""
    good, noise = np.full((2, 10), -1.0), 0.02 * np.random.default_rng(0).standard_normal((2, 10))

    def verdict(of_last: float, of_control: float) -> str:
        last, control = np.array([[-1.0], [of_last]]) + noise, np.array([[-1.0], [of_control]]) + noise
        found = {"p": {"localgd/rate": good, "c": good}, "q": {"localgd/rate": last, "c": control}}
        return _claim("localgd/rate", found, {"c": -1.0}, "").verdict

    assert [verdict(-1.0, 0.0), verdict(-1.0, -1.0), verdict(-0.5, 0.0)] == ["holds", "no claim", "undecided"]
