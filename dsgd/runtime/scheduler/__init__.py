"""The part of a job in Dask's scheduler: queue, leases of workers, rendezvous, failures.

`plugin` receives calls, and `registry` decides, independently of Dask. `jobs` has its records of jobs, gets workers
ready and knows which are silent, and `dashboard` shows them to users. `dsgd.runtime.gang` installs it. Begin with
`registry`.
"""

__all__: list[str] = []
