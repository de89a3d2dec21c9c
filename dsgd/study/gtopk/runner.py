"""Running the study of gTop-k: networks are timed, then trained on simulated ranks.

Ranks run a training loop of their own (`dsgd.torch.Synchronizer`): all have the same model after every step, so that
rank 0 can test it after every epoch.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from dsgd.datasets import find, locate
from dsgd.sim import SimulatedCluster
from dsgd.study.dnn import load_images
from dsgd.study.frame.data import checksum_of
from dsgd.study.frame.measure import majority_accuracy
from dsgd.study.frame.missing import MissingData, sizes_of
from dsgd.study.frame.rows import Row, StudyRun
from dsgd.study.frame.runner import Record
from dsgd.study.frame.workers import place_name
from dsgd.study.gtopk.grid import TASKS, ComputeRun, CourseRun, GTopKStudy
from dsgd.study.gtopk.text import InventedText
from dsgd.study.gtopk.timing import time_network
from dsgd.types import AnyArray

__all__ = ["Lessons", "lessons_of", "run_gtopk_study", "train"]

_NETWORK: Final = "1GbE"
_TEXT: Final = InventedText()
# Characters from which the next is foretold: more than the longest word.
_BEFORE: Final = 10


@dataclass(frozen=True, eq=False)
class Lessons:
    """Rows to train and to test on.

    Parameters
    ----------
    name, source : str
        What they are, and where they are from.
    X, X_test : array, shape (n, ...)
        Rows.
    y, y_test : array of int64, shape (n,)
        What is to be told of them.
    least_loss : float or None
        The least mean loss that is possible; None if nobody knows.
    """

    name: str
    source: str
    X: AnyArray = field(repr=False)
    y: AnyArray = field(repr=False)
    X_test: AnyArray = field(repr=False)
    y_test: AnyArray = field(repr=False)
    least_loss: float | None = None


def lessons_of(task: str, study: GTopKStudy) -> Lessons:
    """Return the rows of a task: digits (MNIST, or those of scikit-learn), or a text of invented words."""
    if task == "cnn":
        images = load_images(study.rows, study.test_rows)
        return Lessons(images.name, images.source, images.X, images.y, images.X_test, images.y_test)
    found = _TEXT.draw(study.rows, _BEFORE, seed=0), _TEXT.draw(study.test_rows, _BEFORE, seed=1)
    return Lessons("invented words", "generated", *found[0], *found[1], _TEXT.entropy())


def run_gtopk_study(
    study: GTopKStudy, out: str | os.PathLike[str], *, force: bool = False, command: str | None = None
) -> Iterator[StudyRun]:
    """Make the runs of a study that have no row yet; yield every run: timed networks, then tasks, seeds and ways.

    Parameters
    ----------
    study : GTopKStudy
        The grid.
    out : str or path-like
        The folder; rows go to ``rows.jsonl`` in it, one as each run ends.
    force : bool, default False
        Repeat runs that have rows.
    command : str, optional
        The command recorded in new rows; the command line of this process by default.

    Yields
    ------
    StudyRun
        A finished run.
    """
    record = Record(out, force=force, command=command)
    yield from record.finish(study.timed(), _time)
    for task in study.tasks:
        left = _left(study, record) if task == "cnn" else None
        if left is not None:
            yield from record.kept(study.courses(task, left.name, len(left.y), len(left.y_test)))
            continue
        lessons = lessons_of(task, study)
        runs = study.courses(task, lessons.name, len(lessons.y), len(lessons.y_test))
        yield from record.finish(runs, partial(_train_all, lessons))


def _left(study: GTopKStudy, record: Record) -> MissingData | None:
    """Return what is left of MNIST where a study has begun with it and it is not here any more."""
    own = record.rows(dataset="mnist")
    here = locate(find("mnist"), "train") is not None
    return None if here or not own else sizes_of("mnist", own, study.rows, study.test_rows)


def _time(runs: Sequence[ComputeRun]) -> Iterator[Row]:
    for run in runs:
        yield time_network(run.model, run.batches, run.batch, run.study.repeats)


def _train_all(lessons: Lessons, runs: Sequence[CourseRun]) -> Iterator[Row]:
    described = {
        "source": lessons.source,
        "checksum": checksum_of(lessons.X, lessons.y, lessons.X_test, lessons.y_test),
        "shape": list(lessons.X.shape[1:]),
        "majority_accuracy": majority_accuracy(lessons.y, lessons.y_test),
        "least_loss": lessons.least_loss,
    }
    for run in runs:
        yield described | train(run, lessons)


def train(run: CourseRun, lessons: Lessons) -> Row:
    """Train a network; return its course.

    Returns
    -------
    dict
        ``curve``, after each epoch its mean loss while it was trained, and loss and accuracy on the test rows;
        ``test_loss`` and ``test_accuracy`` of the end, ``n_params``, and what all ranks sent.
    """
    import torch

    from dsgd.torch import launch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = launch(_Course(run, lessons), SimulatedCluster(run.study.ranks, _NETWORK, seed=run.seed))
    finally:
        torch.set_num_threads(threads)
    curve, totals = found.value, found.ledger.totals()
    return {
        "test_accuracy": curve[-1]["accuracy"],
        "test_loss": curve[-1]["test_loss"],
        "train_loss": curve[-1]["train_loss"],
        "bytes_sent": int(totals["bytes_sent"]),
        "network": _NETWORK,
        "cluster": place_name(None, _NETWORK),
        "n_params": curve[-1].pop("n_params"),
        "curve": curve,
    }


class _Course:
    """The training loop of every rank."""

    def __init__(self, run: CourseRun, lessons: Lessons) -> None:
        import torch

        from dsgd.study.gtopk.networks import CharLSTM
        from dsgd.study.networks import CNN

        self._run, self._lessons = run, lessons
        with torch.random.fork_rng():
            torch.manual_seed(run.seed)
            self._module = CNN(lessons.X.shape[-1]) if run.task == "cnn" else CharLSTM(_TEXT.n_symbols)
        # Neighbouring rows of a text share characters: ranks get rows from everywhere.
        self._order = np.random.default_rng((run.seed, 0)).permutation(len(lessons.y))

    def __call__(self, rank: Any) -> list[dict[str, float]]:
        """Train on the rows of a rank; return the course on rank 0."""
        from torch.nn.functional import cross_entropy

        from dsgd.study.networks import AnnealedSGD
        from dsgd.torch import Synchronizer

        run, study, task = self._run, self._run.study, TASKS[self._run.task]
        module = copy.deepcopy(self._module)
        options: dict[str, Any] = {"lr": task.lr, "momentum": study.momentum, "steps": study.epochs * run.steps}
        made = AnnealedSGD(module.parameters(), **options)
        sync = Synchronizer(module, made, sync=run.sync, batch_size=task.batch, rank=rank)
        X, y = self._rows(sync)
        curve: list[dict[str, float]] = []
        for epoch in range(study.epochs):
            order, total = np.random.default_rng((run.seed, 1, epoch, rank.number)).permutation(len(y)), 0.0
            for batch in order[: run.steps * task.batch].reshape(run.steps, task.batch):
                made.zero_grad()
                loss = cross_entropy(module(X[batch]), y[batch])
                loss.backward()
                made.step()
                sync.step(loss)
                total += float(loss.detach())
            if rank.number == 0:
                curve.append({"epoch": epoch + 1, "train_loss": total / run.steps, **self._tested(module)})
        if curve:
            curve[-1]["n_params"] = sum(parameter.numel() for parameter in module.parameters())
        return curve

    def _rows(self, sync: Any) -> tuple[Any, Any]:
        """Return the rows of a rank, as tensors."""
        import torch

        lessons, order = self._lessons, self._order
        X, y = sync.rows(lessons.X[order], lessons.y[order])
        return torch.from_numpy(X), torch.from_numpy(y)

    def _tested(self, module: Any) -> dict[str, float]:
        """Return loss and accuracy on the test rows."""
        import torch
        from torch.nn.functional import cross_entropy

        y = torch.from_numpy(self._lessons.y_test)
        with torch.no_grad():
            scores = module(torch.from_numpy(self._lessons.X_test))
            return {
                "test_loss": float(cross_entropy(scores, y)),
                "accuracy": float((scores.argmax(1) == y).double().mean()),
            }
