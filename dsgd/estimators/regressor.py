"""Linear regression trained by parallel SGD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

from sklearn.utils.validation import check_is_fitted

from dsgd.estimators.base import AbstractSGD
from dsgd.estimators.parameters import check_whole_fit, loss_parameter, losses_for
from dsgd.estimators.plain import peer_of, to_plain
from dsgd.estimators.start import resumed
from dsgd.inputs import BlockSummary, notifies_callbacks
from dsgd.inputs.docstrings import inherit_docs
from dsgd.inputs.prediction import AbstractLinearRegressor
from dsgd.kernels import LOSSES
from dsgd.local import CustomLoss
from dsgd.local.cycles import LearningRate
from dsgd.local.objective import Deviance
from dsgd.types import AnyArray


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
