"""Socket connections between ranks.

`listener` waits for peers, `handshake` finds out that they belong to the same job, `mesh` connects all ranks with all
others. A connection is a `link`; `duplex` moves parts of frames without waiting. Frames that do not leave at once are
moved both ways by `dsgd.comm.frame_exchange`. Called by `dsgd.comm.wires`. Begin with `mesh`.
"""

__all__: list[str] = []
