"""Running the study of neural networks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dsgd.datasets import find, load, locate
from dsgd.errors import DatasetError, DsgdError, InvalidDataError
from dsgd.sim import SimulatedCluster
from dsgd.study.dnn.grid import DnnRun, DnnStudy
from dsgd.study.frame.data import checksum_of, file_names
from dsgd.study.frame.measure import majority_accuracy, point, spent
from dsgd.study.frame.missing import MissingData, sizes_of
from dsgd.study.frame.rows import Row, StudyRun
from dsgd.study.frame.runner import Record, by_ranks, run_grids
from dsgd.study.frame.workers import place_name
from dsgd.types import AnyArray

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Images", "load_images", "run_dnn_study"]

# Mean and standard deviation of the pixels of MNIST over 255, the usual scaling.
_MEAN: Final = 0.1307
_DEVIATION: Final = 0.3081


@dataclass(frozen=True, eq=False)
class Images:
    """Digits to train and to test on.

    Parameters
    ----------
    name, source : str
        The set, and the names of its files.
    X, X_test : array of float32, shape (n, 1, side, side)
        Images, of mean about zero.
    y, y_test : array of int64, shape (n,)
        What they show.
    """

    name: str
    source: str
    X: AnyArray = field(repr=False)
    y: AnyArray = field(repr=False)
    X_test: AnyArray = field(repr=False)
    y_test: AnyArray = field(repr=False)

    @property
    def side(self) -> int:
        """Width and height of an image."""
        return int(self.X.shape[-1])


def load_images(rows: int | None = None, test_rows: int | None = None) -> Images:
    """Return MNIST if it is on this machine, else the 1,797 digits of 8 by 8 pixels that come with scikit-learn.

    Parameters
    ----------
    rows, test_rows : int, optional
        Their largest numbers; all by default.
    """
    try:
        train, test = (load("mnist", part, dtype=np.float32, download=False) for part in ("train", "test"))
    except DatasetError:
        return _small_digits(rows, test_rows)
    return Images(
        "mnist", file_names(train.source), _images(train.X, rows), _labels(train.y, rows), _images(test.X, test_rows),
        _labels(test.y, test_rows),
    )  # fmt: skip


def _small_digits(rows: int | None, test_rows: int | None) -> Images:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order].astype(np.float32).reshape(-1, 1, 8, 8) / 16.0 - 0.3, y[order].astype(np.int64)
    n_test = 360
    return Images(
        "digits", "scikit-learn", X[n_test:][:rows], y[n_test:][:rows], X[:n_test][:test_rows], y[:n_test][:test_rows]
    )


def _images(X: Any, rows: int | None) -> AnyArray:
    dense = np.asarray(X[:rows].toarray() if hasattr(X, "toarray") else X[:rows], dtype=np.float32)
    side = round(dense.shape[1] ** 0.5)
    scaled = (dense / (255.0 if dense.max() > 1.0 else 1.0) - _MEAN) / _DEVIATION
    images: AnyArray = np.ascontiguousarray(scaled.reshape(-1, 1, side, side), dtype=np.float32)
    return images


def _labels(y: Any, rows: int | None) -> AnyArray:
    labels: AnyArray = np.asarray(y[:rows]).astype(np.int64)
    return labels


def run_dnn_study(
    study: DnnStudy,
    out: str | os.PathLike[str],
    *,
    scheduler: str | None = None,
    force: bool = False,
    command: str | None = None,
) -> Iterator[StudyRun]:
    """Make the runs of a study that have no row yet; yield every run: by ranks, networks, seeds, methods.

    Parameters and errors are those of `dsgd.study.run_study`.

    Every point of a curve is a separate training run from the same start and with the same seed, because the models of
    ranks in the middle of a run are not what training returns. A run that diverges raises `DsgdError`.
    """
    record = Record(out, force=force, command=command, cluster=place_name(scheduler, study.network))
    images = _left(study, record) or load_images(study.rows, study.test_rows)
    yield from run_grids(record, by_ranks(study, [images], study.network), _measure, scheduler)


def _left(study: DnnStudy, record: Record) -> MissingData | None:
    """Return what is left of MNIST where a study has begun with it and it is not here any more."""
    own = record.rows(dataset="mnist")
    return (
        sizes_of("mnist", own, study.rows, study.test_rows) if own and locate(find("mnist"), "train") is None else None
    )


def _measure(client: Client | None, images: Images, runs: Sequence[DnnRun]) -> Iterator[Row]:
    """Train on one number of ranks; yield the contents of the rows."""
    warm = set()
    checksum = checksum_of(images.X, images.y, images.X_test, images.y_test)
    described = {"source": images.source, "checksum": checksum, "shape": list(images.X.shape[1:])}
    for spec in runs:
        if client is not None and spec.model not in warm:
            # Timings exclude loading torch and compiled code on the workers.
            _fit(client, images, spec, 1, 4 * spec.ranks * spec.study.batch)
            warm.add(spec.model)
        yield described | _train(client, images, spec)


def _train(client: Client | None, images: Images, spec: DnnRun) -> Row:
    """Train a method for each point of its curve; return the contents of its row."""
    curve = []
    for epochs in spec.study.looks:
        model = _fit(client, images, spec, epochs)
        curve.append(
            {
                **point(model, epochs),
                "accuracy": model.score(images.X_test, images.y_test),
                "train_loss": model.history_[-1]["train_loss"],
            }
        )
    return {
        "test_accuracy": curve[-1]["accuracy"],
        "majority_accuracy": majority_accuracy(images.y, images.y_test),
        "train_s": curve[-1]["seconds"],
        **spent(model, spec.ranks),
        "n_params": sum(parameter.numel() for parameter in model.module_.parameters()),
        "curve": curve,
    }


def _fit(client: Client | None, images: Images, spec: DnnRun, epochs: int, rows: int | None = None) -> Any:
    """Return a fitted estimator."""
    from dsgd.study.dnn.modules import CNN, MLP, AnnealedSGD
    from dsgd.torch import TorchClassifier

    study, way, cluster = spec.study, spec.way, client
    if client is None:
        cluster = SimulatedCluster(spec.ranks, study.network or "10GbE", seed=spec.seed)
    model = TorchClassifier(
        CNN if spec.model == "cnn" else MLP,
        module__side=images.side,
        optimizer=AnnealedSGD,
        optimizer__momentum=way.momentum,
        optimizer__steps=epochs * -(-len(images.y[:rows]) // (spec.ranks * study.batch)),
        lr=study.lr,
        batch_size=None if way.sync.exchanges == "gradient" else study.batch,
        max_epochs=epochs,
        sync=way.sync,
        client=cluster,
        random_state=spec.seed,
    )
    try:
        return model.fit(images.X[:rows], images.y[:rows])
    except InvalidDataError as error:
        raise DsgdError(f"{spec.name} on {spec.ranks} ranks: {error} Leave it out, or lower --lr.") from error
