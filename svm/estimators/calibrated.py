"""What classifiers with calibration curves share: `dsgd.svm.calibration`, fitted and applied."""

from __future__ import annotations

from sklearn.exceptions import NotFittedError

from dsgd.inputs.docstrings import inherit_method_docs
from dsgd.svm.calibration import METHODS, probabilities_of
from dsgd.types import FloatMatrix


@inherit_method_docs
class AbstractCalibrated:
    """A classifier that may have curves from decision values to probabilities."""

    probability: bool | str

    #: What was fitted: which of `METHODS`, None if none, and a curve for each output, for its positive sign.
    _curves: tuple[str | None, list[FloatMatrix]] = (None, [])

    #: Seed of the folds, the same on all ranks; None leaves rows in order.
    _fold_seed: int | None = 0

    def _curve_method(self) -> str | None:
        """Return which of `METHODS` `probability` is, None if none."""
        return self.probability if isinstance(self.probability, str) and self.probability in METHODS else None

    def _positive_probabilities(self, scores: FloatMatrix) -> FloatMatrix:
        """Return the probability of the positive sign of each output, shape (n, n_outputs)."""
        method, curves = self._curves
        if method is None or method != self.probability:
            raise NotFittedError(
                f"predict_proba is not available when not fitted with probability={self.probability!r}"
            )
        return probabilities_of(method, curves, scores)
