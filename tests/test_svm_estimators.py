"""The kernel SVMs keep scikit-learn's contract and give scikit-learn's attributes."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from dsgd.svm import SVC, SVR, OneClassSVM


@parametrize_with_checks([SVC(), SVC(kernel="precomputed"), SVR(), OneClassSVM()])
def test_sklearn_contract(estimator, check):
    """Every kernel SVM keeps scikit-learn's whole contract, with no expected failure."""
    check(estimator)
