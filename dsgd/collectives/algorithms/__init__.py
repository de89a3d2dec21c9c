"""The algorithms of sums, broadcasts and gathers: one module each.

`plan` is the form in which most of them are written: who sends which part to whom in which step, as data. `tree` and
`ring` are the plain ones, `hierarchical` goes by levels, `packing` finds the trees that `packed_trees` sends along.
`by_name` lists those of sums; `schedule`, `whole` and `calls` are the same collectives for wires that run them as one.
Called by `dsgd.collectives.Group`, which chooses among them. Begin with `plan`, then `ring`.
"""

__all__: list[str] = []
