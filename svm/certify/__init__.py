"""Safe screening: coefficients that a duality gap proves, for kernel and linear SVMs.

`screening` names the dual variables that sit at a bound at every optimum; `linear` does so for `LinearSVC` and
`LinearSVR`. Called by the estimators and by paths. Begin with `screening`.
"""

__all__: list[str] = []
