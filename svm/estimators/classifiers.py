"""Kernel classifiers: one problem per pair of classes, their votes and probabilities.

What a classifier is made of: a problem for each pair (`SVC` and `NuSVC` say which), a trainer of these, with the curves
of their probabilities (`dsgd.svm.estimators.pairs`), and votes (`dsgd.svm.estimators.pairs`). Of pair (a, b), a before
b, positive means class a; with two classes positive means the second, as everywhere in scikit-learn.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs.callbacks import notifies_callbacks
from dsgd.inputs.docstrings import inherit_method_docs
from dsgd.inputs.linear import AbstractClusterClassifier
from dsgd.inputs.named import takes_tables
from dsgd.svm.calibration import LIBSVM, METHODS, AbstractCalibrated, couple, draw_seed, has_curves, normalised
from dsgd.svm.distributed.dealing import TrainedPair, dealer_of
from dsgd.svm.estimators.kernel_base import AbstractKernelSVM
from dsgd.svm.estimators.pairs import PairTrainer, RowTable, columns_of, less_than_half, pairs_of, tally
from dsgd.svm.kernel_solver.problem import Dual
from dsgd.svm.kernels.rows import distribute, mask_of, places_of
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IntVector
from dsgd.validation import as_random_state, check_bool, warn_user, weights_of_classes


@dataclass(eq=False, repr=False, kw_only=True)
class ClassifierParameters:
    """The parameters of kernel classifiers."""

    probability: bool | str = "deprecated"
    class_weight: Any = None
    decision_function_shape: str = "ovr"
    break_ties: bool = False
    random_state: Any = None


@inherit_method_docs
class AbstractKernelClassifier(ClassifierParameters, AbstractCalibrated, AbstractClusterClassifier, AbstractKernelSVM):
    """Kernel classifier trained one against one; `SVC` and `NuSVC` are the ones to use.

    Parameters
    ----------
    verbose : bool, default False
        Print a line per pair of classes.
    max_iter : int, default -1
        Two-variable steps per pair of classes at most; −1 is max(10⁷, 100 n).
    decision_function_shape : {"ovr", "ovo"}, default "ovr"
        One column per class, or per pair of classes, when there are more than two.
    break_ties : bool, default False
        With ``"ovr"``, predict the class of the largest decision value instead of the first of those with most votes.
    random_state : int, RandomState or None, default None
        Draws the rows held out from each of the five machines of ``probability``: with the same number, the same rows
        as in scikit-learn. With "sigmoid" and "isotonic", None leaves rows in order and a number shuffles them, as
        ``StratifiedKFold(5, shuffle=True, random_state=...)`` does.

    Attributes
    ----------
    classes_ : array, shape (n_classes,)
        The labels, sorted, without classes of which no row has weight.
    class_weight_ : array, shape (n_classes,)
        Their weights.
    support_ : int32 array, shape (n_SV,)
        Rows that are support vectors, by class.
    n_support_ : int32 array, shape (n_classes,)
        Support vectors of each class.
    dual_coef_ : array or CSR matrix, shape (n_classes - 1, n_SV)
        Their coefficients y α, laid out as in scikit-learn.
    intercept_ : array, shape (n_classes * (n_classes - 1) / 2,)
        Intercepts.
    coef_ : array or CSR matrix, shape (n_classes * (n_classes - 1) / 2, n_features)
        Weights of features; only with ``kernel="linear"``.
    probA_, probB_ : array, shape (n_classes * (n_classes - 1) / 2,)
        A and B of P(first class of the pair) = 1/(1 + exp(A f + B)), with the f of LIBSVM: positive for the first, also
        where there are only two classes. Empty without ``probability``. Deprecated, as in scikit-learn.
    n_iter_ : int32 array, shape (n_classes * (n_classes - 1) / 2,)
        Two-variable steps of each pair.
    elimination_history_ : list of lists of dsgd.svm.EliminationRecord
        The run of each pair.
    """

    _TARGETS: ClassVar[str] = "classes"

    classes_: AnyArray

    #: Whether a dual has one sum, the linear term −1 and a start at zero, as those do that are solved many in a call.
    #: What LIBSVM says where rows of one class only have weight.
    _ONE_CLASS_LEFT: ClassVar[str] = "Invalid input - all samples with positive weights belong to the same class"

    # -- what the final classes say ------------------------------------------------------------------------------

    @abstractmethod
    def _bounds(self, codes: AnyArray, weights: FloatVector) -> FloatVector:
        """Return the upper bounds of the variables of all rows, shape (n,)."""

    @abstractmethod
    def _pose(self, y: FloatVector, bounds: FloatVector, sizes: IntVector) -> Dual:
        """Return the duals of pairs of so many samples, one after another, of signs and bounds of shape (m,)."""

    @abstractmethod
    def _find_thresholds(self, found: FloatMatrix, totals: FloatMatrix) -> FloatMatrix:
        """Return the thresholds of pairs, shape (n_pairs, n_groups), from those found and the bounds of either sign."""

    # -- checks --------------------------------------------------------------------------------------------------

    def _check_probability(self) -> None:
        """Check the parameters of probabilities, and draw the seed of the folds if there are to be any."""
        name = type(self).__name__
        check_bool(f"{name}(break_ties=...)", self.break_ties)
        states = as_random_state(name, self.random_state)
        if isinstance(self.probability, str):
            if self.probability in METHODS:
                self._fold_seed = draw_seed(name, self.random_state)
            elif self.probability != "deprecated":
                raise InvalidParameterError(
                    f'{name}(probability=...) must be True or False, "sigmoid" or "isotonic". Got {self.probability!r}.'
                )
            return
        check_bool(f"{name}(probability=...)", self.probability)
        warn_user(
            f"The `probability` parameter of {name} is deprecated, as in scikit-learn 1.9, and is removed when theirs "
            f'is. Use {name}(probability="sigmoid"), or CalibratedClassifierCV({name}(), ensemble=False), instead of '
            f"{name}(probability=True).",
            FutureWarning,
        )
        if self.probability:
            self._fold_seed = int(states.randint(np.iinfo(np.int32).max))

    # -- training ------------------------------------------------------------------------------------------------

    @notifies_callbacks
    @takes_tables
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        y : array-like, dask collection or str, shape (n_samples,)
            Labels, or the name of their column; None where blocks or svmlight files hold them.
        """
        self._check_probability()
        return self._fit(X, y, sample_weight)

    def _fit_rows(self, X: Any, target: Any, weights: FloatVector) -> None:
        codes = np.asarray(target)
        if codes.dtype.kind not in "iu":
            codes = codes.astype(np.int64)
        where = f"{type(self).__name__}(class_weight=...)"
        is_balanced = isinstance(self.class_weight, str)
        self.class_weight_ = weights_of_classes(where, None if is_balanced else self.class_weight, self.classes_)
        weights = np.where(self.class_weight_[codes] > 0.0, weights, 0.0)
        present = np.flatnonzero(np.bincount(codes[weights > 0]))
        if len(present) < 2:
            raise InvalidDataError(
                f"{self._ONE_CLASS_LEFT}, {self.classes_[present]}. Give rows of another class weights above zero."
            )
        if len(present) < len(self.classes_):  # classes of which no row has weight are as if their rows were not there
            numbers = np.full(len(self.classes_), len(present), dtype=codes.dtype)
            numbers[present] = np.arange(len(present))
            self.classes_, self.class_weight_ = self.classes_[present], self.class_weight_[present]
            codes = numbers[codes]
        if is_balanced:
            labels = self.classes_[codes[codes < len(self.classes_)]]
            self.class_weight_ = weights_of_classes(where, self.class_weight, self.classes_, labels=labels)
        codes = np.minimum(codes, len(self.classes_) - 1)
        if self._gang is not None and self._answer is None:
            self._dealer = dealer_of(self._gang, X, self, codes)
            if self._dealer is not None:  # a rank trains its pairs on all rows, as a fit in one process
                X, self._gang = self._gang.gather_rows(X), None
        bounds = self._bounds(codes, weights)
        first, owner, total = self._merge(X, codes if self._gang is not None else codes.astype(np.float64), bounds)
        kernel = self._make_kernel(X, weights, first, owner)
        table = RowTable(codes, owner, bounds, weights)
        trainer = PairTrainer(self, kernel, X, first, total, table)
        found, n_evaluations = trainer.train()
        if not found:  # they are on rank 0
            return
        self._curves = (self._curve_method(), [trained.curve for trained in found if trained.curve is not None])
        self._collect(trainer, found)
        self.n_kernel_evaluations_ += n_evaluations

    def _collect(self, trained_by: PairTrainer, found: list[TrainedPair]) -> None:
        """Keep the coefficients of all pairs as scikit-learn lays them out: by class, one row per other class."""
        table, total, pairs = trained_by.table, trained_by.total, pairs_of(len(self.classes_))
        codes, k, solutions = table.codes, len(self.classes_), [trained.solution for trained in found]
        samples = np.concatenate([trained.samples for trained in found])
        used = np.flatnonzero(mask_of(samples, len(total)))
        merged = np.zeros((k - 1, len(used)))
        one, other = np.repeat(pairs, [len(trained.samples) for trained in found], axis=0).T
        place = places_of(used, len(total) + 1)  # the last is that of rows without weight
        lines = np.where(trained_by.codes[samples] == one, other - 1, one)
        merged[lines, place[samples]] = np.concatenate([trained.beta for trained in found])
        support = np.flatnonzero(place[table.owner] >= 0)
        support = support[np.argsort(codes[support], kind="stable")]
        coefs = distribute(merged, place[table.owner[support]], table.bounds[support], total[used])
        is_support = coefs.any(axis=0)
        if not is_support.all():
            coefs, support = coefs[:, is_support], support[is_support]
        thresholds = np.concatenate([solution.thresholds for solution in solutions]).reshape(len(pairs), -1)
        # What coefficients are divided by: the margin, if the sum is fixed for each sign.
        is_divided = thresholds.shape[1] == 2
        self._margins = 0.5 * (thresholds[:, 0] - thresholds[:, 1]) if is_divided else np.ones(len(pairs))
        # An inverse overflows where a margin is less than the smallest normal number.
        gaps = np.maximum([solution.gap for solution in solutions], np.finfo(np.float64).tiny)
        faint = ~(self._margins > gaps) if is_divided else []
        if any(faint):
            self._doubt_margin(*min(zip(self._margins[faint].tolist(), gaps[faint].tolist(), strict=True)))
        if is_divided:
            scale = np.ones((k - 1, k))
            first, second = pairs.T
            scale[second - 1, first] = scale[first, second] = 1.0 / self._margins
            coefs *= scale[:, codes[support]]
        self._keep_support(trained_by.X, support)
        self._n_support = np.bincount(codes[support], minlength=k).astype(np.int32)
        self._keep_coefs(coefs, -thresholds.mean(axis=1) / self._margins, trained_by.kernel)
        self.n_iter_ = np.array([solution.counts.n_iter for solution in solutions], dtype=np.int32)
        self._take_in(solutions)

    def _doubt_margin(self, margin: float, gap: float) -> None:
        """Refuse a margin that nothing can be divided by; warn of one that is less than the gap."""
        found = f"The margin between two classes is {margin:.3g}"
        advice = "Raise nu, up to twice the share of the smaller class (a lower nu makes it smaller), or use SVC."
        if not margin > np.finfo(np.float64).tiny:
            raise InvalidDataError(f"{found}, so no decision function follows. {advice}")
        text = f"{found}, below the gap of {gap:.3g}, and coefficients that are divided by it are not certain. {advice}"
        if self._gang is not None or self._dealer is not None:
            self._note = text
        else:
            warn_user(text, RuntimeWarning)

    # -- prediction ----------------------------------------------------------------------------------------------

    def _sign_of_first(self) -> float:
        """Return the sign that the first class of a pair has; with two classes, positive means the second."""
        return -1.0 if len(self.classes_) == 2 else 1.0

    def _pair_coefs(self) -> FloatMatrix:
        """Return the coefficients of each pair of classes, shape (n_SV, n_pairs)."""
        coefs, k = self._dense_coefs(), len(self.classes_)
        out = np.zeros((coefs.shape[1], k * (k - 1) // 2))
        np.put_along_axis(out, columns_of(k).repeat(self._n_support, axis=0), coefs.T, axis=1)
        return out

    @property
    def probA_(self) -> FloatVector:  # noqa: N802
        """Slopes of the sigmoids of all pairs; deprecated."""
        return self._sigmoid("probA_", 0)

    @property
    def probB_(self) -> FloatVector:  # noqa: N802
        """Shifts of the sigmoids of all pairs; deprecated."""
        return self._sigmoid("probB_", 1)

    def _sigmoid(self, name: str, row: int) -> FloatVector:
        if not hasattr(self, "support_"):
            raise AttributeError(f"{name} is available after fit")
        warn_user(
            f"Attribute `{name}` was deprecated by scikit-learn 1.9 and is removed when theirs is.",
            FutureWarning,
        )
        method, curves = self._curves
        return np.array([curve[row, 0] for curve in curves if method == LIBSVM])

    def _grouped_coefs(self) -> tuple[FloatMatrix, list[int], AnyArray]:
        # The support vectors of a class have a coefficient for each of its pairs only, not for all.
        return self._dense_coefs().T, self._n_support.cumsum().tolist(), columns_of(len(self.classes_))

    def _pair_scores(self, X: Any) -> FloatMatrix:
        return np.asarray(self._sums(X) + self.intercept_)

    def decision_function(self, X: Any) -> Any:
        """Return decision values.

        Returns
        -------
        array, shape (n,), (n, n_classes) or (n, n_classes * (n_classes - 1) / 2)
            With two classes, positive means the second; of a pair, positive means the first. ``"ovr"`` counts votes and
            breaks ties by the sums of decision values.
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            k = len(self.classes_)
            columns = k if self.decision_function_shape == "ovr" else k * (k - 1) // 2
            return self._apply("decision_function", X, None if k == 2 else columns, np.float64)
        scores = self._pair_scores(X)
        if scores.shape[1] == 1:
            return scores[:, 0]
        if self.decision_function_shape == "ovo":
            return scores
        votes, sums = tally(scores, len(self.classes_), zero_is_first=True)
        return votes + less_than_half(sums)

    def predict(self, X: Any) -> Any:
        """Return the labels.

        Returns
        -------
        array, shape (n,)
            Predicted labels.

        Raises
        ------
        InvalidParameterError
            ``break_ties`` with ``decision_function_shape="ovo"``.
        """
        self._check_fitted()
        if self.break_ties and self.decision_function_shape == "ovo":
            raise InvalidParameterError("break_ties must be False when decision_function_shape is 'ovo'")
        if self._is_lazy(X):
            return self._apply("predict", X, None, self.classes_.dtype)
        scores = self._pair_scores(X)
        # To LIBSVM a score of zero names the second class of a pair, in `decision_function` of scikit-learn the first.
        if scores.shape[1] == 1:
            return np.asarray(self.classes_[(scores[:, 0] >= 0).astype(np.intp)])
        votes, sums = tally(scores, len(self.classes_), zero_is_first=bool(self.break_ties))
        if self.break_ties:
            votes += less_than_half(sums)
        return np.asarray(self.classes_[votes.argmax(axis=1)])

    @available_if(has_curves)
    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities; only with a `probability`.

        The class of the largest need not be the one that `predict` names: probabilities come from machines of parts of
        the rows, labels from the votes of the machines of all. With two classes and ``"isotonic"`` they may be zero.

        Returns
        -------
        array, shape (n, n_classes)
            Probabilities, in the order of ``classes_``.
        """
        check_is_fitted(self)
        self._check_curves()
        if self._is_lazy(X):
            return self._apply("predict_proba", X, len(self.classes_), np.float64)
        scores, n_classes = self._pair_scores(X), len(self.classes_)
        if self._curve_method() == LIBSVM:  # of the first class of a pair
            return couple(self._probabilities(self._sign_of_first() * scores), n_classes)
        positive = self._probabilities(scores)
        return normalised(positive) if n_classes == 2 else couple(positive, n_classes)
