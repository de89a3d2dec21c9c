"""Splits of a set between ranks, among them the unlike ones of federated learning.

Problem: how a method of distributed training fares depends on whether ranks hold like rows. Comparisons need to say
which rows each rank holds, and to be able to make them unlike on purpose.

Update: one of six ways, which docs/datasets.rst lists, each a pure function of the set, the number of parts and a seed.
Sorted ways cut runs of the rows by label, or along the first principal component; ``dirichlet:ALPHA`` draws for each
class the share of every part, ``quantity:ALPHA`` the sizes of the parts.

Every row is in one part, and no part is empty where there are rows enough.

Source: Hsu, Qi and Brown 2019 (arXiv 1909.06335), section 3, for shares of classes; as in Li, Diao, Chen and He 2022
(arXiv 2102.02079), section 4, shares are drawn for each class, and sizes in the same way. Skewed features as in their
synthetic set, where each party holds a region of the space; here the regions are slabs, of as many rows each.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from dsgd.errors import InvalidParameterError
from dsgd.types import AnyArray, FloatVector, IntVector

#: The ways to split rows; the last two take a number, as ``dirichlet:0.5``.
SPLITS: Final = ("contiguous", "shuffled", "label-skewed", "feature-skewed", "dirichlet:ALPHA", "quantity:ALPHA")
_DRAWN: Final = tuple(name.partition(":")[0] for name in SPLITS if ":" in name)
#: Multiplications that find the direction of the largest variance.
_POWERS: Final = 30


def check_split(how: str) -> tuple[str, float]:
    """Return the name of a way to split rows, and its number, which is 0 where it takes none.

    Parameters
    ----------
    how : str
        One of `SPLITS`.

    Raises
    ------
    InvalidParameterError
        It is none of them.
    """
    name, colon, text = how.partition(":")
    if name in _DRAWN:
        try:
            alpha = float(text)
        except ValueError:
            alpha = math.nan
        if not 0.0 < alpha < math.inf:
            raise InvalidParameterError(f"partition={how!r}: {name} takes a number above 0, as {name}:0.5.")
        return name, alpha
    if colon or name not in SPLITS:
        raise InvalidParameterError(f"partition={how!r} is unknown; choose one of {', '.join(SPLITS)}.")
    return name, 0.0


def split_rows(y: AnyArray, n_parts: int, how: str = "contiguous", *, seed: int = 0, X: Any = None) -> list[IntVector]:
    """Return the row numbers of each part.

    Parameters
    ----------
    y : array, shape (n_rows,)
        Labels.
    n_parts : int
        How many parts, such as ranks.
    how : str, default "contiguous"
        ``"contiguous"``, ``"shuffled"``, ``"label-skewed"``, ``"feature-skewed"``, ``"dirichlet:0.5"`` or
        ``"quantity:0.5"``; see `SPLITS`.
    seed : int, default 0
        Of what is drawn.
    X : array or CSR matrix, shape (n_rows, n_features), optional
        The rows; ``"feature-skewed"`` needs them.

    Returns
    -------
    list of array of int64, length n_parts
        Every row once.

    Raises
    ------
    InvalidParameterError
        `how` is unknown or needs `X`, or there are no parts.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.repeat([0, 1], 50)
    >>> [len(rows) for rows in split_rows(y, 3, "quantity:0.5")]
    [1, 43, 56]
    """
    name, alpha = check_split(how)
    if n_parts < 1:
        raise InvalidParameterError(f"split_rows(n_parts=...) must be 1 or more. Got {n_parts}.")
    n_rows, rng = len(y), np.random.default_rng(seed)
    if name == "dirichlet":
        return _by_label(y, n_parts, alpha, rng)
    order: IntVector = np.arange(n_rows)
    if name == "label-skewed":
        order = np.argsort(y, kind="stable")
    elif name == "feature-skewed":
        order = np.argsort(_along_main_direction(X, rng), kind="stable")
    elif name in ("shuffled", "quantity"):
        order = rng.permutation(n_rows)
    if name == "quantity":
        return _filled(np.split(order, _cuts(rng.dirichlet([alpha] * n_parts), n_rows)))
    return np.array_split(order, n_parts)


def _along_main_direction(X: Any, rng: np.random.Generator) -> FloatVector:
    """Return where each row lies on the first principal component, found by power iteration."""
    if X is None:
        raise InvalidParameterError("partition='feature-skewed' goes by the features: call split_rows(..., X=X).")
    n_rows, mean = X.shape[0], np.asarray(X.mean(axis=0), np.float64).ravel()
    direction = rng.standard_normal(X.shape[1])
    place = np.zeros(n_rows)
    for _ in range(_POWERS):
        direction /= np.linalg.norm(direction) or 1.0
        # Rows stay as they are, sparse ones too: the mean is taken off the products.
        place = np.asarray(X @ direction, np.float64).ravel() - mean @ direction
        direction = np.asarray(X.T @ place, np.float64).ravel() - mean * place.sum()
    return place


def _by_label(y: AnyArray, n_parts: int, alpha: float, rng: np.random.Generator) -> list[IntVector]:
    """Return parts that hold shares of each class; their rows are in the order of the set."""
    parts: list[list[IntVector]] = [[] for _ in range(n_parts)]
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        shares = np.split(rows, _cuts(rng.dirichlet([alpha] * n_parts), len(rows)))
        for part, share in zip(parts, shares, strict=True):
            part.append(share)
    return _filled([np.sort(np.concatenate([np.empty(0, np.int64), *part])) for part in parts])


def _cuts(shares: FloatVector, n_rows: int) -> IntVector:
    """Return where to cut so many rows into these shares."""
    # A Dirichlet draw with a tiny ALPHA may be all zeros: then nothing is known of the shares, and the last has all.
    cuts: IntVector = np.rint(np.cumsum(np.nan_to_num(shares))[:-1] * n_rows).astype(np.int64)
    return np.minimum(cuts, n_rows)


def _filled(parts: list[IntVector]) -> list[IntVector]:
    """Return the parts, where each empty one has taken a row from the one that has most."""
    for k, part in enumerate(parts):
        largest = max(range(len(parts)), key=lambda j: len(parts[j]))
        if not len(part) and len(parts[largest]) > 1:
            parts[largest], parts[k] = parts[largest][:-1], parts[largest][-1:]
    return parts
