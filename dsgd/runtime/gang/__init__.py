"""The client's side of a job: planning, admission, watching, and recovery after failures.

`job` runs a whole job, `job_handle` is the job as the scheduler sees it, `blocks` the rows it trains on. `recovery` and
`policy` decide how it continues when a worker is lost, `client` chooses the cluster, and `plugins` installs what a job
needs there. Estimators call it through `dsgd.runtime.run_on_cluster`. Begin with `job`.
"""

__all__: list[str] = []
