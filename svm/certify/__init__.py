"""What a duality gap proves of the single samples: safe screening for kernel SVMs and for linear ones.

`screening` names the dual variables that sit at a bound at every optimum; `linear` does so for `LinearSVC` and
`LinearSVR`. Called by the estimators and by paths. Begin with `screening`.
"""

__all__: list[str] = []
