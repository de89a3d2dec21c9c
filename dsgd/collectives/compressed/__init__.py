"""Means over ranks of compressed vectors.

`mean` chooses how the payloads of each compressor are summed: `parts`, `factors` (PowerSGD) and `gtopk` have algorithms
of their own. `cost` has the bytes of each, `encoding` charges the ledger. Called by strategies, by way of
`dsgd.sync.compression`, and by the hooks for torch. Begin with `mean`.
"""

__all__: list[str] = []
