"""The exact solvers of linear SVMs: weights, dual variables and the gap between them.

`problem` defines the objective and certifies solutions, `rows` holds the rows, and `solve` picks a method: `dual_cd`,
`newton`, or `cocoa` if several ranks hold the rows. `l1` has the solver of the L1 penalty. Called by the estimators and
by `dsgd.svm.distributed`. Begin with `problem`.
"""

__all__: list[str] = []
