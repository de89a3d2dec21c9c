"""Class probabilities by Platt scaling: a sigmoid per pair of classes, combined over all pairs.

**Sigmoid.** With scores f of one pair, positive for its first class, P(first | f) = 1/(1 + exp(A f + B)). A and B
minimise the cross-entropy against targets drawn in from 0 and 1, (n₊ + 1)/(n₊ + 2) and 1/(n₋ + 2). Scores of rows that
a machine was trained on are too good, so those of the fit come from five machines, each of them asked about the fifth
of the rows that it has not seen.

**Coupling.** Sigmoids r_ij of all pairs, of class i against j, give the p that minimises ½ Σ_i Σ_{j≠i} (r_ji p_i −
r_ij p_j)² over Σp = 1: one linear system for each row.

Cost: five more fits of a pair, and k³ for the p of a row. Sources: Platt, "Probabilistic outputs for support vector
machines", 1999, with the Newton method of Lin, Lin, Weng, "A note on Platt's probabilistic outputs", Machine Learning
2007; Wu, Lin, Weng, "Probability estimates for multi-class classification by pairwise coupling", JMLR 2004, its second
method. Departures: LIBSVM iterates the second until it is right to 0.005/k, and here the system is solved.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector

__all__ = ["couple", "draw_folds", "fit_sigmoid"]

_N_FOLDS = 5
_MAX_STEPS = 100

#: No pair is more certain than this, as in LIBSVM: with a zero the coupling could have several solutions.
_LEAST = 1e-7

#: Entries of the linear systems that are solved at once.
_ENTRIES = 1 << 20


def draw_folds(n: int, seed: int) -> list[IntVector]:
    """Return the rows of each fold, drawn as LIBSVM draws them: the same seed gives scikit-learn's folds.

    Parameters
    ----------
    n : int
        Rows.
    seed : int
        Of a Mersenne Twister, in 0..2³² − 1.

    Returns
    -------
    list of int64 array
        Five sets of row numbers, some of them empty where there are fewer rows.
    """
    words = np.random.RandomState(seed)
    order = np.arange(n)
    for i in range(n):
        j = i + _draw_below(words, n - i)
        order[i], order[j] = order[j], order[i]
    return [order[k * n // _N_FOLDS : (k + 1) * n // _N_FOLDS] for k in range(_N_FOLDS)]


def _draw_below(words: np.random.RandomState, n: int) -> int:
    """Return a number below n from 32-bit words: Lemire, "Fast random integer generation in an interval", 2019."""
    while True:
        product = int(words.randint(0, 1 << 32, dtype=np.uint32)) * n
        if product % (1 << 32) >= (1 << 32) % n:
            return product >> 32


def fit_sigmoid(scores: FloatVector, is_first: AnyArray, weights: FloatVector | None = None) -> tuple[float, float]:
    """Return A and B of P(first class | score f) = 1/(1 + exp(A f + B)).

    Parameters
    ----------
    scores : array, shape (n,)
        Scores of rows that the machine has not seen.
    is_first : bool array, shape (n,)
        Which rows are of the first class.
    weights : array, shape (n,), or None
        How often rows count; None counts each once, as LIBSVM does.
    """
    weights = np.ones(len(scores)) if weights is None else weights
    n_first, n_second = float(weights[is_first].sum()), float(weights[~is_first].sum())
    target = np.where(is_first, (n_first + 1) / (n_first + 2), 1 / (n_second + 2))
    counts = weights / weights.max()
    # Scores so small that the slope over them would overflow say no more than zeros.
    unit = max(float(np.abs(scores[counts > 0]).max()), 1e-290)
    rows = np.stack([scores / unit, np.ones(len(scores))])

    def loss(at: FloatVector) -> float:
        z = at @ rows
        return float(counts @ (target * z + np.logaddexp(0.0, -z)))

    found = np.array([0.0, np.log((n_second + 1) / (n_first + 1))])
    value = loss(found)
    for _ in range(_MAX_STEPS):
        p = expit(-(found @ rows))
        slope = rows @ (counts * (target - p))
        if np.abs(slope).max() < 1e-10 * counts.sum():
            break
        curvature = (rows * (counts * p * (1 - p))) @ rows.T
        # Where all scores are equal it is zero in one direction, and where they are zero in the first.
        curvature[range(2), range(2)] *= 1 + 1e-12
        curvature[range(2), range(2)] += 1e-290
        step = -np.linalg.solve(curvature, slope)
        size = 1.0
        while size > 1e-10 and not loss(found + size * step) < value + 1e-4 * size * (slope @ step):
            size /= 2
        if size <= 1e-10:  # rounding hides what is left to gain
            break
        found = found + size * step
        value = loss(found)
    return float(found[0]) / unit, float(found[1])


def couple(first: FloatMatrix, n_classes: int) -> FloatMatrix:
    """Return the probabilities of all classes that agree best with those of all pairs.

    Parameters
    ----------
    first : array, shape (n, k (k - 1) / 2)
        Probability of the first class of each pair, pairs in the order (0, 1), (0, 2), ...
    n_classes : int
        k.

    Returns
    -------
    array, shape (n, k)
        Rows sum to one.
    """
    k = n_classes
    first = np.clip(first, _LEAST, 1 - _LEAST)
    if k == 2:
        return np.column_stack([first[:, 0], 1 - first[:, 0]])
    a, b = np.triu_indices(k, 1)
    out = np.empty((len(first), k))
    step = max(1, _ENTRIES // (k + 1) ** 2)
    for start in range(0, len(first), step):
        part = first[start : start + step]
        r = np.zeros((len(part), k, k))
        r[:, a, b], r[:, b, a] = part, 1 - part
        # Minimise ½ p'Qp over Σp = 1: Qp + b e = 0, with Q_ii = Σ_j r_ji² and Q_ij = −r_ji r_ij.
        system = np.ones((len(part), k + 1, k + 1))
        system[:, :k, :k] = -r * r.transpose(0, 2, 1)
        system[:, range(k), range(k)] = (r * r).sum(axis=1)
        system[:, k, k] = 0.0
        right = np.zeros((len(part), k + 1, 1))
        right[:, k] = 1.0
        p = np.maximum(np.linalg.solve(system, right)[:, :k, 0], 0.0)
        out[start : start + step] = p / p.sum(axis=1, keepdims=True)
    return out
