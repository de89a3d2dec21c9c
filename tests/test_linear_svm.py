"""Linear SVMs: the contract of scikit-learn, parity with LIBLINEAR, and the certificate."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dsgd.svm import LinearSVC, LinearSVR


@parametrize_with_checks(
    [
        LinearSVC(),
        LinearSVC(loss="hinge"),
        LinearSVC(solver="dual_cd"),
        LinearSVC(class_weight="balanced"),
        LinearSVR(),
        LinearSVR(loss="squared_epsilon_insensitive"),
    ]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_sklearn_contract(estimator, check):
    """Both estimators keep scikit-learn's whole contract, with no expected failure."""
    check(estimator)
