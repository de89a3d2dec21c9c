"""Names beside points: where they stand, and what they leave uncovered."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgd.report.labels import boxes_along, boxes_at, place_labels

FRAME = (0.0, 0.0, 400.0, 300.0)
SIZE = (50.0, 10.0)


def _boxes(corners: list[tuple[float, float]]) -> np.ndarray:
    return np.array([(x, y, x + SIZE[0], y + SIZE[1]) for x, y in corners])


def _common(a: np.ndarray, b: np.ndarray) -> float:
    """Return the area that two boxes have in common."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    return float(np.prod(np.maximum(sides, 0.0)))


@settings(deadline=None)
@given(st.tuples(st.floats(0, 400), st.floats(0, 300)))
def test_a_label_alone_is_in_the_frame_and_off_its_point(point: tuple[float, float]) -> None:
    """Wherever a point is, its label is readable and does not cover its marker."""
    marker = boxes_at(np.array([point]), 6.0)
    (box,) = _boxes(place_labels([point], [SIZE], 8.0, marker, FRAME))
    assert _common(box, np.array(FRAME)) == pytest.approx(SIZE[0] * SIZE[1])
    assert _common(box, marker[0]) < 1e-9


def test_labels_of_a_cluster_cover_neither_each_other_nor_points() -> None:
    """Points closer to each other than a label is high have labels on different sides."""
    points = [(200.0, 150.0), (206.0, 147.0), (203.0, 140.0), (210.0, 153.0)]
    markers = boxes_at(np.array(points), 6.0)
    boxes = _boxes(place_labels(points, [SIZE] * 4, 5.0, markers, FRAME))
    assert all(_common(a, b) == 0.0 for a, b in combinations(boxes, 2))
    assert all(_common(a, marker) == 0.0 for a in boxes for marker in markers)


def test_a_label_keeps_off_a_line() -> None:
    """Where a line runs left of and below a point, its label is on the other side."""
    line = boxes_along(np.array([(0.0, 140.0), (200.0, 140.0), (200.0, 0.0)]), 2.0)
    ((x, y),) = place_labels([(198.0, 142.0)], [SIZE], 5.0, line, FRAME)
    assert y > 142.0 or x > 200.0
