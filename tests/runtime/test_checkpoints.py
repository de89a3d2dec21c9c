"""Checkpoints: training resumes bit for bit, and a file that cannot be trusted is not trusted."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from dsgd import Gang, SGDClassifier, SGDRegressor
from dsgd.comm.topology import Ring, mixing_matrix
from dsgd.compress import TopK
from dsgd.errors import CheckpointError, InvalidParameterError
from dsgd.local import SGD, Objective, make_shard
from dsgd.local.shard import split
from dsgd.runtime import Checkpoint, Restart, Shrink, run_on_threads
from dsgd.runtime.checkpoints import checkpoint
from dsgd.runtime.checkpoints.checkpoint import SavedState, read_newest, write
from dsgd.runtime.train import TrainData, TrainJob, TrainResult, snapshots, train
from dsgd.runtime.train.state import TrainState, adapted
from dsgd.sync import ChocoSGD, Cut, EpochAveraging, LocalSGD, MinibatchSGD, OneShotAveraging
from gang_cluster import wait_until


class _Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 6))
    return X, np.where(X[:, 0] + 0.3 * rng.standard_normal(500) > 0, 1.0, -1.0)


def shares(rows: tuple[np.ndarray, np.ndarray], n: int, *, held_out: bool = False) -> list[TrainData]:
    """Return the rows of n ranks, a fifth of them held out where a test stops early."""
    X, y = rows
    n_train = 400 if held_out else 500
    shard, validation = make_shard(X[:n_train], y[:n_train]), make_shard(X[400:], y[400:])
    return [
        TrainData(
            shard.rows(*split(shard.n_rows, n, k)),
            validation.rows(*split(validation.n_rows, n, k)) if held_out else None,
        )
        for k in range(n)
    ]


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that lets training die right after its n-th checkpoint."""

    def arrange(n: int) -> None:
        written: list[str] = []

        def write_and_die(target: Checkpoint, state: SavedState) -> str:
            written.append(write(target, state))
            if len(written) == n:
                raise _Killed
            return written[-1]

        monkeypatch.setattr(checkpoint, "write", write_and_die)

    return arrange


def bits(result: TrainResult) -> list[Any]:
    """Return all of a result that a clock has no part in."""
    averaged = b"" if result.averaged is None else result.averaged.tobytes()
    losses = [(r.epoch, r.train_loss, str(r.dispersion), str(r.validation_score)) for r in result.history]
    return [result.params.tobytes(), averaged, result.n_averaged, result.n_steps, result.converged, losses]


HINGE = Objective(loss="hinge", alpha=1e-3)
L1 = Objective(loss="log_loss", penalty="elasticnet", alpha=1e-3, l1_ratio=0.5)
CASES = {
    "plain": (SGD(HINGE), LocalSGD(every=7), {}),
    "averaged": (SGD(HINGE, average=20), LocalSGD(every=16), {}),
    "l1": (SGD(L1), LocalSGD(every=7), {}),
    "averaged-l1-epoch": (SGD(L1, average=1), EpochAveraging(), {}),
    "one-shot": (SGD(L1, average=1), OneShotAveraging(), {}),
    "minibatch": (SGD(HINGE, schedule="invscaling", eta0=0.1), MinibatchSGD(batch=16), {}),
    "minibatch-suffix": (SGD(L1), MinibatchSGD(batch=16), {}),
    "adaptive": (SGD(HINGE, schedule="adaptive", eta0=0.5), LocalSGD(every=50), {"tol": 1e-2, "n_iter_no_change": 1}),
    "early-stopping": (SGD(HINGE), LocalSGD(every=50), {"tol": 1e-2, "n_iter_no_change": 9, "early_stopping": True}),
    "restore-best": (SGD(HINGE, average=1), LocalSGD(every=7), {"early_stopping": True, "restore_best": True}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [1, 3])
def test_a_resumed_run_is_the_uninterrupted_one(
    case: str, size: int, rows: Any, tmp_path: Path, stop_after: Callable[[int], None]
) -> None:
    """Training that died after any checkpoint, inside an epoch or between two, ends in the very same bits."""
    optimizer, strategy, options = CASES[case]
    data = shares(rows, size, held_out=bool(options.get("early_stopping")))
    job = TrainJob(optimizer, strategy, np.zeros(7), **{"max_iter": 8, "tol": None, "n_iter_no_change": 5} | options)
    whole = bits(run_on_threads(train, data, (job,)).value)
    resumed = dataclasses.replace(job, resume_from=str(tmp_path))
    for n in (1, 3, 5):
        stop_after(n)
        place = Checkpoint(tmp_path, every_s=0, overwrite=True)
        with pytest.raises(_Killed):
            run_on_threads(train, data, (dataclasses.replace(job, checkpoint=place),))
        assert bits(run_on_threads(train, data, (resumed,)).value) == whole


def test_checkpoints_change_nothing(rows: Any, tmp_path: Path) -> None:
    """A run that writes checkpoints ends as one that does not; its last checkpoint is its end."""
    job = TrainJob(SGD(HINGE, average=1), LocalSGD(every=9), np.zeros(7), 5, None, 5)
    data = shares(rows, 2)
    whole = bits(run_on_threads(train, data, (job,)).value)
    written = dataclasses.replace(job, checkpoint=Checkpoint(tmp_path, every_s=0, keep=3))
    assert bits(run_on_threads(train, data, (written,)).value) == whole
    assert len(list(tmp_path.glob("*.dsgd"))) == 3
    assert json.loads((tmp_path / "newest.json").read_text())["names"][0] == "checkpoint-00000005-00000000.dsgd"
    assert bits(run_on_threads(train, data, (dataclasses.replace(job, resume_from=str(tmp_path)),)).value) == whole


@pytest.mark.parametrize("size", [2, 3, 5])
def test_public_copies_are_followed_by_another_number_of_ranks(size: int, rows: Any, tmp_path: Path) -> None:
    """After a change of ranks what each has of its neighbours' public copies is still their weighted mean."""
    strategy = ChocoSGD(every=20, compressor=TopK(0.3))
    job = TrainJob(SGD(HINGE), strategy, np.zeros(7), 2, None, 5, checkpoint=Checkpoint(tmp_path, every_s=0))
    # Means over ranks are weighted by rows: where these differ, that of what they have of others is none of copies.
    [whole] = shares(rows, 1)
    uneven = [TrainData(whole.shard.rows(start, stop)) for start, stop in ((0, 50), (50, 150), (150, 400), (400, 500))]
    run_on_threads(train, uneven, (job,))
    run_on_threads(train, shares(rows, size), (dataclasses.replace(job, max_iter=4, resume_from=str(tmp_path)),))
    saved = read_newest(tmp_path, snapshots._configuration(job)).arrays
    public, mixed = saved["strategy.public"], saved["strategy.mixed"]
    assert public.shape == (size, 7)
    assert np.ptp(public, axis=0).max() > 1e-6
    np.testing.assert_allclose(mixed, mixing_matrix(Ring(), size) @ public, rtol=1e-9, atol=1e-12)


def test_what_ranks_have_in_common_is_no_mean() -> None:
    """Ranks that take over the rows of others step at the same rates, to the bit, whatever the weights add up to."""
    before, now = [1] * 6, [5, 5]
    assert (np.array(before) / sum(before)).sum() != 1.0
    optimizer = SGD(HINGE)
    state = TrainState(np.zeros(7), optimizer.init(make_shard(np.zeros((5, 6)), np.ones(5))), Cut((0,), 1))
    counters = np.tile(state.optimizer.counters, (len(before), 1))
    arrays, _ = adapted({**state.common(counters, before, 0.0), **state.copied()}, now, state.handovers())
    state.take_up(arrays, 0, now)
    assert state.optimizer.rate_factor == 1.0
    assert state.optimizer.eta_scale == 1.0


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_checkpoints_of_another_fit_are_not_written_over(n_jobs: int, rows: Any, tmp_path: Path) -> None:
    """A second fit with the same folder is refused before it has done anything, unless it is told to overwrite."""
    options: dict[str, Any] = {"max_iter": 3, "tol": None, "random_state": 0, "n_jobs": n_jobs, "sync": 64}
    place = Checkpoint(tmp_path, every_s=0)
    SGDClassifier(**options, client=Gang(checkpoint=place)).fit(*rows)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for other in (
        SGDClassifier(**options, client=Gang(checkpoint=place)),
        SGDRegressor(**options, client=Gang(checkpoint=tmp_path)),
    ):
        with pytest.raises(CheckpointError, match=r"another fit.*resume_from='auto'.*overwrite=True"):
            other.fit(*rows)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    other = {**options, "alpha": 0.01, "max_iter": 2}
    fresh = SGDClassifier(**other, client=Gang(checkpoint=Checkpoint(tmp_path, overwrite=True))).fit(*rows)
    # Not of the fit before, though that was further on.
    again = SGDClassifier(**other, client=Gang(resume_from=tmp_path)).fit(*rows)
    assert again.coef_.tobytes() == fresh.coef_.tobytes()


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_auto_begins_or_goes_on(n_jobs: int, rows: Any, tmp_path: Path) -> None:
    """The same line of a script starts training if there is no checkpoint, and resumes if there is one."""
    options: dict[str, Any] = {"tol": None, "random_state": 0, "n_jobs": n_jobs, "sync": 64}
    whole = SGDClassifier(**options, max_iter=6).fit(*rows)
    options["client"] = Gang(checkpoint=tmp_path / "job", resume_from="auto")
    SGDClassifier(**options, max_iter=3).fit(*rows)
    for _ in range(2):
        resumed = SGDClassifier(**options, max_iter=6).fit(*rows)
        assert resumed.coef_.tobytes() == whole.coef_.tobytes()
        assert (resumed.n_iter_, resumed.loss_curve_) == (whole.n_iter_, whole.loss_curve_)
    with pytest.raises(CheckpointError, match="alpha"):
        SGDClassifier(**options, alpha=0.5).fit(*rows)


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("form", ["dense", "csr"])
def test_other_rows_are_refused_by_another_number_of_ranks(
    form: str, early_stopping: bool, rows: Any, tmp_path: Path
) -> None:
    """The rows of all ranks together are compared: one value that differs is found, their order does not matter."""
    X, y = rows
    as_form = csr_array if form == "csr" else np.asarray
    # Without a period so few rows would be those of one rank.
    options: dict[str, Any] = {"max_iter": 2, "tol": None, "random_state": 0, "sync": 64}
    options["early_stopping"] = early_stopping
    weights = np.linspace(0.5, 2.5, len(y))
    first = SGDClassifier(**options, n_jobs=3, client=Gang(checkpoint=tmp_path)).fit(
        as_form(X), y, sample_weight=weights
    )
    assert first.fit_report_["ranks"] == 3

    def resume(X: Any, y: Any, weights: Any) -> None:
        SGDClassifier(**options, n_jobs=2, client=Gang(resume_from=tmp_path)).fit(as_form(X), y, sample_weight=weights)

    # Which rows are held out depends on where they are.
    order = np.arange(len(y)) if early_stopping else np.random.default_rng(0).permutation(len(y))
    resume(X[order], y[order], weights[order])
    one_value, one_target, one_weight = X.copy(), y.copy(), weights.copy()
    one_value[17, 3] += 1e-3
    one_target[17] *= -1
    one_weight[17] += 1e-3
    # Another number of ranks holds out other rows, and need not have as many left to train on.
    said = r"was trained on (other|67\d) rows" if early_stopping else "other rows"
    for other in ((one_value, y, weights), (X, one_target, weights), (X, y, one_weight)):
        with pytest.raises(CheckpointError, match=said):
            resume(*other)


class _Disk:
    """Writes checkpoints, but for those that it fails at."""

    def __init__(self, fails: Callable[[int], bool]) -> None:
        self.n_calls, self.fails = 0, fails

    def write(self, target: Checkpoint, state: SavedState) -> str:
        self.n_calls += 1
        if self.fails(self.n_calls):
            raise CheckpointError("No space left on device.")
        return write(target, state)


def test_a_disk_that_is_full_for_a_moment_ends_no_fit(
    rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint that cannot be written is written again soon; several in a row end the fit, but not its last one."""
    options: dict[str, Any] = {"max_iter": 8, "tol": None, "random_state": 0, "n_jobs": 2}
    whole = SGDClassifier(**options).fit(*rows)
    monkeypatch.setattr(checkpoint, "_RETRY_S", 0.0)

    def fit_with(disk: _Disk, every_s: float) -> SGDClassifier:
        monkeypatch.setattr(checkpoint, "write", disk.write)
        place = Checkpoint(tmp_path, every_s=every_s, overwrite=True)
        return SGDClassifier(**options, client=Gang(checkpoint=place)).fit(*rows)

    moment = _Disk(lambda call: call in (2, 3, 5))
    assert fit_with(moment, 0).coef_.tobytes() == whole.coef_.tobytes()
    assert moment.n_calls == 8
    assert caplog.text.count("could not be written") == 3
    assert json.loads((tmp_path / "newest.json").read_text())["names"][0] == "checkpoint-00000008-00000000.dsgd"
    full = _Disk(lambda call: call > 1)
    with pytest.raises(CheckpointError, match="No space left"):
        fit_with(full, 0)
    assert full.n_calls == 4
    full = _Disk(lambda call: True)
    with pytest.warns(RuntimeWarning, match=r"last checkpoint could not be written: No space left.*complete"):
        fitted = fit_with(full, 3600)
    assert full.n_calls == 3
    assert fitted.coef_.tobytes() == whole.coef_.tobytes()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"alpha": 0.5}, "optimizer.objective.alpha was 0.0001 there and is 0.5 here"),
        ({"sync": 64}, "strategy"),
        ({"random_state": 1}, "rows.seed"),
        ({"average": True}, "optimizer.average"),
        ({"tol": 0.5}, "tol was None there and is 0.5 here"),
    ],
    ids=str,
)
def test_another_job_is_refused(change: dict[str, Any], named: str, rows: Any, tmp_path: Path) -> None:
    """A checkpoint of other parameters is refused by the name of what differs."""
    options: dict[str, Any] = {"max_iter": 2, "tol": None, "random_state": 0, "sync": 32}
    SGDClassifier(**options, client=Gang(checkpoint=tmp_path)).fit(*rows)
    with pytest.raises(CheckpointError, match=named):
        SGDClassifier(**options | change, client=Gang(resume_from=tmp_path)).fit(*rows)


def test_partial_fit_writes_none(rows: Any, tmp_path: Path) -> None:
    """Checkpoints are of ``fit``: a step of the user's own loop neither writes nor reads them."""
    model = SGDClassifier(client=Gang(checkpoint=tmp_path, resume_from=tmp_path), random_state=0)
    model.partial_fit(*rows, classes=[-1.0, 1.0])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "named"),
    [
        *((partial(Gang, checkpoint=bad), r"Gang\(checkpoint=") for bad in (3, "")),
        *((partial(Gang, resume_from=bad), r"Gang\(resume_from=") for bad in (Checkpoint("x"), 1.0, "")),
        (partial(Gang, resume_from="auto"), "set checkpoint="),
        (partial(Gang, on_failure="retry"), r"Gang\(on_failure="),
        (partial(Gang, transport="smoke"), r"Gang\(transport="),
        *((partial(Gang, timeouts=bad), r"Gang\(timeouts=\.\.\.\) must be") for bad in (5.0, "queue=5")),
        *((partial(Gang, **{flag: 1}), rf"Gang\({flag}=") for flag in ("elastic", "out_of_core")),
        *((partial(Checkpoint, path=bad), "Checkpoint") for bad in (1, "")),
        (partial(Checkpoint, "x", every_s=-1), "Checkpoint"),
        (partial(Checkpoint, "x", keep=0), "Checkpoint"),
        *((partial(policy, at_most=-1), rf"{policy.__name__}\(at_most=") for policy in (Restart, Shrink)),
    ],
)
def test_parameters_are_checked(call: Any, named: str) -> None:
    """A place that is none, an unknown policy, and what a checkpoint cannot do, are refused by name."""
    with pytest.raises(InvalidParameterError, match=named):
        call()


def test_nothing_to_go_on_from(rows: Any, tmp_path: Path) -> None:
    """An empty or missing folder is an error, not a fit from the start."""
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(CheckpointError, match="holds no checkpoint"):
            SGDClassifier(client=Gang(resume_from=folder), random_state=0).fit(*rows)


_PROGRAM = """
import sys
import numpy as np
from dsgd import Gang, SGDClassifier
from dsgd.runtime import Checkpoint
rng = np.random.default_rng(0)
X = rng.standard_normal((5000, 20))
y = X[:, 0] + rng.standard_normal(5000) > 0
options = dict(tol=None, random_state=0, n_jobs=2, sync=50, max_iter=100_000, average=True)

SGDClassifier(**options, client=Gang(checkpoint=Checkpoint(sys.argv[1], every_s=0))).fit(X, y)
"""


def test_a_killed_process(tmp_path: Path) -> None:
    """A process killed by SIGKILL while it writes many checkpoints leaves one to resume from, bit for bit."""
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(tmp_path)])
    try:
        wait_until(lambda: process.poll() is None and len(list(tmp_path.glob("*.dsgd"))) < 2, 60.0)
        time.sleep(0.1)
    finally:
        process.kill()
        process.wait(timeout=20)
    space: dict[str, Any] = {}
    exec(_PROGRAM.rpartition("\n\n")[0], space)
    names = json.loads((tmp_path / "newest.json").read_text())["names"]
    options, rows = {**space["options"], "max_iter": int(names[0].split("-")[1]) + 3}, (space["X"], space["y"])
    resumed = SGDClassifier(**options, client=Gang(resume_from=tmp_path)).fit(*rows)
    assert resumed.coef_.tobytes() == SGDClassifier(**options).fit(*rows).coef_.tobytes()
