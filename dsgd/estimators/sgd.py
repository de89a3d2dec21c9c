"""`SGDClassifier` and `SGDRegressor`: linear models trained by parallel SGD, and their conversion to scikit-learn's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Final, Self

import numpy as np
import scipy.special
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.estimators.base import AbstractSGD, peer_of, to_plain
from dsgd.estimators.start import GROW, check_whole_fit, joined, loss_parameter, losses_for, resumed
from dsgd.inputs.blocks import BlockSummary
from dsgd.inputs.callbacks import notifies_callbacks
from dsgd.inputs.docstrings import inherit_docs
from dsgd.inputs.linear import AbstractLinearClassifier, AbstractLinearRegressor, answers_in_kind, classes_of
from dsgd.kernels.losses import LOSSES
from dsgd.local import CustomLoss
from dsgd.local.objective import Deviance
from dsgd.local.rules import LearningRate
from dsgd.types import AnyArray
from dsgd.validation import weights_of_classes

#: Attributes that say which labels there are; a call that fails leaves them as they were.
_OF_LABELS: Final = ("classes_", "_grows", "_absent")


def _has_probabilities(model: SGDClassifier) -> bool:
    if model.loss not in {"log_loss", "softmax", "modified_huber"}:
        raise AttributeError(f"probability estimates are not available for loss={model.loss!r}")
    return True


@inherit_docs
@dataclass(eq=False, repr=False)
class SGDClassifier(AbstractLinearClassifier, AbstractSGD):
    """Linear classifier (SVM, logistic regression, ...) trained by parallel SGD.

    Minimises over w and b::

        (1/n) sum_i loss(w'x_i + b, y_i) + alpha R(w)

    It has the parameters, defaults and fitted attributes of `sklearn.linear_model.SGDClassifier`. Further parameters
    set where training runs and how ranks synchronise.

    Parameters
    ----------
    loss : {"hinge", "log_loss", "modified_huber", "squared_hinge", "perceptron", "squared_error", "huber", \
"epsilon_insensitive", "squared_epsilon_insensitive", "softmax"} or `dsgd.CustomLoss`, default "hinge"
        ``"hinge"`` is a linear SVM. ``"log_loss"`` is logistic regression, with several classes each against the rest,
        and ``"softmax"`` is multinomial logistic regression of all classes together; with two classes, these are the
        same. A custom loss gets targets +1 and -1.
    tol : float or None, default 1e-3
        Stop once the objective (training loss plus penalty) or, with `early_stopping`, the validation score has not
        improved by `tol` for `n_iter_no_change` epochs. With several classes, the objective of each class against the
        rest must meet this; ``"softmax"`` has a single objective. None trains for exactly `max_iter` epochs.
    learning_rate : str, `dsgd.local.Cyclical` or `dsgd.local.OneCycle`, default "optimal"
        Step size. ``"optimal"``: 1/(alpha (t0 + t)). ``"constant"``: eta0. ``"invscaling"``: eta0/t^power_t.
        ``"adaptive"``: eta0, divided by 5 on plateaus. ``"pegasos"``: 1/(alpha t). ``"per_epoch"``: 1/(alpha epoch).
        ``"triangular"``, ``"triangular2"`` and ``"exp_range"`` rise from eta0 and fall again in cycles, ``"one_cycle"``
        once; the objects set the peak and the number of steps. t counts the samples of the rank.
    power_t : float, default 0.5
        Exponent of ``"invscaling"``. Values below zero, with which rates grow, are deprecated as in scikit-learn.
    validation_fraction : float, default 0.1
        Share of rows held out. One rank holds out the same rows as scikit-learn's ``StratifiedShuffleSplit`` with the
        same `random_state`; each of several ranks draws from its own rows.
    class_weight : dict, "balanced" or None, default None
        Weight of each class, not all zero; ``"balanced"`` uses the counts over all data.

    Attributes
    ----------
    coef_ : array, shape (1, n_features) or (n_classes, n_features)
        Weights; with more than two classes, one row per class (against the rest or, with ``"softmax"``, jointly).
    intercept_ : array, shape (1,) or (n_classes,)
        Intercepts.
    classes_ : array, shape (n_classes,)
        The labels, sorted.


    See Also
    --------
    dsgd.sync.LocalSGD : The synchronisation frequency.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd import SGDClassifier
    >>> X = np.array([[-1.0, -1.0], [-2.0, -1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> model = SGDClassifier(random_state=0).fit(X, ["no", "no", "yes", "yes"])
    >>> model.predict([[-0.8, -1.0]]).tolist()
    ['no']
    """

    _is_classification: ClassVar[bool] = True
    loss_functions = losses_for(classification=True)

    loss: str | CustomLoss = "hinge"
    _: KW_ONLY
    learning_rate: LearningRate = "optimal"
    power_t: float = 0.5
    class_weight: Any = None

    @notifies_callbacks
    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch on these rows, continuing from the last call.

        The state of the ranks continues with the model: the memory of the strategy, of its compressor and of the local
        rule, and the position of random numbers. So with ``shuffle=False``, k calls on the same rows equal one `fit` of
        k epochs, bit for bit. A different number of ranks takes over the state as from a checkpoint. After a change of
        `sync` or `optimizer`, with sparse rows after dense ones, and after `fit`, the state is reset.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`; `class_weight` must be given as a dictionary or None.
        classes : array-like, "grow" or None
            On the first call, all labels that will ever occur; None in later calls. If they are not known, ``"grow"``:
            the classes are those of the rows so far, and each new label gets an output that starts at zero. ``"grow"``
            may be passed in any call, also after `fit`, and applies to that call and all later ones. It cannot be
            mistaken for labels, because a string was never a set of two classes.

        Returns
        -------
        self

        Raises
        ------
        InvalidParameterError
            ``class_weight="balanced"``, because the class counts of later calls are unknown; or ``early_stopping``,
            which needs epochs over one set of rows.
        InvalidDataError
            The first call does not give the classes, or has rows of only one class with ``classes="grow"``; a later
            call has unknown labels, without ``"grow"``.

        Notes
        -----
        When a class is added, the outputs of the others keep their coefficients, their averages and the state of the
        `optimizer`, and the step counter continues. The single output w of two classes becomes -w and w, or with
        ``"softmax"`` -w/2 and w/2, which decide as before. The mean of `average` for a new class is that of the steps
        since it was added. The memory of `sync`, of rows and of the L1 penalty is reset.
        """
        if isinstance(self.class_weight, str):
            raise InvalidParameterError(
                f"class_weight '{self.class_weight}' is not supported for partial_fit. In order to use 'balanced' "
                "weights, use compute_class_weight('balanced', classes=classes, y=y). In place of y you can use a "
                "large enough sample of the full training set target to properly estimate the class frequency "
                "distributions. Pass the resulting weights as the class_weight parameter."
            )
        check_whole_fit(self)
        before = {name: value for name, value in self.__dict__.items() if name in _OF_LABELS}
        start = resumed(self)
        try:
            self._take_classes(classes)
            self._train(X, y, sample_weight, start)
        except BaseException:
            for name in _OF_LABELS:
                self.__dict__.pop(name, None)
            self.__dict__.update(before)
            raise
        finally:
            self.__dict__.pop("_given_classes", None)
        return self

    def _take_classes(self, classes: Any) -> None:
        """Take in what a call of ``partial_fit`` says of the classes."""
        first = not hasattr(self, "classes_")
        if isinstance(classes, str) and classes == GROW:
            self._grows = True
        elif first and classes is None:
            raise InvalidDataError(
                "classes must be passed on the first call to partial_fit. Where they are not known: classes='grow'."
            )
        elif first:
            self.classes_ = np.unique(classes)
        elif classes is not None and not np.array_equal(self.classes_, np.unique(classes)):
            raise InvalidDataError(
                f"`classes={classes!r}` is not the same as on last call to partial_fit, was: {self.classes_!r}"
            )
        self._given_classes = hasattr(self, "classes_")

    @available_if(_has_probabilities)
    @answers_in_kind
    def predict_proba(self, X: Any) -> Any:
        """Return class probabilities; for ``loss="log_loss"``, ``"softmax"`` and ``"modified_huber"``.

        Returns
        -------
        array, shape (n, n_classes)
            With ``"softmax"``, the probabilities of the model; otherwise one-versus-rest probabilities, normalised
            (Zadrozny and Elkan, SIGKDD 2002).
        """
        if self._is_lazy(X):
            check_is_fitted(self)
            return self._apply("predict_proba", X, len(self.classes_), self.coef_.dtype)
        scores = self.decision_function(X)
        if self.loss == "softmax" and scores.ndim > 1:
            return scipy.special.softmax(scores, axis=1)
        positive = (np.clip(scores, -1, 1) + 1) / 2 if self.loss == "modified_huber" else scipy.special.expit(scores)
        if positive.ndim == 1:
            return np.column_stack([1 - positive, positive])
        totals = positive.sum(axis=1, keepdims=True)
        # Every class may have been refused (modified Huber); all are then as likely.
        return np.where(totals == 0, 1 / len(self.classes_), positive / np.where(totals == 0, 1, totals))

    @available_if(_has_probabilities)
    @answers_in_kind
    def predict_log_proba(self, X: Any) -> Any:
        """Return the logarithm of `predict_proba`.

        Returns
        -------
        array, shape (n, n_classes)
            Log-probabilities.
        """
        if self.loss == "softmax" and len(self.classes_) > 2:
            if self._is_lazy(X):
                return self._apply("predict_log_proba", X, len(self.classes_), self.coef_.dtype)
            return scipy.special.log_softmax(self.decision_function(X), axis=1)
        return np.log(self.predict_proba(X))

    def to_sklearn(self) -> Any:
        """Return the plain scikit-learn estimator with the same coefficients.

        Returns
        -------
        sklearn.linear_model.SGDClassifier
            Fitted; predicts without dsgd. A `LogisticRegression` with ``loss="softmax"``, which the class does not
            have. A custom loss is left out.
        """
        from sklearn.linear_model import LogisticRegression
        from sklearn.linear_model import SGDClassifier as Plain

        check_is_fitted(self)
        if self.loss == "softmax":
            return to_plain(self, LogisticRegression, ("classes_",))
        return to_plain(self, Plain, ("classes_",))

    # -- hooks of the base ---------------------------------------------------------------------------------------

    @property
    def _is_growing(self) -> bool:
        return getattr(self, "_grows", False)

    def _classes(self) -> AnyArray:
        return np.asarray(self.classes_)

    def _learn_targets(self, summaries: Sequence[BlockSummary]) -> None:
        labels = classes_of(summaries)
        if not getattr(self, "_given_classes", False):
            self.classes_ = labels
        elif len(unknown := np.setdiff1d(labels, self.classes_)):
            if not self._is_growing:
                raise InvalidDataError(
                    f"y holds labels that are not in classes={self.classes_!r}: {unknown!r}. With classes='grow' they "
                    "would be added."
                )
            self.classes_ = joined(self.classes_, unknown)
        if len(self.classes_) < 2:
            hint = " Begin with rows of two classes; others may come later." if self._is_growing else ""
            raise InvalidDataError(
                f"The number of classes has to be greater than one; got {len(self.classes_)} class ({self.classes_!r})."
                + hint
            )

    def _weights_of_outputs(self, summaries: Sequence[BlockSummary]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        name, given = f"{type(self).__name__}(class_weight=...)", self.class_weight
        if isinstance(given, str) and given == "balanced":
            counts = np.zeros(len(self.classes_))
            for s in summaries:
                if s.classes is not None and s.counts is not None:
                    counts[np.searchsorted(self.classes_, s.classes)] += s.counts
            weights: AnyArray = counts.sum() / (len(counts) * np.maximum(counts, 1))
        elif given is None:
            weights = np.ones(len(self.classes_))
        elif isinstance(given, dict):
            if self._is_growing:  # it may name classes that have yet to come
                known = set(self.classes_.tolist())
                given = {label: weight for label, weight in given.items() if label in known}
            weights = weights_of_classes(name, given, self.classes_)
        else:
            raise InvalidParameterError(f"{name} must be a dict, 'balanced' or None. Got {given!r}.")
        each = tuple(float(weight) for weight in weights)
        return (each[1:], each[:1]) if len(each) == 2 else (each, (1.0,) * len(each))

    def _shape_model(self, coef: AnyArray, intercept: AnyArray) -> tuple[AnyArray, AnyArray]:
        return coef, intercept


@inherit_docs
@dataclass(eq=False, repr=False)
class SGDRegressor(AbstractLinearRegressor, AbstractSGD):
    """Linear regression (least squares, Huber, support vector, quantile, Poisson, Gamma) trained by parallel SGD.

    Minimises over w and b::

        (1/n) sum_i loss(w'x_i + b, y_i) + alpha R(w)

    It has the parameters, defaults and fitted attributes of `sklearn.linear_model.SGDRegressor`. Further parameters set
    where training runs and how ranks synchronise. Scale the features first: SGD is sensitive to their scale.

    Parameters
    ----------
    loss : {"squared_error", "huber", "epsilon_insensitive", "squared_epsilon_insensitive", "quantile", "poisson", \
"gamma", "tweedie"} or `dsgd.CustomLoss`, default "squared_error"
        The loss, by name or as a custom loss. The last three names are half deviances with a log link: w'x + b is the
        logarithm of the mean, ``predict`` returns the mean, and ``score`` the share D2 of the deviance that is
        explained, as in `sklearn.linear_model.PoissonRegressor`. Targets must be zero or more with "poisson" and with
        "tweedie" of a power below 2, and above zero otherwise.
    quantile : float, default 0.5
        The quantile that ``loss="quantile"`` predicts, in (0, 1).
    tweedie_power : float, default 1.5
        Power of ``loss="tweedie"``, in [1, 2]: the variance grows like the mean to this power. 1 is "poisson", 2 is
        "gamma".
    tol : float or None, default 1e-3
        Stop once the objective (training loss plus penalty) or, with `early_stopping`, the validation score has not
        improved by `tol` for `n_iter_no_change` epochs. None trains for exactly `max_iter` epochs.
    learning_rate : str, `dsgd.local.Cyclical` or `dsgd.local.OneCycle`, default "invscaling"
        Step size. ``"optimal"``: 1/(alpha (t0 + t)). ``"constant"``: eta0. ``"invscaling"``: eta0/t^power_t.
        ``"adaptive"``: eta0, divided by 5 on plateaus. ``"pegasos"``: 1/(alpha t). ``"per_epoch"``: 1/(alpha epoch).
        ``"triangular"``, ``"triangular2"`` and ``"exp_range"`` rise from eta0 and fall again in cycles, ``"one_cycle"``
        once; the objects set the peak and the number of steps. t counts the samples of the rank.
    power_t : float, default 0.25
        Exponent of ``"invscaling"``. Values below zero, with which rates grow, are deprecated as in scikit-learn.
    validation_fraction : float, default 0.1
        Share of rows held out. One rank holds out the same rows as scikit-learn's ``ShuffleSplit`` with the same
        `random_state`; each of several ranks draws from its own rows.

    Attributes
    ----------
    coef_ : array, shape (n_features,)
        Weights.
    intercept_ : array, shape (1,)
        Intercept.


    See Also
    --------
    dsgd.sync.LocalSGD : The synchronisation frequency.

    Examples
    --------
    >>> import numpy as np
    >>> from dsgd import SGDRegressor
    >>> X = np.linspace(-1, 1, 200)[:, None]
    >>> model = SGDRegressor(random_state=0).fit(X, 2 * X.ravel())
    >>> round(model.score(X, 2 * X.ravel()), 2)
    1.0
    """

    _is_classification: ClassVar[bool] = False
    loss_functions = losses_for(classification=False)

    loss: str | CustomLoss = "squared_error"
    _: KW_ONLY
    learning_rate: LearningRate = "invscaling"
    power_t: float = 0.25
    quantile: float = 0.5
    tweedie_power: float = 1.5

    @notifies_callbacks
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train for one epoch on these rows, continuing from the last call.

        The state of the ranks continues with the model: the memory of the strategy, of its compressor and of the local
        rule, and the position of random numbers. So with ``shuffle=False``, k calls on the same rows equal one `fit` of
        k epochs, bit for bit. A different number of ranks takes over the state as from a checkpoint. After a change of
        `sync` or `optimizer`, with sparse rows after dense ones, and after `fit`, the state is reset.

        Parameters
        ----------
        X, y, sample_weight
            As for `fit`.

        Returns
        -------
        self
        """
        check_whole_fit(self)
        self._train(X, y, sample_weight, resumed(self))
        return self

    def to_sklearn(self) -> Any:
        """Return the plain scikit-learn estimator with the same coefficients.

        Returns
        -------
        sklearn.linear_model.SGDRegressor
            Fitted; predicts without dsgd. A custom loss is left out. For other losses that the class does not have, a
            `QuantileRegressor`, `PoissonRegressor`, `GammaRegressor` or `TweedieRegressor`.
        """
        check_is_fitted(self)
        return to_plain(self, peer_of(self.loss), ())

    # -- hooks of the base ---------------------------------------------------------------------------------------

    def _classes(self) -> None:
        return None

    @property
    def _deviance(self) -> Deviance | None:
        return Deviance(str(self.loss), loss_parameter(self)) if self._has_log_link else None

    @property
    def _has_log_link(self) -> bool:
        return isinstance(self.loss, str) and self.loss in LOSSES and LOSSES[self.loss].has_log_link

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self._has_log_link
        return tags

    def _learn_targets(self, summaries: Sequence[BlockSummary]) -> None:
        """Regression targets are taken as they are."""

    def _weights_of_outputs(self, summaries: Sequence[BlockSummary]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (1.0,), (1.0,)

    def _shape_model(self, coef: AnyArray, intercept: AnyArray) -> tuple[AnyArray, AnyArray]:
        return coef.ravel(), intercept
