"""The exact solvers of linear SVMs: weights, dual variables and the gap between them.

`problem` holds the rows, defines the objective and certifies solutions, with its `kernels`, and `solve` picks a
method: coordinate `descent`, in one process or on all ranks, or `newton`. An L1 penalty is solved by
`dsgd.linear_model`. Called by the estimators and by `dsgd.svm.distributed`. Begin with `problem`.
"""
