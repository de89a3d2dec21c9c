"""A slice of the soak: ``make soak-svm`` draws more."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from svm_soak import judge as judge_module
from svm_soak.fits import Answer, ask_us
from svm_soak.judge import Verdict, judge
from svm_soak.problems import Problem, draw, draw_coarse, draw_hard
from svm_soak.soak import soak

_RUNS = int(os.environ.get("SOAK_RUNS", "400"))


def test_small_hard_problems_end_and_what_is_said_of_them_is_true() -> None:
    """Whatever is drawn, no fit hangs, claims what plain numpy does not find, or is worse than LIBSVM's."""
    summary = soak(1, range(_RUNS))
    assert len(summary.verdicts) == _RUNS
    assert not summary.failures


def test_a_problem_is_the_same_wherever_it_is_drawn() -> None:
    """The line that a failure prints replays it: seed and number give the rows to the last bit."""
    for number in range(30):
        one, two = draw(5, number), draw(5, number)
        assert str(one) == str(two)
        rows = [np.asarray(p.X.todense() if hasattr(p.X, "todense") else p.X) for p in (one, two)]
        np.testing.assert_array_equal(*rows)


@pytest.mark.parametrize("number", [3362, 3404])
def test_rounding_that_hides_the_gap_ends_a_run(number) -> None:
    """Kernel values over hundreds of orders leave no digits for the gap: the run ends before its steps, and warns."""
    answer = ask_us(draw_hard(0, number))
    assert answer.warned
    assert not answer.model.converged_
    assert answer.n_iter < 1_000_000


@pytest.mark.parametrize(
    ("seed", "number"),
    [
        # Of two classes whose reduced hulls meet each digit of the margin takes more steps than all before.
        (0, 3768),
        # Two pairs that undo each other took a hundred thousand steps on eight samples; few samples may look solved.
        *((0, number) for number in (9296, 17581, 24094, 25247)),
        # Where no pair gets far, or sums have been much larger, the end is near.
        *((20, number) for number in (27, 11995, 34040, 51295, 69942, 81842)),
        # A variable a rounding below its bound opens a gap below the tolerance; dealt out, or divided, it is at it.
        *((20, number) for number in (56265, 96923)),
    ],
)
def test_problems_that_held_a_run_up_end_and_what_is_said_of_them_is_true(seed, number) -> None:
    """Each was a failure of the soak once."""
    assert not judge(draw_hard(seed, number)).failures


def test_machines_of_rows_of_few_values_predict_as_libsvm() -> None:
    """Equal rows, weights that add up, tiny and huge C: predictions are LIBSVM's, but for ties."""
    verdicts = [judge(draw_coarse(2, number)) for number in range(_RUNS)]
    assert [verdict.failures for verdict in verdicts if verdict.failures] == []
    assert sum(verdict.n_rows for verdict in verdicts) > 20 * _RUNS


def _claim(answer: Answer) -> None:
    name = "coef_" if answer.model.__class__.__name__.startswith("Linear") else "dual_coef_"
    setattr(answer.model, name, 0.5 * getattr(answer.model, name))


def _hide(answer: Answer) -> None:
    answer.warned = not answer.warned


def _lean(answer: Answer) -> None:
    answer.model.intercept_ = answer.model.intercept_ + 0.5


def _wander(answer: Answer) -> None:
    answer.model.n_iter_ = 10**9 + 0 * np.asarray(answer.model.n_iter_)
    answer.n_iter = 10**9


@pytest.mark.parametrize(
    ("lie", "words"), [(_claim, "by numpy"), (_hide, "a warning"), (_wander, "steps"), (_lean, "threshold")]
)
def test_the_judge_sees_through_lies(monkeypatch, lie, words) -> None:
    """Coefficients and thresholds that are not the optimum's, a missing warning and too many steps are reported."""
    honest = judge_module.ask_us

    def ask(problem, **options) -> Answer:
        answer = honest(problem, **options)
        if answer.model is not None:
            lie(answer)
        return answer

    monkeypatch.setattr(judge_module, "ask_us", ask)
    found = [judge(draw(1, number)).failures for number in range(40)]
    texts = [text for failures in found for text in failures if words in text]
    assert len(texts) > 5


def _sleep_over_the_third(problem: Problem) -> Verdict:
    time.sleep(60.0 if problem.number == 2 else 0.0)
    return Verdict()


@pytest.mark.slow
def test_a_hanging_problem_is_killed_and_reported() -> None:
    """A problem without an answer in time fails with the line that replays it, and those after it are judged."""
    summary = soak(0, range(4), most_s=0.3, by=_sleep_over_the_third)
    assert summary.outcomes == {"hung": 1, "converged": 3}
    assert "SOAK_SEED=0 SOAK_FIRST=2 SOAK_RUNS=1" in summary.failures[0]
