"""What a detached fit takes beside a plain one, on two worker processes, in turns.

The plain fit and the detached one train the same model on the same rows: arrays of this process, and rows that are on
the cluster. The seconds of a detached fit are those from `submit` until its result is here; how long `submit` itself
takes is shown apart.

    python -m benchmarks run detached --out rows.jsonl
"""

from __future__ import annotations

import statistics
from typing import Any

import dask.array as da
import numpy as np

import dsgd
from benchmarks.common.measuring import Options, Rows, in_turns, median_s, report, timed, workers
from dsgd import SGDClassifier

PAGE = "cluster"
QUICK_S = 15
QUICK = "five turns"
REPEATS = (25, 5)

SHAPES = ((2_000, 20), (100_000, 20))


def run(options: Options, rows: Rows) -> None:
    """Fit in turns: plain and detached."""
    columns = (
        "rows:, | where = case | plain, s = plain_s:.3f | detached, s = detached_s:.3f | more, s = more_s:.3f | "
        "submit alone, s = submit_s:.3f"
    )
    with workers(2) as client, report(rows, "five epochs, two workers", columns) as add:
        for n_rows, n_features in SHAPES:
            rng = np.random.default_rng(0)
            X = rng.standard_normal((n_rows, n_features)).astype(np.float32)
            y = (X[:, 0] > 0).astype(int)
            on_cluster = [da.from_array(part, chunks=(n_rows // 2, *part.shape[1:])).persist() for part in (X, y)]
            for where, given in (("this process", (X, y)), ("the cluster", on_cluster)):
                submitting: list[float] = []

                def model() -> SGDClassifier:
                    return SGDClassifier(sync=256, max_iter=5, tol=None, random_state=0)

                def plain(given: Any = given) -> Any:
                    return model().set_params(client=client).fit(*given)

                def detached(given: Any = given, submitting: list[float] = submitting) -> Any:
                    sent = timed(dsgd.submit, model(), *given, client=client)
                    submitting.append(sent.seconds)
                    fitted = sent.value.result()
                    sent.value.forget()
                    return fitted

                timings = in_turns({"plain": plain, "detached": detached}, options.repeats, warm_up=2, alternate=True)
                assert np.array_equal(timings["plain"][0].value.coef_, timings["detached"][0].value.coef_)
                seconds = {name: median_s(found) for name, found in timings.items()}
                more = statistics.median(
                    b.seconds - a.seconds for a, b in zip(timings["plain"], timings["detached"], strict=True)
                )
                taken = {f"{name}_s": value for name, value in seconds.items()} | {"more_s": more}
                add(case=where, rows=n_rows, submit_s=statistics.median(submitting), **taken)
