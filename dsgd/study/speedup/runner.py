"""Running the study of speed-up.

What is timed is what a user waits for: a call of ``fit``, from its checks to its last synchronisation. Rows of a
generated set are made on the workers that train on them, a chunk per task, and are there before a fit begins; those of
a set on disk are sent there before. Code is compiled before the first timed fit of every way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sklearn.linear_model import SGDClassifier as Peer

from dsgd.datasets import TWINS
from dsgd.estimators import SGDClassifier
from dsgd.study.frame.data import StudyData, load_or_keep, place
from dsgd.study.frame.measure import score
from dsgd.study.frame.rows import Row, StudyRun
from dsgd.study.frame.runner import Record, run_grids
from dsgd.study.frame.workers import place_name
from dsgd.study.speedup.grid import SpeedupRun, SpeedupStudy, Way

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["run_speedup_study"]

# Blocks of each worker.
_CHUNKS: Final = 4
_MAKING_S: Final = 3600.0


def run_speedup_study(
    study: SpeedupStudy,
    out: str | os.PathLike[str],
    *,
    scheduler: str | None = None,
    force: bool = False,
    command: str | None = None,
) -> Iterator[StudyRun]:
    """Make the fits of a study that have no row yet; yield every fit: by datasets, seeds, epochs, ways.

    Parameters and errors are those of `dsgd.study.run_study`.
    """
    record = Record(out, force=force, command=command, cluster=place_name(scheduler))
    n_workers = max(study.ranks)
    for source in study.data:
        begin = time.perf_counter()
        data = load_or_keep(source, study.dtype, record.rows())
        measure = partial(_measure, made_s=time.perf_counter() - begin)
        runs = study.runs(data.name, len(data.y), len(data.y_test))
        yield from run_grids(record, [(n_workers, [(data, runs)])], measure, scheduler)


def _measure(client: Client | None, data: StudyData, runs: Sequence[SpeedupRun], *, made_s: float) -> Iterator[Row]:
    """Fit in all ways on one dataset; yield the contents of the rows."""
    assert client is not None  # the grid asks for workers
    study, described = runs[0].study, data.describe()
    ways = {way: _Fit(way, client, data, study, made_s) for way in dict.fromkeys(run.way for run in runs)}
    for run in runs:
        yield {**described, **ways[run.way].measure(run.epochs, run.seed)}


class _Fit:
    """Fits of one way on one dataset, with its rows where they are wanted and its code compiled.

    Parameters
    ----------
    way : Way
        The way.
    client : distributed.Client
        The workers.
    data : StudyData
        The rows, in this process.
    study : SpeedupStudy
        Has the parameters of the model.
    made_s : float
        Seconds in which this process has loaded or made the rows.
    """

    def __init__(self, way: Way, client: Client, data: StudyData, study: SpeedupStudy, made_s: float) -> None:
        self._way, self._data, self.made_s = way, data, made_s
        self._rows: tuple[Any, Any] = data.X, data.y
        kind: Callable[..., Any] = Peer if way.place == "scikit-learn" else partial(SGDClassifier, n_jobs=way.ranks)
        self._make = partial(kind, loss=study.loss, alpha=study.alpha, average=True, tol=None)
        if way.place in ("workers", "workers, rows sent"):
            self._make = partial(self._make, client=client)
        if way.place == "workers":
            begin = time.perf_counter()
            self._rows = _rows_there(client, data, way.ranks, study.dtype), None
            self.made_s = time.perf_counter() - begin
        if way.place != "scikit-learn":
            self._make(max_iter=1).fit(*self._rows)

    def measure(self, epochs: int, seed: int) -> Row:
        """Fit; return what the row says of it."""
        model = self._make(max_iter=epochs, random_state=seed)
        begin = time.perf_counter()
        model.fit(*self._rows)
        fit_s = time.perf_counter() - begin
        test = score(model, self._data.X_test, self._data.y_test)
        row = {"fit_s": fit_s, "made_s": self.made_s, "test_accuracy": test["accuracy"]}
        if self._way.place == "scikit-learn":
            return row
        # Of ranks that work side by side, the stages of the slowest.
        stages: dict[str, float] = {}
        for entry in model.fit_report_["stages"]:
            stages[entry["stage"]] = max(stages.get(entry["stage"], 0.0), entry["seconds"])
        return {**row, "train_s": stages["train"], "bytes_sent": int(model.ledger_.totals()["bytes_sent"])}


def _rows_there(client: Client, data: StudyData, ranks: int, dtype: str) -> list[Any]:
    """Return blocks that lie on so many workers, made by them where they are generated; wait until they are there."""
    from distributed import wait

    workers = sorted(client.nthreads())
    recipe = TWINS.get(data.name.removesuffix("-like")) if data.bayes_accuracy is not None else None
    if recipe is None or len(workers) < ranks:
        # Says what to do where there are too few workers.
        return place(client, (data.X, data.y), ranks, "shuffled")[0]
    edges = np.linspace(0, len(data.y), _CHUNKS * ranks + 1).astype(int).tolist()
    blocks = [
        client.submit(recipe.twin.rows, first, stop, dtype=dtype, workers=[workers[k // _CHUNKS]], pure=False)
        for k, (first, stop) in enumerate(pairwise(edges))
    ]
    with client.as_current():  # it is never the default one
        wait(blocks, timeout=_MAKING_S)
    return blocks
