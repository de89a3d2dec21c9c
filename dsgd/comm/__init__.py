"""Communication between ranks: transports, mailboxes and topologies.

`base` is the contract of every wire; collectives and strategies see nothing else of this folder, but for `topology`.
Begin with `base`, then `wires.inproc`, the simplest wire there is. The rooms:

- `topology`: graphs of ranks, and the weights and order of an exchange with neighbours; pure functions;
- `wires`: one module per wire: threads of one process, TCP, shared memory, the workers' ports, others;
- `sockets`: connections between ranks: how they are made, checked and read;
- `memory`: memory that threads of a process, or processes of a host, share.

`frames` defines headers, and the flag that ends every wait; `deadlines` bounds each.
`frame_exchange` sends and receives at once where that takes several steps, over sockets, through memory or both.

Where a rank waits, and how long it looks before it sleeps, is a table of `docs/architecture.rst`.
"""

__all__: list[str] = []
