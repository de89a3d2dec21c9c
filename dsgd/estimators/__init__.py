"""`SGDClassifier` and `SGDRegressor`, compatible with scikit-learn."""

from dsgd.estimators.classifier import SGDClassifier
from dsgd.estimators.regressor import SGDRegressor

__all__ = ["SGDClassifier", "SGDRegressor"]
