"""The part of a job in Dask's workers: the task that is a member of a gang.

`member` is the task, `rendezvous` connects it with the others, over `wires`, by the ports of Dask's workers where no
other may be opened; `store` and `plugin` keep what outlives a task. Sent there by `dsgd.runtime.gang`. Begin with
`member`.
"""

__all__: list[str] = []
