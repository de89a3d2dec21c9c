"""Means over ranks of compressed vectors.

`mean` says for each compressor how its payloads are summed, and what that costs; `factors` (PowerSGD) and `gtopk` have
ways of their own, `encoding` has ranks that share memory encode once. Called by strategies, by way of
`dsgd.sync.compression`, and by the hooks for torch. Begin with `mean`.
"""

__all__: list[str] = []
