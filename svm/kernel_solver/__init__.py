"""The exact solvers of kernel SVMs: a dual problem in, a solution and its gap out.

`problem` has the types that all solvers share, and `solve` says which of them a problem gets. `pairs` solves the small
pairs of many classes, `block` large problems: blocks of violating variables, each solved by `smo`, around a `state`.
`elimination` has the schedules by which samples are left out, `growth` does it. `pairwise` is the published algorithm.
Called by the estimators. Begin with `block`.
"""
