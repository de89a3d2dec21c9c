"""The algorithms of sums, broadcasts and gathers, one file for each family.

`plan` is the form in which most of them are written: who sends which part to whom in which step, as data. `rings` and
`trees` are the plain ones, `hierarchical` goes by levels, `packing` finds trees that share links and sends along them.
`whole` lists those of sums by name, and has the same collectives for wires that run them as one. Called by
`dsgd.collectives.Group`, which chooses among them. Begin with `plan`, then `rings`.
"""

__all__: list[str] = []
