"""Grids of C and gamma: `dsgd.svm.svm_path`.

`grid` is what users call, `warm_starts` solves one problem at ascending costs, `cluster` does so on the ranks of a
gang. Begin with `grid`.
"""

__all__: list[str] = []
