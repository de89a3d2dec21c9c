"""The part of a job in Dask's scheduler: queue, leases of workers, rendezvous, failures.

`plugin` takes the calls, `registry` decides without knowing Dask, `jobs` is what it keeps of each job, `job_history`
and `dashboard` are for those who look. Put there by `dsgd.runtime.gang`. Begin with `registry`.
"""

__all__: list[str] = []
