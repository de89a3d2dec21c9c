"""`SGDClassifier` and `SGDRegressor`, compatible with scikit-learn.

They are loaded when they are first used: a worker packs rows with a module of this package, and needs no scikit-learn.
"""

from typing import TYPE_CHECKING

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.estimators.sgd import SGDClassifier, SGDRegressor

__all__ = ["SGDClassifier", "SGDRegressor"]

__getattr__ = loaded_on_use(__name__)
