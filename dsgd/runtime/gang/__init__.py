"""The client's side of a job: planning, admission, watching, and recovery after failures.

`job` is the whole of it, `job_handle` the job as the scheduler knows it, `blocks` the rows it trains on; `recovery` and
`policy` say what becomes of it when a worker is lost, `client` on which cluster it runs, `plugins` puts what it needs
there. Called by estimators through `dsgd.runtime.run_on_cluster`. Begin with `job`.
"""

__all__: list[str] = []
