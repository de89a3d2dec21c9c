"""Kernel values, cached kernel rows, and sums over them.

`functions` has the kernels and blocks of their values, of `rows` that are made ready; `products` sums of values times
coefficients; `matrix` the kernel matrix of a training set, never held as a whole, with its `cache`. `threads` is the
pool that computes them, `peers` the other ranks that hold rows.
Called by the solvers above. Begin with `functions`.
"""
