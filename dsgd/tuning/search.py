"""The search for the period, strategy, compressor and step size that reach a target soonest within a budget.

The cost model of the cluster (`dsgd.sim.known_costs`) says what an epoch of each candidate takes, and leaves out what
cannot win. The others run for real by successive halving (`dsgd.tuning.space`, with sources). A part of the rows is
held out once, by seed, and every candidate is scored on it after each epoch, by the ranks themselves.

Budget: a fit gets as many epochs as fit into its slice, by the seconds that its epochs took before, or are predicted to
take, and a callback ends it after the epoch in which the slice is over. Where an epoch of all rows is too long for a
slice, fewer rows are used. What was promised is the whole call: measuring the cluster and placing rows count.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import scipy.sparse as sp
from sklearn.base import clone

from dsgd.errors import (
    DivergenceWarning,
    GangTimeoutError,
    IncompatiblePartsError,
    InvalidDataError,
    InvalidParameterError,
)
from dsgd.estimators.base import AbstractSGD
from dsgd.estimators.tables import encoded
from dsgd.inputs.blocks import BlockSummary, Spread, check_summaries, count_threads, make_block, summarise
from dsgd.inputs.frames import validated
from dsgd.inputs.rows import Rows
from dsgd.inputs.sources import is_distributed, scatter_rows, to_delayed_blocks
from dsgd.inputs.table_files import with_files_opened
from dsgd.progress import Notice, ProgressEvent, StopTraining
from dsgd.sim import CostModel, SavedCosts, SimulatedCluster, Workload, known_costs
from dsgd.sim.cost import Layout, estimated_costs
from dsgd.tuning import space
from dsgd.tuning.result import Trial, TuningResult
from dsgd.validation import check_number, warn_user

if TYPE_CHECKING:
    from distributed import Client


# Below this budget a cluster is not measured: it would take most of the time.
_LEAST_TO_MEASURE_S: Final = 30.0
# Share of the budget kept for the work after the last fit, and for a fit that ends late.
_RESERVE: Final = 0.05
# Shares of the budget in which the cluster may be measured again and again, and once.
_MEASURING: Final = 0.15
_LONGEST_MEASURING: Final = 0.35
_MOST_CANDIDATES: Final = 48
_LEAST_CANDIDATES: Final = 6
_MOST_EPOCHS: Final = 1000
# Epochs that a slice of the first rung should hold.
_EPOCHS_OF_A_SLICE: Final = 3
# Assumed cost of a fit besides its epochs, until the first is measured.
_OVERHEAD_S: Final = {"threads": 0.02, "cluster": 0.15}
# How much longer than expected something may take before the budget is in danger.
_CAUTION: Final = 1.25
_RECENT: Final = 3


def tune(
    estimator: Any,
    X: Any,
    y: Any = None,
    client: Client | None = None,
    *,
    budget: float = 60.0,
    margin: float = 0.003,
    validation_fraction: float = 0.2,
    strategies: Sequence[Any] = ("local", "minibatch"),
    compressors: Sequence[Any] | None = None,
    random_state: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> TuningResult:
    """Find the synchronisation and the step size that reach a target soonest, within a budget in seconds.

    Parameters
    ----------
    estimator : SGDClassifier or SGDRegressor
        The estimator to tune; parameters that are not searched are kept. It is not fitted.
    X, y : object
        Rows and targets, as ``fit`` takes them, but no `Rows`. The `encoder` of the estimator learns the columns of all
        rows once.
    client : distributed.Client or None, default None
        The cluster; None takes the estimator's. Without one, threads of this process train: `n_jobs` of the estimator,
        or one per core where that is None. Dask collections and svmlight files without one are trained on a local
        cluster.
    budget : float, default 60
        Seconds that the whole call may take, measuring the cluster included.
    margin : float, default 0.003
        The target is the best held-out score that any candidate reaches, less this.
    validation_fraction : float, default 0.2
        Share of rows held out.
    strategies : sequence, default ("local", "minibatch")
        Strategies to try: short names of `dsgd.sync.STRATEGIES`, or objects, as for `sync` of estimators. Their `every`
        or `batch` is searched. Strategies with servers cannot be tried, because the cost model does not cover them.
    compressors : sequence or None, default None
        Compressors to try: `AbstractCompressor`, ``"auto"`` or None (whole vectors). If models have 10,000 weights or
        more, None tries to send only the changed weights, only the largest hundredth, and half precision, besides whole
        vectors.
    random_state : int, default 0
        Seeds the held-out rows, the order of rows, and the sample of rows if not all are used.
    on_progress : callable, optional
        Called with a line of text at every step.

    Returns
    -------
    TuningResult
        The best estimator, not fitted, and every candidate. If none was measured, there is a RuntimeWarning, and the
        estimator is as it was given.

    Raises
    ------
    InvalidParameterError
        The estimator is another one, the cluster is simulated, or a number is out of range.
    InvalidDataError
        The rows cannot be trained on.
    ClusterError, GangError
        The cluster went away, or cannot train.
    """
    begin = time.perf_counter()
    check_number("tune(budget=...)", budget, low=0, open_low=True)
    check_number("tune(margin=...)", margin, low=0)
    check_number("tune(validation_fraction=...)", validation_fraction, low=0, high=1, open_low=True, open_high=True)
    if not isinstance(estimator, AbstractSGD) or isinstance(estimator, type):
        raise InvalidParameterError(
            f"tune(estimator=...) must be an SGDClassifier or SGDRegressor of dsgd. Got {estimator!r}."
        )
    if budget == math.inf:
        raise InvalidParameterError("tune(budget=...) must be a number of seconds. Got inf.")
    client = estimator._deployment.client if client is None else client
    if isinstance(client, SimulatedCluster):
        raise InvalidParameterError(
            "tune(client=...) needs a real clock: a simulated cluster has none. Use dsgd.sim.CostModel for predictions."
        )
    say = on_progress or _say_nothing
    X = with_files_opened(X)
    with _connected(client, X) as client:
        search = _Search(estimator, client, begin, float(budget), float(margin), validation_fraction, random_state, say)
        return search.run(X, y, strategies, compressors)


class _Deadline:
    """Ends a fit with the epoch in which its time is over."""

    def __init__(self, at: float) -> None:
        self._at = at

    def on_begin(self, estimator: Any) -> None:
        """Do nothing."""

    def on_event(self, estimator: Any, event: ProgressEvent | Notice) -> None:
        """Stop where time is over."""
        if isinstance(event, ProgressEvent) and time.perf_counter() > self._at:
            raise StopTraining

    def on_end(self, estimator: Any, error: BaseException | None) -> None:
        """Do nothing."""


class _Search:
    """The state of one call of `tune`."""

    def __init__(
        self,
        estimator: AbstractSGD,
        client: Any,
        begin: float,
        budget: float,
        margin: float,
        held_out: float,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self._client, self._begin, self._budget, self._margin = client, begin, budget, margin
        self._held_out, self._seed, self._say = held_out, int(seed), say
        self._end = begin + budget * (1.0 - _RESERVE)
        self._overheads = [_OVERHEAD_S["threads" if client is None else "cluster"]]
        self._classifies = estimator._is_classification
        self._estimator = clone(estimator).set_params(client__client=client)
        if client is None:
            self._ranks = count_threads(-1 if estimator.n_jobs is None else estimator.n_jobs)
            self._estimator.set_params(n_jobs=self._ranks if self._ranks > 1 else estimator.n_jobs)
        else:
            threads = sum(client.nthreads().values())
            wanted = estimator.n_jobs
            self._ranks = wanted if wanted is not None and wanted > 0 else threads

    def run(self, X: Any, y: Any, strategies: Sequence[Any], compressors: Sequence[Any] | None) -> TuningResult:
        """Place the rows, price the candidates, run them, and return the best."""
        rows = place_rows(clone(self._estimator), self._client, X, y, n_ranks=self._n_jobs, seed=self._seed)
        try:
            self._say(f"{rows.n_rows:,} rows of {rows.n_features:,} columns, {self._ranks} ranks")
            if compressors is None:
                compressors = _compressors(rows) if self._ranks > 1 else (None,)
            # A single rank has no peers to exchange with.
            ways = space.strategies_of(strategies if self._ranks > 1 else ("local",), compressors)
            saved, model = self._costs(ways, rows)
            load = rows.workload(self._held_out)
            chosen = space.candidates(self._estimator, ways, model, load, rows.row_norm)
            self._warm_up(chosen, rows)
            trials, used = self._fitting(chosen, rows)
            try:
                trials = self._halve(trials, used)
            finally:
                if used is not rows:
                    used.release()
            return self._result(trials, saved, model, rows, used)
        finally:
            rows.release()

    @property
    def _n_jobs(self) -> int | None:
        wanted = self._estimator.n_jobs
        return wanted if wanted is not None and wanted > 0 else None

    def _left_s(self) -> float:
        return self._end - time.perf_counter()

    def _costs(self, ways: Sequence[Any], rows: TuningRows) -> tuple[SavedCosts | None, CostModel]:
        """Return the cost model of this cluster: known, measured, or estimated where there is no time for it."""
        if self._ranks < 2 or self._budget < _LEAST_TO_MEASURE_S:
            return None, estimated_costs(self._ranks, ways)
        layout: Layout = "sparse" if rows.sparse else "dense"
        try:
            saved = known_costs(
                self._client,
                strategies=ways,
                layouts=(layout,),
                dtypes=(rows.dtype,),
                ranks=self._ranks,
                transport=self._estimator._deployment.transport,
                limit_s=_MEASURING * self._budget,
                deadline_s=_LONGEST_MEASURING * self._budget,
            )
        except GangTimeoutError:
            self._say("measuring the cluster takes too long: estimates take its place")
            return None, estimated_costs(self._ranks, ways)
        how = f"read from {saved.path}" if saved.reused else f"measured in {saved.seconds:.1f} s"
        self._say(f"cost of messages and rows {how}")
        return saved, saved.model

    def _warm_up(self, chosen: Sequence[space.Candidate], rows: TuningRows) -> None:
        """Train for an epoch on few rows in each way to exchange: kernels are loaded, or compiled, before a timing."""
        few = rows.thinned(LEAST_ROWS, self._seed)
        try:
            first = {candidate.sync.exchanges: candidate for candidate in reversed(chosen)}
            # Once more: a fit that has loaded kernels says little about what the next one takes besides its epochs.
            for candidate in (*first.values(), *list(first.values())[-1:]):
                guess = self._overheads[0]
                if self._left_s() > _CAUTION * guess:
                    self._run(Trial(candidate), few, 0, 0.0, few.n_rows / rows.n_all)
                    self._overheads = self._overheads[1:] or [guess]
        finally:
            if few is not rows:
                few.release()

    def _fitting(self, chosen: Sequence[space.Candidate], rows: TuningRows) -> tuple[list[Trial], TuningRows]:
        """Return the candidates for which there is time, and as many rows as there is time for."""
        left_s, overhead_s = self._left_s(), self._overheads[0]
        n = min(len(chosen), _MOST_CANDIDATES)

        def slice_of(n: int) -> float:
            return space.slice_s(left_s, space.rung_sizes(n)) / _CAUTION - overhead_s

        def wanted_s(n: int) -> float:
            return _EPOCHS_OF_A_SLICE * self._epoch_s(chosen[min(n, len(chosen)) // 2])

        while n > _LEAST_CANDIDATES and slice_of(n) < wanted_s(n):
            n -= 1
        trials = [Trial(candidate) for candidate in chosen[:n]]
        trials += [Trial(candidate, note="not run: its epochs are among the longest") for candidate in chosen[n:]]
        share = max(slice_of(n), 0.0) / wanted_s(n) if trials else 1.0
        if share < 1.0:
            rows = rows.thinned(max(LEAST_ROWS, int(share * rows.n_rows)), self._seed)
            self._say(f"an epoch of all rows is too long: {rows.n_rows:,} of {rows.n_all:,} rows are used")
        return trials, rows

    def _epoch_s(self, candidate: space.Candidate) -> float:
        # A row that is held out is visited too, to be scored.
        return candidate.predicted_s / (1.0 - self._held_out)

    def _halve(self, trials: list[Trial], rows: TuningRows) -> list[Trial]:
        """Run rung after rung; return all trials, the best first."""
        running = [number for number, trial in enumerate(trials) if not trial.note]
        share = rows.n_rows / rows.n_all
        sizes = space.rung_sizes(len(running))
        for rung, size in enumerate(sizes, 1):
            running = running[:size]
            for place, number in enumerate(running):
                left = [size - place, *sizes[rung:]]
                trials[number] = self._run(trials[number], rows, rung, space.slice_s(self._left_s(), left), share)
            if not running:
                break
            target = max(space.held_score(trials[number].curve) for number in running) - self._margin
            running.sort(key=lambda number: (bool(trials[number].note), space.standing(trials[number].curve, target)))
            leader = trials[running[0]]
            self._say(
                f"rung {rung} of {len(sizes)}: {size} candidates, best {leader.candidate.label}, "
                f"score {space.held_score(leader.curve):.4f}"
            )
            running = [number for number in running if trials[number].curve and not trials[number].note]
        return trials

    def _run(self, trial: Trial, rows: TuningRows, rung: int, seconds: float, share: float) -> Trial:
        """Train a candidate for a slice of time; one whose slice is too short for an epoch stays as it was."""
        overhead_s = median(self._overheads)
        known = not math.isnan(trial.epoch_s)
        epoch_s = trial.epoch_s if known else self._epoch_s(trial.candidate) * share
        n_epochs = space.epochs_within(seconds, overhead_s, epoch_s, _MOST_EPOCHS)
        # The last fits tell whether the machine has become busy since.
        fits = _CAUTION * (max(self._overheads[-_RECENT:]) + epoch_s) < self._left_s()
        if not fits or (known and not n_epochs):
            return trial if known else replace(trial, note="not run: no time for an epoch")
        n_epochs = max(1, n_epochs)
        if n_epochs <= len(trial.curve):
            return replace(trial, rung=rung)
        model = clone(self._estimator).set_params(
            **trial.candidate.parameters,
            encoder=None,  # the rows are encoded
            max_iter=n_epochs,
            tol=None,
            early_stopping=True,
            validation_fraction=self._held_out,
            random_state=self._seed,
            verbose=0,
            warm_start=False,
            client__checkpoint=None,
            client__resume_from=None,
        )
        begin = time.perf_counter()
        model.set_callbacks(_Deadline(begin + max(seconds, overhead_s)))
        try:
            with warnings.catch_warnings():
                # Steps that are too long are among those that are tried, and show in the score.
                warnings.simplefilter("ignore", DivergenceWarning)
                model.fit(rows.kept)
        except IncompatiblePartsError as error:
            return replace(trial, note=f"cannot run: {error}")
        except InvalidDataError as error:
            if "under-/overflow" not in str(error):
                raise
            return replace(trial, rung=rung, note="diverged: the model left the range of numbers")
        records = model.fit_report_["epochs"]
        curve = [space.Point(record["seconds"], _score(record["validation_score"])) for record in records]
        self._overheads.append(max(0.0, time.perf_counter() - begin - curve[-1].seconds))
        steps = np.diff([0.0, *(point.seconds for point in curve)])
        # The first epoch also connects ranks and loads kernels.
        epoch_s = float(median(steps[1:].tolist() or steps.tolist()))
        return replace(trial, rung=rung, curve=curve, epoch_s=epoch_s)

    def _result(
        self, trials: list[Trial], saved: SavedCosts | None, model: CostModel, rows: TuningRows, used: TuningRows
    ) -> TuningResult:
        target = max(space.held_score(trial.curve) for trial in trials) - self._margin
        load = used.workload(self._held_out)
        done = []
        for trial in trials:
            seconds, loss = space.standing(trial.curve, target)
            # What is compared with seconds of fewer rows is predicted for these.
            predicted = replace(trial.candidate, predicted_s=model.epoch(load, trial.candidate.sync).seconds)
            scaled = replace(predicted, predicted_s=self._epoch_s(predicted))
            done.append(replace(trial, candidate=scaled, seconds=seconds, best_score=-loss))
        done.sort(key=lambda t: (bool(t.note), t.seconds, -t.best_score, t.candidate.predicted_s))
        best = clone(self._estimator)
        if any(math.isfinite(trial.best_score) for trial in done):
            best.set_params(**done[0].candidate.parameters)
        result = TuningResult(
            estimator=best,
            table=tuple(done),
            metric="accuracy" if self._classifies else "r2",
            target=target,
            margin=self._margin,
            ranks=self._ranks,
            n_rows=used.n_rows,
            n_all=rows.n_all,
            validation_fraction=self._held_out,
            calibration=saved,
            seconds=time.perf_counter() - self._begin,
            budget=self._budget,
            client_lines=tuple(space.client_lines(self._client)),
        )
        if not result.n_measured:
            warn_user(f"tune: {result.answer}", RuntimeWarning)
        return result


@contextmanager
def _connected(client: Any, X: Any) -> Iterator[Any]:
    """Give the client to use: that given, one for rows that are no arrays of this process, or none."""
    if client is None and not is_distributed(X):
        yield None
        return
    from dsgd.runtime import client_for

    with client_for(client) as found:
        yield found


def _compressors(rows: TuningRows) -> tuple[Any, ...]:
    """Return the compressors that are tried for models of this length."""
    if rows.n_outputs * (rows.n_features + 1) < space.LONG_MODEL:
        return (None,)
    from dsgd.compress import Half, TopK

    return (None, "auto", TopK(density=0.01), Half())


def _score(value: float) -> float:
    return -math.inf if math.isnan(value) else float(value)


def _say_nothing(text: str) -> None:
    """Drop a line of progress."""


_N_NORMS: Final = 1000
#: Fewer rows than this say nothing, however little time there is.
LEAST_ROWS: Final = 200


@dataclass(frozen=True)
class TuningRows:
    """Rows, ready for one fit after the other."""

    X: Any
    y: Any
    n_rows: int
    n_all: int
    n_features: int
    n_outputs: int
    entries_per_row: float
    row_norm: float
    sparse: bool
    dtype: str
    client: Any = None

    @cached_property
    def kept(self) -> Rows:
        """What is passed to ``fit``: candidates find the rows packed."""
        return Rows(self.X, self.y, client=self.client)

    def workload(self, held_out: float) -> Workload:
        """Return what an epoch works on, where this share of rows is held out."""
        return Workload(
            max(1, round(self.n_rows * (1.0 - held_out))),
            self.entries_per_row,
            self.n_outputs * (self.n_features + 1),
            self.n_outputs,
            "sparse" if self.sparse else "dense",
            self.dtype,
        )

    def thinned(self, n_rows: int, seed: int) -> TuningRows:
        """Return about so many of these rows: drawn without replacement, or every so many of each block."""
        if n_rows >= self.n_rows:
            return self
        if self.client is None:
            chosen = np.sort(np.random.default_rng(seed).choice(self.n_rows, n_rows, replace=False))
            return replace(self, X=self.X[chosen], y=self.y[chosen], n_rows=n_rows)
        stride = -(-self.n_rows // n_rows)
        from dsgd.runtime.gang.cluster import Cluster

        blocks = Cluster(self.client).map(_every, self.X, stride=stride)
        return replace(self, X=blocks, n_rows=self.n_rows // stride)

    def release(self) -> None:
        """Let go of packed rows, and let the workers forget the blocks."""
        if "kept" in vars(self):
            self.kept.release()
        for future in self.X if self.client is not None else ():
            future.release()


def place_rows(
    estimator: AbstractSGD, client: Any, X: Any, y: Any, *, n_ranks: int | None, seed: int = 0
) -> TuningRows:
    """Return the rows, checked, and on the workers if there are any."""
    classification = estimator._is_classification
    X, y, _ = encoded(estimator, (X, y, None), goes_on=False)
    if not is_distributed(X):
        try:
            X = validated(estimator, X, accept_sparse="csr", dtype=[np.float64, np.float32], order="C")
        except ValueError as error:
            raise InvalidDataError(f"tune(X=...) cannot be trained on: {error}") from error
        y = None if y is None else np.asarray(y).ravel()
    if client is None:
        looks = [_look((X, y, None), classification=classification)]
        return _rows_of(looks, X, y, None)
    from dsgd.runtime.gang.cluster import Cluster

    cluster = Cluster(client, estimator._deployment)
    if is_distributed(X):
        blocks = cluster.compute(to_delayed_blocks(X, y, None, build=make_block))
    else:
        blocks, _ = scatter_rows(cluster, X, y, None, Spread(n_ranks=n_ranks, seed=seed))
    looks = cluster.gather(cluster.map(_look, blocks, classification=classification), "computing the rows", "peer")
    return _rows_of(looks, list(blocks), None, client)


def _rows_of(looks: Sequence[tuple[BlockSummary, float, int]], X: Any, y: Any, client: Any) -> TuningRows:
    summaries = [summary for summary, _, _ in looks]
    check_summaries(summaries)
    n_rows = sum(s.rows for s in summaries)
    labels = [s.classes for s in summaries if s.classes is not None and len(s.classes)]
    n_classes = len(np.unique(np.concatenate(labels))) if labels else 0
    n_normed = sum(n for _, _, n in looks)
    return TuningRows(
        X,
        y,
        n_rows,
        n_rows,
        n_features=max(s.n_features for s in summaries),
        n_outputs=n_classes if n_classes > 2 else 1,
        entries_per_row=sum(s.nnz for s in summaries) / n_rows,
        row_norm=sum(norm for _, norm, _ in looks) / max(n_normed, 1),
        sparse=next(s.sparse for s in summaries if s.rows),
        dtype="float32" if all(s.dtype == "float32" for s in summaries if s.rows) else "float64",
        client=client,
    )


def _look(block: Any, *, classification: bool) -> tuple[BlockSummary, float, int]:
    """Return a description of a block and the sum of squared lengths of some of its rows; runs where the block is."""
    summary = summarise(tuple(block), classification=classification)
    some = block[0][:_N_NORMS] if not summary.problem else block[0][:0]
    values = some.data if sp.issparse(some) else some
    return summary, float(np.square(values, dtype=np.float64).sum()), int(some.shape[0])


def _every(block: Any, *, stride: int) -> Any:
    """Return every so many rows of a block."""
    X, y, weights = block
    return X[::stride], y[::stride], None if weights is None else weights[::stride]
