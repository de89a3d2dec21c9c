"""Strategies beyond the main ones: the laws hold for them as for all others, and nothing else is promised.

They have no page of their own, no published figures that are measured, and no prediction (`dsgd.sim.predict`). They
train on simulated clusters as on real ones, and are imported from `dsgd.sync`. There is a file for each family:
`diloco`, `admm` and `anytime`.
"""

__all__: list[str] = []
