"""The transports: one module each, all with the interface of `dsgd.comm.base.AbstractTransport`.

`inproc` (threads of one process), `tcp`, `shm` (memory inside a host, TCP between hosts), `rpc` (the workers' own
ports), `nested` (threads of several processes), and `carried`, for wires of other packages; `mailboxes` go with
them. Chosen by `dsgd.runtime`. Begin with `inproc`; a new wire is a copy of it, or a `carried.Carrier`.
"""

__all__: list[str] = []
