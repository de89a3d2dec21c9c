"""The published figures with which the study of the period is compared.

Abeykoon, Fox and Kim, "Performance optimization on model synchronization in parallel stochastic gradient descent
based SVM" (2019, arXiv 1905.01219). Seconds are those of process 0 over about 5000 epochs, from the data behind the
paper's figures (folder psgdsvmc of the first author's plotting repository), rounded; cells that the source copies
down or fills with zeros are left out. The machine is not the reader's: shapes compare, seconds do not.
"""

from __future__ import annotations

from typing import Final

from dsgd.report import Publication
from dsgd.study.frame.statement import Source, Statement, as_percent, as_points
from dsgd.study.frame.verdict import Margin

__all__ = [
    "ACCURACY",
    "COMMUNICATION",
    "COMMUNICATION_S",
    "COMPUTE_S",
    "OVER_FREQUENT",
    "OVER_SEQUENTIAL",
    "RARE",
    "REDUCTION",
    "SOURCE",
    "communication_reduction",
    "family",
    "period_speedup",
]

#: The publication.
SOURCE: Final = Source(
    "msf",
    "MSF",
    (
        Publication(
            ("Abeykoon", "Fox", "Kim"),
            "Performance optimization on model synchronization in parallel stochastic gradient descent based SVM",
            2019,
            arxiv="1905.01219",
        ),
    ),
    "dsgd.sync.LocalSGD",
    "sync=512",
    "Ranks take SGD steps of an SVM on their own rows and average their models every so many samples; "
    "the fewer averages, the less is spent on waiting and messages.",
)
#: The fall of communication in the abstract, and the period at which it was read off.
REDUCTION: Final = 0.98
RARE: Final = 512

_SPEEDUP: Final = Margin(16.0, 24.0)
#: Statements.
COMMUNICATION: Final = Statement(
    "msf/communication",
    SOURCE,
    f"Communication falls by {REDUCTION:.0%} from every=1 to every={RARE}",
    f"{REDUCTION:.0%}",
    "abstract",
    Margin(0.977, 0.987),
    as_percent,
    "The least and largest fall in the data behind the figures, over its sets at 2 and 32 processes.",
)
OVER_FREQUENT: Final = Statement(
    "msf/frequent",
    SOURCE,
    "16x-24x faster than synchronising every sample, same processes",
    "16x-24x",
    "abstract",
    _SPEEDUP,
    "{:.1f}x".format,
)
OVER_SEQUENTIAL: Final = Statement(
    "msf/sequential",
    SOURCE,
    "16x-24x faster than the sequential run",
    "15.7x-25.2x (ijcnn1, 32 processes, every=16-512)",
    "data behind the figure of training time on ijcnn1",
    _SPEEDUP,
    "{:.2f}x".format,
    "The range of the abstract, which does not say over what; the data fit the sequential run.",
)
ACCURACY: Final = Statement(
    "msf/accuracy",
    SOURCE,
    "Test accuracy not more than 0.5 points below the sequential run",
    "at or above sequential",
    "abstract",
    Margin(-0.005),
    as_points,
    "Half a point below still counts as kept.",
)

_PERIODS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def _series(*seconds: float) -> dict[int, float]:
    return dict(zip(_PERIODS, seconds, strict=False))


# Seconds of communication by dataset, processes and period.
COMMUNICATION_S: Final[dict[str, dict[int, dict[int, float]]]] = {
    "ijcnn1": {
        2: _series(48.07, 24.96, 13.19, 7.11, 3.86, 2.48, 1.56, 1.09, 0.63, 0.68, 0.59, 0.27, 0.64),
        32: _series(18.57, 9.62, 4.95, 2.65, 1.57, 1.01, 0.95, 0.50, 0.36, 0.26),
    },
    "webspam": {
        2: _series(1214, 366, 163, 97.7, 143, 89.3, 65.9, 47.2, 32.8, 20.5, 18.9, 12.8, 12.8),
        32: _series(470, 96.6, 56.0, 47.4, 48.0, 31.1, 19.5, 13.5, 11.4, 8.5, 7.0),
    },
    "epsilon": {
        2: _series(7293, 1685, 1068, 643, 904, 596, 387, 282, 227, 166, 123, 78.3, 107),
        32: _series(5678, 1113, 615, 363, 513, 325, 220, 169, 124, 91.7, 72.9, 61.5, 61.0),
    },
}

# Seconds of computation at the two periods that the claims compare.
COMPUTE_S: Final[dict[str, dict[int, dict[int, float]]]] = {
    "ijcnn1": {2: {1: 21.18, RARE: 14.32}, 32: {1: 1.49, RARE: 0.88}},
    "webspam": {2: {1: 2711, RARE: 1519}, 32: {1: 204, RARE: 115}},
    "epsilon": {2: {1: 19900, RARE: 15799}, 32: {1: 1527, RARE: 1190}},
}


def family(dataset: str) -> str | None:
    """Return which published set a dataset is, or is shaped like; None if it is none of them."""
    return next((name for name in COMMUNICATION_S if dataset.startswith(name)), None)


def communication_reduction(name: str, ranks: int) -> float:
    """Return the published fall in communication time from period 1 to 512, as a share of 1."""
    seconds = COMMUNICATION_S[name][ranks]
    return 1.0 - seconds[RARE] / seconds[1]


def period_speedup(name: str, ranks: int) -> float:
    """Return how many times as fast period 512 was as period 1 at the same number of processes, end to end."""
    compute, communication = COMPUTE_S[name][ranks], COMMUNICATION_S[name][ranks]
    return (compute[1] + communication[1]) / (compute[RARE] + communication[RARE])
