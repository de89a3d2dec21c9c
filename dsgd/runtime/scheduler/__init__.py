"""What runs inside Dask's scheduler: the queue of jobs, leases of workers, rendezvous, and failures.

`plugin` takes the calls, `registry` decides without knowing Dask, `jobs` is what it keeps of each job, `job_history`
and `dashboard` are for those who look. Put there by `dsgd.runtime.gang`. Begin with `registry`.
"""

__all__: list[str] = []
