"""Colours and markers of figures and pages, for light and dark backgrounds.

Hues are those of Okabe and Ito (2008), distinct with any colour vision, made darker or lighter until their contrast
with the background is 3 or more (text 4.5). Series differ in marker or dashes as well.
"""

from __future__ import annotations

from typing import Final, NamedTuple


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
