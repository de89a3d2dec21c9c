"""What a run says that it did, by phases: amounts that do not depend on the machine, and hardly on the ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsgd.study.svm_problems import PROBLEMS
from dsgd.study.svm_rounds import RunSettings, observe

SMALL = RunSettings(replace(PROBLEMS["noisy"], rows=400), repeats=1)


def test_amounts_are_those_of_the_rounds_on_any_number_of_ranks():
    """Amounts of three ranks together are those of one, up to the path that rounding takes."""
    one, three = (observe(SMALL, ranks).amounts for ranks in (1, 3))
    assert one.looked == 400 * one.rounds
    assert three.looked == 400 * three.rounds
    for name in ("rounds", "variables", "fresh", "squares", "exact_values", "support"):
        assert getattr(three, name) == pytest.approx(getattr(one, name), rel=0.15), name
    for amounts in (one, three):
        assert amounts.new_values + amounts.read_values > 0
        assert amounts.squares >= amounts.variables**2 / amounts.rounds
        assert amounts.fresh <= amounts.variables
    assert three.block_values >= 0.5 * three.squares  # a rank among others computes all of a block
