"""Socket connections between ranks.

`mesh` connects a rank with its peers, some at once and others when they are needed: `connector` calls them, `acceptor`
lets them in, and the table of `link` keeps the two from making two connections of one. `listener` is the port,
`handshake` finds out that both belong to the same job. A connection is a `link`, which moves parts of frames without
waiting. Frames that do not leave at once are moved both ways by `dsgd.comm.frame_exchange`. Called by
`dsgd.comm.wires`. Begin with `mesh`.
"""

__all__: list[str] = []
