"""Memory shared by ranks: threads of a process, or processes of a host.

`neighbours` finds the processes of one host, `segment` is the memory (also that of threads, and the window of fused
rounds), and `streams` moves bytes through it, or reads a peer's own memory where the kernel allows that. `cores` says
on which core a rank runs. Called by `dsgd.comm.wires` and `dsgd.comm.frame_exchange`. Begin with `segment`.
"""

__all__: list[str] = []
