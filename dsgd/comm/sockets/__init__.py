"""Socket connections between ranks.

`mesh` connects a rank with its peers, some at once and others when they are needed. `listener` is the port and lets
them in, `handshake` finds out that both belong to the same job. A connection is a `link`, and `table` keeps two ranks
that call each other at once from making two of one. Frames that do not leave at once are moved both ways by
`dsgd.comm.frame_exchange`. Called by `dsgd.comm.wires`. Begin with `mesh`.
"""

__all__: list[str] = []
