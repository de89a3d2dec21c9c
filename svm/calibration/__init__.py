"""Probabilities from decision values: sigmoids, monotone curves, and the folds of the rows that they are fitted to.

`curves` has the maps of ``probability="sigmoid"`` and ``"isotonic"``, `platt` those of LIBSVM, for which ``True``
stands. Estimators call both. Begin with `curves`.
"""

__all__: list[str] = []
