"""The client's side of a job: planning, admission, watching, and recovery after failures.

`job` runs a whole job, and decides how it continues when a worker is lost; `job_handle` is the job as the scheduler
sees it. `client` chooses the cluster. `cluster` knows which workers can run ranks, and bounds waits for
them. Estimators call it through `dsgd.runtime.run_on_cluster`. Begin with `job`.
"""

__all__: list[str] = []
