"""Memory shared by ranks: threads of a process, or processes of a host.

`neighbours` finds processes of one host. `segment` is the memory, of processes or of threads of one, and `streams`
moves frames through it, or from a peer's own memory where the kernel allows it. `cores` moves threads between cores.
Called by `dsgd.comm.wires` and `dsgd.comm.frame_exchange`. Begin with `streams`.
"""

__all__: list[str] = []
