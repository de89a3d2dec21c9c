"""Class probabilities from decision values: sigmoids, monotone curves, and how pairs of classes are combined.

Scores of rows that a machine was trained on are too good. So the rows are divided into five folds, each is scored by
the machine of the four others, and all rows together make one curve, for the scores of the machine of all rows.

**probability="sigmoid", "isotonic".** `sklearn.calibration.CalibratedClassifierCV` with ``ensemble=False``: the folds
of its StratifiedKFold, each with its share of every class, and its curves. A curve is the sigmoid 1/(1 + exp(A f + B))
of least cross-entropy, or the non-decreasing function of least squares, which scikit-learn fits (Zadrozny and Elkan,
"Transforming classifier scores into accurate multiclass probability estimates", KDD 2002). A row counts by its weight.
A curve is an array of two rows: A and B, or the corners' scores and their probabilities.

**probability=True.** LIBSVM's: its folds, and a sigmoid per pair of classes, P(first | f) = 1/(1 + exp(A f + B)).

The sigmoid minimises the cross-entropy against targets drawn in from 0 and 1, (n₊ + 1)/(n₊ + 2) and 1/(n₋ + 2).
scikit-learn's fit of it is private. The public ways there are CalibratedClassifierCV around a classifier of one column,
and LogisticRegression on rows with both labels: of a thousand scores they take eight and four times as long as the
Newton method here, the first loses tiny scores, and the second warns where all scores are alike.

**Coupling.** Curves r_ij of all pairs, of class i against j, give the p that minimises ½ Σ_i Σ_{j≠i} (r_ji p_i − r_ij
p_j)² over Σp = 1: one linear system for each row.

Cost: five fits of four fifths of the rows, a sort of the scores, and k³ for the p of a row. Sources: Platt,
"Probabilistic outputs for support vector machines", 1999, with the Newton method of Lin, Lin, Weng, "A note on Platt's
probabilistic outputs", Machine Learning 2007; Wu, Lin, Weng, "Probability estimates for multi-class classification by
pairwise coupling", JMLR 2004, its second method. Departures: LIBSVM iterates the second until it is right to 0.005/k,
and here the system is solved.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from scipy.special import expit
from sklearn.exceptions import NotFittedError
from sklearn.isotonic import IsotonicRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import InvalidDataError
from dsgd.inputs.linear import answers_in_kind
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector
from dsgd.validation import as_random_state

#: What `probability=` may be, besides LIBSVM's True.
METHODS: Final = ("sigmoid", "isotonic")
#: The method that True stands for: sigmoids, as LIBSVM fits them to pairs of classes.
LIBSVM: Final = "libsvm"

N_FOLDS: Final = 5
_MAX_STEPS: Final = 100

#: No pair is more certain than this, as in LIBSVM: with a zero the coupling could have several solutions.
_LEAST: Final = 1e-7

#: Entries of the linear systems that are solved at once.
_ENTRIES: Final = 1 << 20


def draw_seed(where: str, random_state: Any) -> int | None:
    """Return the seed that shuffles rows before they are divided; None, to leave them in order, if there is none."""
    if random_state is None:
        return None
    states = as_random_state(where, random_state)
    if isinstance(random_state, (int, np.integer)):
        return int(random_state)
    return int(states.randint(np.iinfo(np.int32).max))


def assign_folds(codes: AnyArray, classes: AnyArray, seed: int | None) -> AnyArray:
    """Return the fold of each row, uint8, shape (n,)."""
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
    """Return the curve that takes scores to probabilities."""
    if method == "sigmoid":
        return np.array(fit_sigmoid(scores, is_positive, weights))[:, None]
    fitted = IsotonicRegression(out_of_bounds="clip").fit(scores, is_positive.astype(np.float64), weights)
    return np.stack([fitted.X_thresholds_, fitted.y_thresholds_])


def probabilities_of(method: str | None, curves: Sequence[FloatMatrix], scores: FloatMatrix) -> FloatMatrix:
    """Return the probability that each curve gives to each score, shape (n, n_curves)."""
    columns = zip(curves, scores.T, strict=True)
    if method != "isotonic":
        return np.column_stack([expit(-(curve[0, 0] * f + curve[1, 0])) for curve, f in columns])
    return np.column_stack([np.interp(f, curve[0], curve[1]) for curve, f in columns])


def normalised(positive: FloatMatrix) -> FloatMatrix:
    """Return probabilities that sum to one; all classes are alike where none has one above zero."""
    if positive.shape[1] == 1:
        return np.hstack([1.0 - positive, positive])
    total = positive.sum(axis=1, keepdims=True)
    alike = np.full_like(positive, 1.0 / positive.shape[1])
    return np.asarray(np.divide(positive, total, out=alike, where=total > 0))


def draw_folds(n: int, seed: int) -> list[IntVector]:
    """Return the rows of each of five folds, drawn as LIBSVM draws them: the same seed gives scikit-learn's."""
    words = np.random.RandomState(seed)
    order = np.arange(n)
    for i in range(n):
        j = i + _draw_below(words, n - i)
        order[i], order[j] = order[j], order[i]
    return [order[k * n // N_FOLDS : (k + 1) * n // N_FOLDS] for k in range(N_FOLDS)]


def _draw_below(words: np.random.RandomState, n: int) -> int:
    """Return a number below n from 32-bit words: Lemire, "Fast random integer generation in an interval", 2019."""
    while True:
        product = int(words.randint(0, 1 << 32, dtype=np.uint32)) * n
        if product % (1 << 32) >= (1 << 32) % n:
            return product >> 32


def fit_sigmoid(scores: FloatVector, is_first: AnyArray, weights: FloatVector | None = None) -> tuple[float, float]:
    """Return A and B of P(first class | score f) = 1/(1 + exp(A f + B))."""
    weights = np.ones(len(scores)) if weights is None else weights
    n_first, n_second = float(weights[is_first].sum()), float(weights[~is_first].sum())
    target = np.where(is_first, (n_first + 1) / (n_first + 2), 1 / (n_second + 2))
    counts = weights / weights.max()
    unit = float(np.abs(scores[counts > 0]).max())
    if unit < 1e-290:  # scores so small that the slope over them would overflow say no more than zeros
        scores, unit = np.zeros(len(scores)), 1.0
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
    """Return the probabilities of classes that agree best with `first`, of the first of pairs (0, 1), (0, 2), ..."""
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


def has_curves(model: AbstractCalibrated) -> bool:
    """Return whether a model is to have probabilities, for `available_if`."""
    if model._curve_method() is None:
        raise AttributeError("predict_proba is not available when probability=False")
    return True


class AbstractCalibrated:
    """A classifier that may have curves from decision values to probabilities."""

    probability: bool | str

    #: What was fitted: a method, None if none, and a curve for each output.
    _curves: tuple[str | None, list[FloatMatrix]] = (None, [])
    #: Seed of the folds, the same on all ranks; None leaves rows in order.
    _fold_seed: int | None = 0

    def _curve_method(self) -> str | None:
        """Return the method that `probability` names, None if none."""
        if isinstance(self.probability, str):
            return self.probability if self.probability in METHODS else None
        return LIBSVM if self.probability else None

    def _check_curves(self) -> None:
        """Raise `NotFittedError` where the curves that `probability` names were not fitted."""
        if self._curves[0] != self._curve_method():
            found = {None: False, LIBSVM: True}.get(self._curves[0], self._curves[0])
            raise NotFittedError(
                f"predict_proba is not available when fitted with probability={found!r}: the model was not "
                f"fitted with probability={self.probability!r}."
            )

    def _probabilities(self, scores: FloatMatrix) -> FloatMatrix:
        """Return the probability of the positive sign of each output, shape (n, n_outputs)."""
        self._check_curves()
        return probabilities_of(*self._curves, scores)

    @abstractmethod
    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities."""

    @available_if(has_curves)
    @answers_in_kind
    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithm of `predict_proba`, shape (n, n_classes)."""
        model: Any = self
        check_is_fitted(model)
        if model._is_lazy(X):
            return model._apply("predict_log_proba", X, len(model.classes_), np.float64)
        with np.errstate(divide="ignore"):  # the logarithm of zero is what it should be
            return np.log(self.predict_proba(X))
