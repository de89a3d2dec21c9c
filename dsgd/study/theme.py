"""How the figures of a study look: colours, markers and settings, the same in all of them.

Colours are those of Okabe and Ito (2008), told apart with any colour vision; series differ in marker as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

__all__ = [
    "BLUE",
    "DARK",
    "GREEN",
    "LIGHT",
    "MARKERS",
    "PHASES",
    "PHASE_COLOURS",
    "PHASE_MARKERS",
    "PRESET_DASHES",
    "PRESET_MARKERS",
    "RANK_COLOURS",
    "VERMILION",
    "Theme",
    "preset_colour",
    "rc_params",
]


@dataclass(frozen=True)
class Theme:
    """Colours of a figure's ground and text.

    Parameters
    ----------
    name : str
        ``"light"`` or ``"dark"``.
    ground, text, muted, grid : str
        Colours of the background, of text, of axes and of grid lines.
    """

    name: str
    ground: str
    text: str
    muted: str
    grid: str


LIGHT: Final = Theme("light", "#ffffff", "#1b1f24", "#57606a", "#e4e7eb")
DARK: Final = Theme("dark", "#161b22", "#e6edf3", "#9aa4b0", "#2b323b")

# Okabe and Ito (2008); black, which vanishes on a dark ground, is replaced by the theme's text colour.
BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
GREEN: Final = "#009E73"
VERMILION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
RANK_COLOURS: Final = (BLUE, VERMILION, GREEN, PURPLE, ORANGE)
MARKERS: Final = ("o", "s", "^", "D", "v")
# Phases from work to waiting, in the order they are stacked; "other" is what the ledger leaves uncharged.
PHASES: Final = ("compute", "encode", "other", "wire", "wait")
PHASE_COLOURS: Final = (BLUE, GREEN, "#8c959f", ORANGE, VERMILION)
PHASE_MARKERS: Final = ("o", "^", "v", "s", "D")
# Presets of elimination; those that have no colour here are drawn in that of the text.
_PRESET_COLOURS: Final = {
    "single": PURPLE,
    "multi": BLUE,
    "libsvm": ORANGE,
    "aggressive": VERMILION,
    "average": GREEN,
    "conservative": "#56B4E9",
}
PRESET_MARKERS: Final = {
    "none": "|", "single": "v", "multi": "o", "libsvm": "s", "aggressive": "X", "average": "^", "conservative": "P",
    "auto": "D", "scikit-learn": "d",
}  # fmt: skip
PRESET_DASHES: Final = {
    "none": (4, 2), "single": (6, 1.5), "multi": (), "libsvm": (5, 1.5, 1, 1.5), "aggressive": (1, 1),
    "average": (3, 1), "conservative": (8, 2), "auto": (),
}  # fmt: skip


def preset_colour(name: str, theme: Theme) -> str:
    """Return the colour of a preset of elimination."""
    return _PRESET_COLOURS.get(name, theme.text)


def rc_params(theme: Theme) -> dict[str, Any]:
    """Return the settings of matplotlib that draw in a theme."""
    return {
        "figure.facecolor": theme.ground,
        "savefig.facecolor": theme.ground,
        "axes.facecolor": theme.ground,
        "axes.edgecolor": theme.muted,
        "axes.labelcolor": theme.text,
        "axes.titlecolor": theme.text,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "xtick.color": theme.muted,
        "ytick.color": theme.muted,
        "xtick.labelsize": 8.5,
        "ytick.labelsize": 8.5,
        "xtick.minor.size": 0,
        "text.color": theme.text,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "font.family": "DejaVu Sans",
    }
