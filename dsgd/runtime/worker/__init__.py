"""The part of a job in Dask's workers: the task that is a member of a gang.

`member` is the task and takes its blocks of rows, `rendezvous` connects it with the others and gives its ranks
mailboxes; `wires` are relays where no port may be opened. `process` keeps Dask out of the way of ranks, `failures`
turns what went wrong into errors that name a cause, and `store` and `plugin` keep what outlives a task. Sent there by
`dsgd.runtime.gang`. Begin with `member`.
"""

__all__: list[str] = []
