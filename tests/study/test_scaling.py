"""The scaling study: published points beside predictions, tables, figures, and the command."""

from __future__ import annotations

import pytest

from dsgd.study import study_page
from dsgd.study.scaling import PUBLISHED, STUDY, VARIATIONS, Predicted, predict_point, vary


@pytest.fixture(scope="module")
def predicted() -> list[Predicted]:
    """What the model says of all published points."""
    return [predict_point(point) for point in PUBLISHED]


def test_the_published_points_are_those_of_the_abstract() -> None:
    """90x on 128 nodes, 53x and 42x on 64, 6.5x on 16, and about 14x on 16 over Ethernet."""
    assert [(point.nodes, point.speedup) for point in PUBLISHED] == [
        (128, 90.0), (64, 53.0), (64, 42.0), (16, 6.5), (16, 14.0),
    ]  # fmt: skip


def test_published_speedups_lie_between_the_two_ways_of_sharing(predicted: list[Predicted]) -> None:
    """Data parallel training alone would reach less than was published, the best sharing of each layer more."""
    for found in predicted:
        assert found.is_between
        assert found.unexplained_s > 0
    page = study_page(STUDY, [])
    assert "5 lie between" in page.answer
    # Where they differ is said by name.
    claims = page.claims
    assert all("every run" in claim.note for claim in claims)
    far = [claim for claim in claims if claim.verdict == "fails"]
    assert far
    assert all(claim.dataset in page.answer for claim in far)


def test_predictions_move_the_way_assumptions_do() -> None:
    """Half the bandwidth, a longer latency, faster nodes or no overlap: each makes the speed-up smaller."""
    for point in PUBLISHED:
        base, *others = vary(point)
        assert len(others) == len(VARIATIONS) - 1
        assert max(others) < base
