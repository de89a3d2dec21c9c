"""Calibration curves: probabilities as a function of decision values of rows that a machine was not trained on.

**Folds.** Stratified: five parts of the rows, each with its share of every class. A row is scored by the machine that
was trained on the four parts that it is not in, and all rows together make one curve, which is then applied to the
scores of the machine of all rows. That is `sklearn.calibration.CalibratedClassifierCV` with ``ensemble=False``, and the
folds are those of `sklearn.model_selection.StratifiedKFold`.

**Curves.** The sigmoid 1/(1 + exp(A f + B)) of least cross-entropy (`dsgd.svm.calibration.platt`), or the
non-decreasing function of least squares, linear between its corners and constant beyond (Zadrozny and Elkan,
"Transforming classifier scores into accurate multiclass probability estimates", KDD 2002). A row counts by its weight.
A curve is an array of two rows: A and B, or the corners' scores and their probabilities.

Cost: five fits of four fifths of the rows, and a sort of the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from scipy.special import expit
from sklearn.isotonic import IsotonicRegression
from sklearn.model_selection import StratifiedKFold

from dsgd.errors import InvalidDataError
from dsgd.svm.calibration.platt import fit_sigmoid
from dsgd.types import AnyArray, FloatMatrix, FloatVector
from dsgd.validation import as_random_state

__all__ = ["METHODS", "N_FOLDS", "assign_folds", "draw_seed", "fit_curve", "normalised", "probabilities_of"]

#: What `probability=` may be, besides LIBSVM's True.
METHODS: Final = ("sigmoid", "isotonic")

N_FOLDS: Final = 5


def draw_seed(where: str, random_state: Any) -> int | None:
    """Return the seed that shuffles rows before they are divided; None, to leave them in order, if there is none.

    Parameters
    ----------
    where : str
        The estimator.
    random_state : int, RandomState or None
        A number is the seed, a generator draws one.
    """
    if random_state is None:
        return None
    states = as_random_state(where, random_state)
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(states.randint(np.iinfo(np.int32).max))


def assign_folds(codes: AnyArray, classes: AnyArray, seed: int | None) -> AnyArray:
    """Return the fold of each row, uint8, shape (n,).

    Parameters
    ----------
    codes : int array, shape (n,)
        The class of each row.
    classes : array, shape (n_classes,)
        The labels.
    seed : int or None
        Shuffles the rows of each class; None divides them in order.

    Raises
    ------
    InvalidDataError
        A class has fewer rows than there are folds.
    """
    counts = np.bincount(codes, minlength=len(classes))
    if counts.min() < N_FOLDS:
        few = classes[counts < N_FOLDS].tolist()
        raise InvalidDataError(
            f"Requesting {N_FOLDS}-fold cross-validation but provided less than {N_FOLDS} examples for at least one "
            f"class: {few}. Leave these classes out of X and y, or fit without probability."
        )
    folds = np.empty(len(codes), dtype=np.uint8)
    splitter = StratifiedKFold(N_FOLDS, shuffle=seed is not None, random_state=seed)
    for number, (_, held_out) in enumerate(splitter.split(codes, codes)):
        folds[held_out] = number
    return folds


def fit_curve(method: str, scores: FloatVector, is_positive: AnyArray, weights: FloatVector) -> FloatMatrix:
    """Return the curve that takes scores to probabilities.

    Parameters
    ----------
    method : {"sigmoid", "isotonic"}
        What it may look like.
    scores : array, shape (n,)
        Decision values of rows that a machine has not seen.
    is_positive : bool array, shape (n,)
        Whether a row is of the class whose probability is asked for.
    weights : array, shape (n,)
        Weights of the rows.

    Returns
    -------
    array, shape (2, m)
        A and B, or the corners.
    """
    if method == "sigmoid":
        return np.array(fit_sigmoid(scores, is_positive, weights))[:, None]
    fitted = IsotonicRegression(out_of_bounds="clip").fit(scores, is_positive.astype(np.float64), weights)
    return np.stack([fitted.X_thresholds_, fitted.y_thresholds_])


def probabilities_of(method: str, curves: Sequence[FloatMatrix], scores: FloatMatrix) -> FloatMatrix:
    """Return the probability that each curve gives to each score, shape (n, n_curves).

    Parameters
    ----------
    method : {"sigmoid", "isotonic"}
        What curves are.
    curves : sequence of arrays, shape (2, m)
        From `fit_curve`.
    scores : array, shape (n, n_curves)
        Decision values.
    """
    columns = zip(curves, scores.T, strict=True)
    if method == "sigmoid":
        return np.column_stack([expit(-(curve[0, 0] * f + curve[1, 0])) for curve, f in columns])
    return np.column_stack([np.interp(f, curve[0], curve[1]) for curve, f in columns])


def normalised(positive: FloatMatrix) -> FloatMatrix:
    """Return the probabilities of all classes, as scikit-learn makes them of those of each class against the rest.

    Parameters
    ----------
    positive : array, shape (n, n_classes), or (n, 1) with two classes
        Probabilities of each class; of the second where there are two.

    Returns
    -------
    array, shape (n, n_classes)
        Rows sum to one; all classes are alike where none has a probability above zero.
    """
    if positive.shape[1] == 1:
        return np.hstack([1.0 - positive, positive])
    total = positive.sum(axis=1, keepdims=True)
    alike = np.full_like(positive, 1.0 / positive.shape[1])
    return np.asarray(np.divide(positive, total, out=alike, where=total > 0))
