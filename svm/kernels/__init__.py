"""Kernel values, cached kernel rows, and sums over them.

`functions` has the kernels, `values` blocks of their values, `tiles` those of dense rows in one call; `matrix` the
kernel matrix of a training set, never held as a whole, with its `cache` of rows and its `products`; `prediction` the
sums behind a decision function. `threads` is the pool that computes them, `peers` the other ranks that hold rows.
Called by the solvers above. Begin with `functions`.
"""

__all__: list[str] = []
