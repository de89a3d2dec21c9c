"""Generalised linear models with scikit-learn's objectives and attributes, solved to a certified duality gap.

::

    model = Lasso(alpha=0.1).fit(X, y)
    model.dual_gap_  # the objective is within this of its minimum

`losses` has the losses with their duals, `columns` the columns of X with compiled loops, `problem` the objective and
its certificate. `sparse_newton` solves problems with an L1 penalty on the `gram` matrix of a working set, `newton`
those without one, `quasi_newton` those of many dense `rows` or of rows on several ranks, and `multinomial` the logistic
one of several classes. `objectives` makes the problem of a model from its rows, and `fits` says which solver it gets,
in one process or on the ranks of a cluster (`distributed`, `cluster`): the solvers are the same, and add up what they
need over the rows of all ranks.
"""

from dsgd.linear_model.elastic_net import ElasticNet, Lasso
from dsgd.linear_model.logistic import LogisticRegression
from dsgd.linear_model.poisson import PoissonRegressor
from dsgd.linear_model.ridge import Ridge

__all__ = ["ElasticNet", "Lasso", "LogisticRegression", "PoissonRegressor", "Ridge"]
