"""The exact solvers of kernel SVMs: a dual problem in, a solution and its gap out.

`problem` has the types that all solvers share. `direct` solves small problems, `class_pairs` the small pairs of many
classes, `block` all others: blocks of violating variables, each solved by `smo`. `elimination` and `inactive` remove
samples and bring them back, `growth` begins with few of them. `pairwise` is the published algorithm. Called by the
estimators. Begin with `block`.
"""

__all__: list[str] = []
