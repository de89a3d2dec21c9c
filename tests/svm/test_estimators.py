"""The kernel SVMs keep scikit-learn's contract and give scikit-learn's attributes."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dsgd.svm import SVC, SVR, NuSVC, NuSVR, OneClassSVM


@pytest.mark.filterwarnings("ignore:The margin between two classes:RuntimeWarning")
# Some of the checks' sets have a class of 3 in 13 rows, for which the default nu=0.5 is infeasible, as in scikit-learn.
@parametrize_with_checks([SVC(), SVC(kernel="precomputed"), NuSVC(nu=0.25), SVR(), NuSVR(), OneClassSVM()])
def test_sklearn_contract(estimator, check):
    """Every kernel SVM keeps scikit-learn's whole contract, with no expected failure."""
    check(estimator)
