"""The published figures with which the study of the period is compared: see ``published.toml``."""

from __future__ import annotations

from typing import Any, Final

from dsgd.study.published import FIGURES, SOURCES

__all__ = ["COMMUNICATION_S", "RARE", "REDUCTION", "SOURCE", "communication_reduction", "family", "period_speedup"]

#: The publication.
SOURCE: Final = SOURCES["msf"]
#: The fall of communication in the abstract, and the period at which it was read off.
REDUCTION: Final = 0.98
RARE: Final = 512
#: Seconds of communication by dataset, processes and period.
COMMUNICATION_S: Final[dict[str, dict[int, dict[int, float]]]] = {
    name: {int(ranks): dict(zip(FIGURES["msf"]["periods"], seconds, strict=False)) for ranks, seconds in by.items()}
    for name, by in FIGURES["msf"]["communication_s"].items()
}
_COMPUTE_S: Final[dict[str, Any]] = FIGURES["msf"]["compute_s"]


def family(dataset: str) -> str | None:
    """Return which published set a dataset is, or is shaped like; None if it is none of them."""
    return next((name for name in COMMUNICATION_S if dataset.startswith(name)), None)


def communication_reduction(name: str, ranks: int) -> float:
    """Return the published fall in communication time from period 1 to 512, as a share of 1."""
    seconds = COMMUNICATION_S[name][ranks]
    return 1.0 - seconds[RARE] / seconds[1]


def period_speedup(name: str, ranks: int) -> float:
    """Return how many times as fast period 512 was as period 1 at the same number of processes, end to end."""
    frequent, rare = _COMPUTE_S[name][str(ranks)]
    seconds = COMMUNICATION_S[name][ranks]
    return float((frequent + seconds[1]) / (rare + seconds[RARE]))
