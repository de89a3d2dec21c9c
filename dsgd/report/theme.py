"""Colours and labels of figures.

Colours and markers of figures and pages, for light and dark backgrounds.

Hues are those of Okabe and Ito (2008), distinct with any colour vision, made darker or lighter until their contrast
with the background is 3 or more (text 4.5). Series differ in marker or dashes as well.

**Where the names of points are written, so that they cover neither each other, nor points, nor the frame.**

Problem: points of a comparison lie in clusters, where names that all stand on the same side of their points are written
over each other.

Method: one label after another takes, of some places around its point, the one where it covers least of what is there:
markers, lines, labels before it, and what is beyond the frame. Of equal ones the first counts. All lengths are in one
unit, such as pixels; a box is its left, lower, right and upper side.

Cost: places times labels times boxes.

Source: the greedy way of Christensen, Marks and Shieber 1995 (An empirical study of algorithms for point-feature label
placement).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from dsgd.types import AnyArray


class Colour(NamedTuple):
    """A colour as it is drawn on a light and on a dark background."""

    light: str
    dark: str


GROUND: Final = Colour("#ffffff", "#161b22")
TEXT: Final = Colour("#1b1f24", "#e6edf3")
MUTED: Final = Colour("#57606a", "#9aa4b0")
GRID: Final = Colour("#e4e7eb", "#2b323b")
BLUE: Final = Colour("#0072b2", "#4fa8e8")
ORANGE: Final = Colour("#c98500", "#e9a93a")
GREEN: Final = Colour("#009e73", "#2dbe93")
VERMILION: Final = Colour("#d55e00", "#f0823c")
PURPLE: Final = Colour("#b8609a", "#db8fbe")
SKY: Final = Colour("#3a9bd6", "#7cc6f2")
GREY: Final = Colour("#7d8590", "#8c959f")

#: Colours and markers of series that have no colour of their own, in order.
SERIES: Final = (BLUE, VERMILION, GREEN, PURPLE, ORANGE)
MARKERS: Final = ("circle", "square", "triangle", "diamond", "inverted_triangle")

# Phases from work to waiting, in the order they are stacked; "other" is what the ledger leaves uncharged.
PHASES: Final = ("compute", "encode", "other", "control", "wire", "wait")
PHASE_COLOURS: Final = (BLUE, GREEN, GREY, PURPLE, ORANGE, VERMILION)
PHASE_MARKERS: Final = ("circle", "triangle", "inverted_triangle", "plus", "square", "diamond")


def ramp(n: int) -> list[Colour]:
    """Return `n` colours in an order that is seen (viridis), for series that are steps of one quantity."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    viridis = colormaps["viridis"]
    places = [number / max(1, n - 1) for number in range(n)]
    # On a dark ground the dark end of the map would vanish, on a light one the light end.
    return [Colour(to_hex(viridis(int(195 * place))), to_hex(viridis(int(100 + 155 * place)))) for place in places]


#: Places of a label: by how much of its width and height its middle is away from the point, best first.
_SIDES: Final = np.array([(-1, -1), (1, -1), (-1, 1), (1, 1), (1, 0), (-1, 0), (0, -1), (0, 1)], dtype=float)

#: The same a line further away, for labels in a crowd.
_FURTHER: Final = np.array([(1, -3), (-1, -3), (1, 3), (-1, 3), (0, -3), (0, 3)], dtype=float)

#: What a place costs more than the one before it, in parts of the area of a label.
_LATER: Final = 0.01

#: What a covered label, and the part of one beyond the frame, costs, in units of a covered marker.
_UNREADABLE: Final = 10.0


def boxes_at(points: AnyArray, size: float) -> AnyArray:
    """Return the boxes, shape (n, 4), of square markers of some size at points, shape (n, 2)."""
    return np.concatenate([points - size / 2, points + size / 2], axis=1)


def boxes_along(points: AnyArray, step: float, width: float = 2.0) -> AnyArray:
    """Return boxes, a `step` apart, along the line through points, shape (n, 2)."""
    if len(points) < 2:
        return np.empty((0, 4))
    lengths = np.hypot(*np.diff(points, axis=0).T)
    ends = np.concatenate([[0.0], np.cumsum(lengths)])
    at = np.arange(0.0, ends[-1], step)
    return boxes_at(np.stack([np.interp(at, ends, points[:, side]) for side in (0, 1)], axis=1), width)


def place_labels(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    gap: float,
    taken: AnyArray,
    frame: tuple[float, float, float, float],
) -> list[tuple[float, float]]:
    """Return the lower left corners of labels."""
    corners, labels = [(0.0, 0.0)] * len(points), np.empty((0, 4))
    order = sorted(range(len(points)), key=lambda number: points[number])
    for number in order:
        boxes = _boxes_around(points[number], sizes[number], gap)
        area = float(np.prod(sizes[number]))
        beyond = area - _overlap(boxes, np.array([frame])).sum(axis=1)
        covered = _overlap(boxes, taken).sum(axis=1)
        unreadable = _overlap(boxes, labels).sum(axis=1) + beyond
        cost = covered + _UNREADABLE * unreadable + _LATER * area * np.arange(len(boxes))
        best = boxes[int(np.argmin(cost))]
        labels = np.concatenate([labels, best[None]])
        corners[number] = (float(best[0]), float(best[1]))
    return corners


def _boxes_around(point: tuple[float, float], size: tuple[float, float], gap: float) -> AnyArray:
    """Return the boxes of all places of a label."""
    half = np.array(size) / 2
    reach = half + gap * np.array([1.0, 0.5])
    places = [_SIDES * reach, _FURTHER * np.array([reach[0] / 2, half[1]]) + np.sign(_FURTHER) * [0.0, gap / 2]]
    middles = np.array(point) + np.concatenate(places)
    return np.concatenate([middles - half, middles + half], axis=1)


def _overlap(boxes: AnyArray, others: AnyArray) -> AnyArray:
    """Return the areas that boxes have in common, shape (n_boxes, n_others)."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    areas: AnyArray = np.prod(np.maximum(high - low, 0.0), axis=2)
    return areas
