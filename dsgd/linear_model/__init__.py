"""Generalised linear models with scikit-learn's objectives and attributes, solved to a certified duality gap.

::

    model = Lasso(alpha=0.1).fit(X, y)
    model.dual_gap_  # the objective is within this of its minimum

A problem is a datafit, a penalty and a solver. `problem` has the losses with their duals, the objective and its
certificate, `columns` the columns of X with compiled loops and their Gram matrix. `newton` solves problems without
an L1 penalty, the multinomial one and, on working sets, those with one, `quasi_newton` those of many dense rows or of
rows on several ranks, by the same systems of equations. `fits` says which solver a model gets, in one
process or on the ranks of a cluster: the solvers are the same, and add up what they need over the rows of all ranks.
`dsgd.svm.LinearSVC` uses the losses, the columns, the conjugate gradients and the L1 solver. The names below are loaded
when they are first used: a worker that solves needs no estimators, and no scikit-learn.
"""

from typing import TYPE_CHECKING

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.linear_model.models import ElasticNet, Lasso, LogisticRegression, PoissonRegressor, Ridge

__all__ = ["ElasticNet", "Lasso", "LogisticRegression", "PoissonRegressor", "Ridge"]


__getattr__ = loaded_on_use(__name__)
