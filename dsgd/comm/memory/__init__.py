"""Memory shared by ranks: threads of a process, or processes of a host.

Between processes of one host: `neighbours` finds them, `segment` is the memory, `ring` a stream of bytes through it
(`streams` is its compiled part), `pulling` reads a peer's own memory where the kernel allows it. Between threads of
one process: `shared_array` and `window`. Called by `dsgd.comm.wires` and `dsgd.comm.frame_exchange`. Begin with `ring`.
"""

__all__: list[str] = []
