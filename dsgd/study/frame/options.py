"""Options that several studies have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsgd.datasets import check_split
from dsgd.sim.network import network_for
from dsgd.study.frame.data import DTYPES, LOSSES, DataSource
from dsgd.study.frame.study import Option

_MODEL = "The model"


def data(default: Sequence[DataSource], **more: Any) -> Option:
    """Return the option of the datasets; on the command line their names and numbers of rows."""
    return Option(tuple(default), "Dataset; repeat for several. See `dsgd datasets list`.", **more)


def seeds(default: Sequence[int] = (0, 1, 2), **more: Any) -> Option:
    """Return the option of the seeds."""
    return Option(
        tuple(default),
        "Seeds of the repetitions of each run: how many (10), or which (5-14).",
        seeds=True,
        least=0,
        **more,
    )


def epochs(default: int, **more: Any) -> Option:
    """Return the option of passes over the rows."""
    return Option(default, "Passes over the rows.", **{"least": 1, **more})


def alpha(default: float) -> Option:
    """Return the option of the strength of the L2 penalty."""
    return Option(default, "Weight of the L2 penalty.", panel=_MODEL, above=0)


def loss(default: str) -> Option:
    """Return the option of the loss."""
    return Option(default, "hinge, squared_hinge or log_loss.", panel=_MODEL, choices=LOSSES)


def dtype(default: str = "float32") -> Option:
    """Return the option of the precision of data and model."""
    return Option(default, "float32 or float64.", panel=_MODEL, choices=DTYPES)


def partition(default: str) -> Option:
    """Return the option that says which rows each rank has."""
    text = (
        "Rows of each rank: contiguous, shuffled, label-skewed, feature-skewed, dirichlet:0.5 (labels) or quantity:0.5 "
        "(sizes)."
    )
    return Option(default, text, panel=_MODEL, check=check_split)


def network(text: str = "", **more: Any) -> Option:
    """Return the option of the network of simulated ranks; None runs worker processes."""
    return Option(None, text, check=network_for, **more)
