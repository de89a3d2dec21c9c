"""The transports: one module each, all with the interface of `dsgd.comm.base.AbstractTransport`.

`inproc` (threads of one process, or of several), `tcp`, `shm` (memory inside a host, TCP between hosts), and `carried`
(the workers' own ports, and wires of other packages); `mailboxes` go with them. Chosen by `dsgd.runtime`. Begin with
`inproc`; a new wire is a copy of it, or a `carried.Carrier`.
"""

__all__: list[str] = []
