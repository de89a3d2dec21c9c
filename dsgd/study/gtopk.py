"""The study of gTop-k: whether it ends where dense sums do, what sparse sums save on a slow network, what is lost.

Small networks are trained on simulated ranks with dense sums, Top-k and gTop-k, after the published warm-up. The
networks of the publication are timed on one thread, and scaling efficiency follows from a model of the cost of messages
with these times and with those of the authors.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from dsgd.collectives.compressed.gtopk import Entries, merge_all
from dsgd.collectives.model import LinkCost
from dsgd.compress import DGC, GTopK
from dsgd.compress.sparse import sparse_bytes
from dsgd.errors import InvalidParameterError
from dsgd.report import (
    Axis,
    Claim,
    Figure,
    Level,
    Line,
    Panel,
    Table,
    byte_text,
    figure_text,
    period_axis,
    series,
)
from dsgd.sim import SimulatedCluster
from dsgd.study.dnn import Digits, load_digits
from dsgd.study.frame import options
from dsgd.study.frame.data import MissingData, checksum_of, majority_accuracy, place_name
from dsgd.study.frame.report import data_table
from dsgd.study.frame.rows import Cell, Row, cells_of, one_of
from dsgd.study.frame.study import Batch, Grid, Option, Run, Study
from dsgd.study.invented import InventedText
from dsgd.study.published import (
    FIGURES,
    STATEMENTS,
    Interval,
    Statement,
    as_points,
    average,
    exact,
    were_busy,
)
from dsgd.sync import MinibatchSGD
from dsgd.types import AnyArray

__all__ = [
    "GIGABIT", "MODELS", "RANKS", "SIZES", "SPEEDS", "STUDY", "TASKS", "WARM_UP", "WAYS", "NetModel", "Scaling",
    "assumed_steps", "check_convergence", "check_gtopk_claims", "compute_range", "efficiency_table", "extended",
    "lost_share", "mass_rows", "measured_steps", "parts_table", "published_steps", "scaling", "summarise_courses",
]  # fmt: skip

# -- speeds --------------------------------------------------------------------------------------------------------

#: How many ranks the published figures are of.
RANKS: Final[int] = FIGURES["gtopk"]["ranks"]
#: Numbers of ranks whose speeds are published.
SIZES: Final = tuple(FIGURES["gtopk"]["sizes"])
#: The densities of the first epochs.
WARM_UP: Final = tuple(FIGURES["gtopk"]["warm_up"])


@dataclass(frozen=True)
class Speeds:
    """Rows a second of one rank, as measured by the authors: alone, and among `SIZES` by how gradients are summed."""

    alone: float
    dense: Sequence[float]
    topk: Sequence[float]
    gtopk: Sequence[float]
    # Rows of a rank in a step; None where nothing says.
    batch: int | None = None
    # Seconds of a step of gTop-k on 32 ranks: computing, compressing, communicating.
    parts_s: Sequence[float] | None = None

    @property
    def compute_s(self) -> float | None:
        """Seconds in which one rank computes a step; None where the batch is not known."""
        return None if self.batch is None else self.batch / self.alone

    def efficiency(self, way: str, size: int) -> float:
        """Return the speed of a rank among so many, in `SIZES`, over that of one alone."""
        return self._speed(way, size) / self.alone

    def beside_s(self, way: str, size: int) -> float | None:
        """Return the seconds of a step that are not those of a rank alone: what the sum took, with all around it."""
        return None if self.batch is None else self.batch / self._speed(way, size) - self.batch / self.alone

    def _speed(self, way: str, size: int) -> float:
        return {"dense": self.dense, "topk": self.topk, "gtopk": self.gtopk}[way][SIZES.index(size)]


#: Speeds by network.
SPEEDS: Final[Mapping[str, Speeds]] = {name: Speeds(**one) for name, one in FIGURES["gtopk"]["speeds"].items()}


# -- model --------------------------------------------------------------------------------------------------------

#: One gigabit, as the authors of gTop-k measured it.
GIGABIT: Final = LinkCost(0.436e-3, 9e-9)
_BATCH: Final = 32
_DENSITY: Final = 0.001


@dataclass(frozen=True)
class NetModel:
    """A model of the publication."""

    name: str
    n_params: int
    forward_gflop: float

    def compute_s(self, tflops: float) -> float:
        """Return the seconds of a step on 32 rows at so many million million operations a second."""
        if not tflops > 0.0:
            raise InvalidParameterError(f"NetModel.compute_s(tflops=...) must be positive. Got {tflops!r}.")
        return 3 * _BATCH * self.forward_gflop / (1000.0 * tflops)


#: The models of the publication. A sample of the language model is 35 words.
MODELS: Final = (
    NetModel("ResNet-20, CIFAR-10", 272_474, 0.082),
    NetModel("VGG-16, CIFAR-10", 14_728_266, 0.63),
    NetModel("ResNet-50, ImageNet", 25_557_032, 8.2),
    NetModel("AlexNet, ImageNet", 61_100_840, 1.43),
    NetModel("LSTM, PTB", 66_034_000, 3.6),
)


@dataclass(frozen=True)
class Scaling:
    """What a step of one model takes, by how its gradients are summed."""

    model: NetModel
    compute_s: float
    dense_s: float
    topk_s: float
    tree_s: float
    butterfly_s: float
    packed_s: float
    basis: str = "assumed"
    repeats: Sequence[float] = field(default=())

    def efficiency(self, communication_s: float) -> float:
        """Return the share of a step that computes."""
        return self.compute_s / (self.compute_s + communication_s)

    @property
    def over_dense(self) -> float:
        """Efficiency of gTop-k by a tree over that of dense sums."""
        return self.gain(self.dense_s, self.compute_s)

    @property
    def over_topk(self) -> float:
        """Efficiency of gTop-k by a tree over that of Top-k."""
        return self.gain(self.topk_s, self.compute_s)

    def gain(self, other_s: float, compute_s: float) -> float:
        """Return how many times as efficient gTop-k by a tree is as another sum, for any compute time."""
        return (compute_s + other_s) / (compute_s + self.tree_s)

    def as_row(self) -> dict[str, Any]:
        """Return everything as plain values, with both gains."""
        return asdict(self) | {"over_dense": self.over_dense, "over_topk": self.over_topk}


def scaling(
    model: NetModel, size: int, compute_s: float, link: LinkCost = GIGABIT, density: float = _DENSITY
) -> Scaling:
    """Return what a step takes on `size` ranks, a power of two, each of which computes for so many seconds."""
    if size < 2 or size & (size - 1):
        raise InvalidParameterError(f"scaling(size=...) must be a power of two from 2 on. Got {size}.")
    if not compute_s > 0.0:
        raise InvalidParameterError(f"scaling(compute_s=...) must be positive. Got {compute_s!r}.")
    alpha, beta, levels = link.latency_s, link.byte_s, size.bit_length() - 1
    k = math.ceil(density * model.n_params)
    return Scaling(
        model,
        compute_s,
        2 * (size - 1) * alpha + 2 * (size - 1) / size * 4 * model.n_params * beta,
        levels * alpha + (size - 1) * 8 * k * beta,
        2 * levels * (alpha + 8 * k * beta),
        levels * (alpha + 8 * k * beta),
        levels * (alpha + sparse_bytes(k, model.n_params, 4) * beta),
    )


def compute_range(other_s: float, gtopk_s: float, low: float, high: float) -> tuple[float, float] | None:
    """Return the range of compute times in which one algorithm is `low` to `high` times as efficient as another.

    The gain ``(c + other) / (c + gtopk)`` falls towards one as the compute time c grows.
    """

    def at(gain: float) -> float:
        return (other_s - gain * gtopk_s) / (gain - 1.0)

    least, most = max(0.0, at(high)), at(low)
    return (least, most) if most > 0.0 else None


def lost_share(size: int, n: int = 2000, k: int = 20, n_draws: int = 20, seed: int = 0) -> tuple[float, float]:
    """Return the share of the mass chosen by all ranks that is neither applied nor kept: put-back, conserving.

    Every rank has n numbers, each the sum of a normal one that all have in common and a normal one of its own, as
    gradients of one model on different rows; it chooses the k largest, and they are merged by a tree. The mass is the
    sum of magnitudes.
    """
    lost, chosen = np.zeros(2), 0.0
    for draw in range(n_draws):
        own = []
        common = np.random.default_rng((seed, draw)).standard_normal(n)
        for rank in range(size):
            vector = common + np.random.default_rng((seed, draw, rank)).standard_normal(n)
            places = np.sort(np.argpartition(-np.abs(vector), k)[:k]).astype(np.uint32)
            own.append(Entries(places, vector[places]))
        total, dropped = merge_all(own, k, "tree")
        came_in, applied, kept = np.zeros(n), np.zeros(n), np.zeros(n)
        for entries in own:
            came_in[entries.places] += entries.values
            back = ~np.isin(entries.places, total.places)
            applied[entries.places[back]] += entries.values[back]
            chosen += float(np.abs(entries.values).sum())
        for _, entries in dropped:
            kept[entries.places] += entries.values
        applied[total.places] += total.values
        kept[total.places] += total.values
        lost += [np.abs(came_in - applied).sum(), np.abs(came_in - kept).sum()]
    return float(lost[0] / chosen), float(lost[1] / chosen)


def mass_rows(sizes: Sequence[int], shares: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    """Return the shares that are lost as plain values, by number of ranks."""
    return [{"ranks": size, "put_back": p, "conserving": c} for size, (p, c) in zip(sizes, shares, strict=True)]


def mass_table(sizes: Sequence[int], shares: Sequence[tuple[float, float]]) -> Table:
    """Return the shares that are lost, one row per number of ranks."""
    lost = mass_rows(sizes, shares)
    rows = [(f"{row['ranks']}", f"{row['put_back']:.2%}", f"{row['conserving']:.2%}") for row in lost]
    return Table("Chosen mass that is neither applied nor kept", ("ranks", "put-back", "conserving"), rows)


# -- grid ---------------------------------------------------------------------------------------------------------

#: The baseline of the other ways.
DENSE: Final = "dense"
#: Rows of the batches that are timed, by network: few where a row takes long.
_TIMED: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {
        "ResNet-20, CIFAR-10": (8, 32),
        "VGG-16, CIFAR-10": (4, 16),
        "ResNet-50, ImageNet": (1, 4),
        "AlexNet, ImageNet": (2, 12),
        "LSTM, PTB": (1, 6),
    }
)
# Nothing says what a batch of the language model was; this is that of its configuration beside the code.
_SENTENCES: Final = 20


@dataclass(frozen=True)
class Task:
    """A network with its data and its rate."""

    title: str
    batch: int
    lr: float


#: What is trained.
TASKS: Final[Mapping[str, Task]] = MappingProxyType({"cnn": Task("CNN", 8, 0.05), "lstm": Task("LSTM", 32, 0.5)})
#: How gradients are summed, by name: a function of the density, the first densities and the steps of an epoch.
WAYS: Final[Mapping[str, Callable[[float, Sequence[float], int], Any]]] = MappingProxyType(
    {
        DENSE: lambda density, first, steps: None,
        # Without momentum of its own it sends the k largest entries and keeps the others.
        "top-k": lambda density, first, steps: DGC(density, 0.0, warm_up=tuple(first), warm_up_rounds=steps),
        "gtop-k": lambda density, first, steps: GTopK(density, "put-back", "tree", tuple(first), steps),
        "conserving": lambda density, first, steps: GTopK(density, "conserving", "tree", tuple(first), steps),
    }
)


# -- runner -------------------------------------------------------------------------------------------------------

_NETWORK: Final = "1GbE"
_TEXT: Final = InventedText()
# Characters from which the next is foretold: more than the longest word.
_BEFORE: Final = 10


_TEXT_NAME: Final = "invented words"


@dataclass(frozen=True)
class _Task:
    """Data of a task: digits (MNIST, or those of scikit-learn), or a text of invented words."""

    name: str
    rows: int
    test_rows: int


@dataclass(frozen=True, eq=False)
class Lessons:
    """Rows to train and to test on."""

    name: str
    source: str
    X: AnyArray = field(repr=False)
    y: AnyArray = field(repr=False)
    X_test: AnyArray = field(repr=False)
    y_test: AnyArray = field(repr=False)
    least_loss: float | None = None


def _lessons(source: _Task, dtype: str, rows: Sequence[Row]) -> Lessons | MissingData:
    """Return the rows of a task: digits (MNIST, or those of scikit-learn), or a text of invented words."""
    if source.name == _TEXT_NAME:
        found = _TEXT.draw(source.rows, _BEFORE, seed=0), _TEXT.draw(source.test_rows, _BEFORE, seed=1)
        return Lessons(_TEXT_NAME, "generated", *found[0], *found[1], _TEXT.entropy())
    images = load_digits(Digits(source.rows, source.test_rows), dtype, rows)
    if isinstance(images, MissingData):
        return images
    return Lessons(images.name, images.source, images.X, images.y, images.X_test, images.y_test)


def _steps(run: Run) -> int:
    """Return the steps of an epoch; rows that are left over are not visited."""
    return max(1, int(run.rows // run.ranks) // TASKS[run.model].batch)


def _sync(run: Run) -> MinibatchSGD:
    study = run.study
    compressor = WAYS[run.strategy](study.density, study.warm_up, _steps(run))
    return MinibatchSGD(run.ranks * TASKS[run.model].batch, compressor=compressor)


def _decides(run: Run) -> Row:
    model = "lstm" if run.dataset == _TEXT_NAME else "cnn"
    known = {"model": model, "ranks": run.study.gang, "batch": TASKS[model].batch, "lr": TASKS[model].lr}
    return {**known, "sync": repr(_sync(Run(run.study, {**run.columns, **known})))}


def _time(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    del batch
    for run in runs:
        yield time_network(run.model, run.batches, run.batch, run.repeats)


def _train_all(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    lessons = batch.data
    described = {
        "source": lessons.source,
        "checksum": checksum_of(lessons.X, lessons.y, lessons.X_test, lessons.y_test),
        "shape": list(lessons.X.shape[1:]),
        "majority_accuracy": majority_accuracy(lessons.y, lessons.y_test),
        "least_loss": lessons.least_loss,
    }
    for run in runs:
        yield described | _train(run, lessons)


def _train(run: Run, lessons: Lessons) -> Row:
    """Train a network; return its course."""
    import torch

    from dsgd.torch import launch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = launch(_Course(run, lessons), SimulatedCluster(run.ranks, _NETWORK, seed=run.seed))
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

    def __init__(self, run: Run, lessons: Lessons) -> None:
        import torch

        from dsgd.study.networks import CNN, CharLSTM

        self._run, self._lessons = run, lessons
        with torch.random.fork_rng():
            torch.manual_seed(run.seed)
            self._module = CNN(lessons.X.shape[-1]) if run.model == "cnn" else CharLSTM(_TEXT.n_symbols)
        # Neighbouring rows of a text share characters: ranks get rows from everywhere.
        self._order = np.random.default_rng((run.seed, 0)).permutation(len(lessons.y))

    def __call__(self, rank: Any) -> list[dict[str, float]]:
        """Train on the rows of a rank; return the course on rank 0."""
        from torch.nn.functional import cross_entropy

        from dsgd.study.networks import AnnealedSGD
        from dsgd.torch import Synchronizer

        run, task, steps = self._run, TASKS[self._run.model], _steps(self._run)
        module = copy.deepcopy(self._module)
        options: dict[str, Any] = {"lr": task.lr, "momentum": run.momentum, "steps": run.epochs * steps}
        made = AnnealedSGD(module.parameters(), **options)
        sync = Synchronizer(module, made, sync=_sync(run), batch_size=task.batch, rank=rank)
        X, y = self._rows(sync)
        curve: list[dict[str, float]] = []
        for epoch in range(run.epochs):
            order, total = np.random.default_rng((run.seed, 1, epoch, rank.number)).permutation(len(y)), 0.0
            for batch in order[: steps * task.batch].reshape(steps, task.batch):
                made.zero_grad()
                loss = cross_entropy(module(X[batch]), y[batch])
                loss.backward()
                made.step()
                sync.step(loss)
                total += float(loss.detach())
            if rank.number == 0:
                curve.append({"epoch": epoch + 1, "train_loss": total / steps, **self._tested(module)})
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


# -- timing -------------------------------------------------------------------------------------------------------


def extended(small: tuple[int, float], large: tuple[int, float], batch: int) -> float:
    """Return the seconds of a batch on the line through two batches; both are (rows, seconds)."""
    per_row = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
    return small[1] + (batch - small[0]) * per_row


def time_network(name: str, batches: tuple[int, int], batch: int, repeats: int) -> Row:
    """Return how long forward and backward passes of a network take on one thread."""
    import torch

    from dsgd.study.networks import BUILDERS

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            build, rows_of = BUILDERS[name]
            network = build()
            taken = list(_passes(network, [rows_of(size) for size in batches], repeats))
    finally:
        torch.set_num_threads(threads)
    small, large = batches
    return {
        "seconds": [extended((small, one), (large, other), batch) for one, other in taken],
        "timed": taken,
        "n_params": sum(parameter.numel() for parameter in network.parameters()),
    }


def _passes(network: Any, data: Sequence[tuple[Any, Any]], repeats: int) -> Iterator[list[float]]:
    """Yield the seconds of a pass over each batch, once for each repetition."""
    from torch.nn.functional import cross_entropy

    for number in range(repeats + 1):
        taken = []
        for inputs, targets in data:
            network.zero_grad(set_to_none=True)
            begin = time.perf_counter()
            cross_entropy(network(inputs), targets).backward()
            taken.append(time.perf_counter() - begin)
        if number:
            yield taken


# -- summary ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lesson:
    """All ways of summing for one network, the dense one first."""

    task: str
    dataset: str
    cells: Sequence[Cell]

    @property
    def dense(self) -> Cell:
        """The courses with dense sums."""
        return self.cells[0]

    @property
    def name(self) -> str:
        """What it is called in tables and figures."""
        row = self.dense.rows[0]
        return f"{TASKS[self.task].title} on {self.dataset}, {row['ranks']} ranks"

    def gap(self, cell: Cell, column: str = "test_accuracy") -> str:
        """Return how far a way ends from dense sums, with its interval over the seeds."""
        found = cell.minus(self.dense, column)
        if found is None or cell.strategy == DENSE:
            return "-"
        return found.text(as_points if column == "test_accuracy" else "{:+.4f}".format)


def summarise_courses(rows: Sequence[Row]) -> list[Lesson]:
    """Return one entry for each network of these rows that has a course with dense sums."""
    lessons = []
    for own in cells_of([row for row in rows if "curve" in row], "model", "dataset"):
        cells = cells_of(own.rows, "strategy")
        dense = one_of(cells, strategy=DENSE)
        if dense is not None:
            lessons.append(Lesson(own.model, own.dataset, [dense, *(cell for cell in cells if cell is not dense)]))
    return lessons


def _course_table(lesson: Lesson) -> Table:
    dense_bytes = lesson.dense.median("bytes_sent")
    columns: dict[str, Callable[[Cell], str]] = {
        "sums": lambda cell: cell.strategy,
        "accuracy": lambda cell: f"{cell.median('test_accuracy'):.2%}",
        "- dense, 95 %": lambda cell: lesson.gap(cell),
        "test loss": lambda cell: f"{cell.median('test_loss'):.4f}",
        "loss - dense, 95 %": lambda cell: lesson.gap(cell, "test_loss"),
        "training loss": lambda cell: f"{cell.median('train_loss'):.4f}",
        "sent": lambda cell: byte_text(cell.median("bytes_sent")),
        "dense / sent": lambda cell: f"{dense_bytes / cell.median('bytes_sent'):.0f}x",
    }
    first = lesson.dense.rows[0]
    least = (
        "" if first["least_loss"] is None else f" No model can have a lower mean loss than {first['least_loss']:.4f}."
    )
    note = (
        f"{first['n_params']:,} parameters, {first['epochs']} epochs over {first['rows']:,} rows, {first['batch']} of "
        f"a rank in a step; tested on {first['test_rows']:,} others, {len(lesson.dense.rows)} seeds. Sent: by all "
        f"ranks, with the warm-up.{least}"
    )
    return Table.of(lesson.name, lesson.cells, columns, note)


def check_convergence(lessons: Sequence[Lesson]) -> list[Claim]:
    """Return whether gTop-k as published ends as accurate as dense sums, one claim for each network."""
    claims = []
    for lesson in lessons:
        cell = next((cell for cell in lesson.cells if cell.strategy == "gtop-k"), None)
        found = None if cell is None else cell.minus(lesson.dense, "test_accuracy")
        if cell is None or found is None:
            continue
        row = cell.rows[0]
        commonest = row["majority_accuracy"] - lesson.dense.median("test_accuracy")
        steps = row["rows"] // row["ranks"] // row["batch"]
        note = (
            f"Dense {lesson.dense.median('test_accuracy'):.2%}, gTop-k {cell.median('test_accuracy'):.2%} after "
            f"{row['epochs']} epochs of {steps} steps; {row['n_params']:,} parameters."
        )
        claims.append(
            STATEMENTS["gtopk/convergence"].judged(
                lesson.name,
                found,
                note,
                trivial=commonest > -0.005,
                baseline=f"{as_points(commonest)}: commonest label",
            )
        )
    return claims


# -- efficiency ---------------------------------------------------------------------------------------------------

#: Whose compute time it is, as tables say it.
PUBLISHED: Final = "published"
HERE: Final = "one thread here"
_COMPUTING: Final = {PUBLISHED: "compute time as published", HERE: f"compute time of {HERE}"}
# Ways of summing by what speeds call them and by the field that has their seconds.
_WAYS: Final = (("dense", "dense_s"), ("topk", "topk_s"), ("gtopk", "tree_s"))


def published_steps(size: int, link: LinkCost = GIGABIT, density: float = 0.001) -> list[Scaling]:
    """Return steps with the compute times that the authors measured, of the networks of which there is one."""
    found = ((model, SPEEDS[model.name].compute_s) for model in MODELS)
    return [
        replace(scaling(model, size, seconds, link, density), basis=PUBLISHED)
        for model, seconds in found
        if seconds is not None
    ]


def measured_steps(rows: Iterable[Row], size: int, link: LinkCost = GIGABIT, density: float = 0.001) -> list[Scaling]:
    """Return steps with compute times that were measured here."""
    by_name = {model.name: model for model in MODELS}
    steps = []
    for own in cells_of([row for row in rows if "seconds" in row], "model"):
        seconds = own.rows[-1]["seconds"]
        step = scaling(by_name[own.model], size, statistics.median(seconds), link, density)
        steps.append(replace(step, basis=HERE, repeats=tuple(seconds)))
    return steps


def assumed_steps(
    size: int, tflops: float, link: LinkCost = GIGABIT, density: float = 0.001, models: Sequence[NetModel] = MODELS
) -> list[Scaling]:
    """Return steps on 32 rows whose operations take place at so many million million a second."""
    basis = f"{tflops:g} Tflop/s"
    return [replace(scaling(model, size, model.compute_s(tflops), link, density), basis=basis) for model in models]


def scaling_table(steps: Sequence[Scaling], size: int) -> Table:
    """Return times and efficiencies, one row per model and compute time."""
    rows = [
        (
            step.model.name,
            step.basis,
            *(f"{1e3 * s:,.1f}" for s in (step.compute_s, step.dense_s, step.topk_s, step.tree_s, step.packed_s)),
            *(f"{step.efficiency(s):.1%}" for s in (step.dense_s, step.topk_s, step.tree_s, step.packed_s)),
            f"{step.over_dense:.2f}x",
            f"{step.over_topk:.2f}x",
        )
        for step in steps
    ]
    columns = ("model", "computing", "compute ms", "dense ms", "Top-k ms", "gTop-k ms", "packed ms")
    efficiencies = ("dense", "Top-k", "gTop-k", "packed", "over dense", "over Top-k")
    note = (
        "Milliseconds of a step, by the cost of messages; then scaling efficiency, and how many times as efficient "
        "gTop-k by a tree is. Packed: a butterfly whose places are coded in about 12 bits, as dsgd sends them."
    )
    return Table(f"A step on {size} ranks", (*columns, *efficiencies), rows, note, n_text=2)


def efficiency_table(steps: Sequence[Sequence[Scaling]], sizes: Sequence[int]) -> Table:
    """Return scaling efficiency by ranks: as published, and from the cost of messages with each compute time."""
    rows = []
    for size in (size for size in sizes if size in SIZES):
        for own in steps:
            step, speeds = own[sizes.index(size)], SPEEDS[own[0].model.name]
            said = [speeds.efficiency(way, size) for way, _ in _WAYS]
            ours = [step.efficiency(getattr(step, field)) for _, field in _WAYS]
            gains = [said[2] / said[0], step.over_dense, said[2] / said[1], step.over_topk]
            cells = [f"{share:.1%}" for pair in zip(said, ours, strict=True) for share in pair]
            rows.append((step.model.name, step.basis, f"{size}", *cells, *(f"{gain:.2f}x" for gain in gains)))
    heads = [f"{way}, {whose}" for way in ("dense", "Top-k", "gTop-k") for whose in ("published", "model")]
    over = ["over dense, published", "over dense, model", "over Top-k, published", "over Top-k, model"]
    note = (
        "Published: rows a second of a rank among so many over those of one alone, from the scripts beside the "
        "authors' code. Model: the cost of messages with the compute time of the second column."
    )
    return Table(
        "Scaling efficiency, published and from the cost of messages",
        ("model", "computing", "ranks", *heads, *over), rows, note, n_text=2,
    )  # fmt: skip


def parts_table(steps: Sequence[Scaling]) -> Table:
    """Return what sums took on 32 ranks, as published, over what the cost of messages gives: where figures part."""
    rows = []
    for step in (step for step in steps if step.basis == PUBLISHED):
        speeds = SPEEDS[step.model.name]
        cells = [step.model.name]
        for way, name in _WAYS:
            took, model = speeds.beside_s(way, RANKS) or 0.0, getattr(step, name)
            cells += [f"{1e3 * took:,.0f}", f"{1e3 * model:,.0f}", f"{took / model:.0f}x"]
        cells.append("-" if speeds.parts_s is None else " + ".join(f"{1e3 * part:,.0f}" for part in speeds.parts_s))
        rows.append(cells)
    columns = [f"{way} {what}" for way in ("dense", "Top-k", "gTop-k") for what in ("published", "model", "ratio")]
    note = (
        "Milliseconds of a step on 32 ranks beside those of a rank alone, from the published speeds; by the published "
        "cost of messages; and one over the other. Last: a step of gTop-k in parts, computing, compressing, "
        "communicating, as published."
    )
    return Table("Where published steps spend their time", ("model", *columns, "parts of a step"), rows, note)


def check_gtopk_claims(steps: Sequence[Scaling], size: int, rows: Sequence[Row] = ()) -> list[Claim]:
    """Return the published gains in efficiency as claims, with the compute times for which each would hold."""
    busy = bool(rows) and were_busy(rows)
    claims = []
    for step in steps:
        for statement, other, way, other_s in (
            (STATEMENTS["gtopk/dense"], "dense sums", "dense", step.dense_s),
            (STATEMENTS["gtopk/topk"], "Top-k", "topk", step.topk_s),
        ):
            between = compute_range(other_s, step.tree_s, statement.margin.least, statement.margin.published)
            found = _gain(step, other_s)
            claims.append(
                statement.judged(
                    f"{step.model.name}, {size} ranks, {_COMPUTING.get(step.basis, step.basis)}",
                    found,
                    f"A step computes {figure_text(1e3 * step.compute_s)} ms. {_where(between)}{_why(step, way, size)}",
                    busy=busy and bool(step.repeats),
                    baseline=f"1x: {other}",
                )
            )  # fmt: skip
    return claims


def _gain(step: Scaling, other_s: float) -> Interval:
    """Return the gain over another sum, with an interval over the repetitions where the compute time was measured."""
    found = average({number: step.gain(other_s, seconds) for number, seconds in enumerate(step.repeats)})
    return exact(step.gain(other_s, step.compute_s)) if found is None else found


def _where(between: tuple[float, float] | None) -> str:
    if between is None:
        return "No compute time puts the gain into the range."
    least, most = (figure_text(1e3 * end) for end in between)
    return f"The gain is in the range for {least if between[0] else 0} to {most} ms."


def _why(step: Scaling, way: str, size: int) -> str:
    """Return what is published of this network, and how far its sums were from the cost of messages."""
    speeds = SPEEDS[step.model.name]
    if size not in SIZES:
        return ""
    gain = speeds.efficiency("gtopk", size) / speeds.efficiency(way, size)
    said = f" Published of this network: {gain:.2f}x"
    other, gtopk = speeds.beside_s(way, size), speeds.beside_s("gtopk", size)
    if other is None or gtopk is None:
        return f"{said}."
    slower = other / (step.dense_s if way == "dense" else step.topk_s)
    names = {"dense": "dense sums", "topk": "Top-k"}
    return (
        f"{said}; there {names[way]} took {slower:.0f} times what the cost of messages gives, and gTop-k "
        f"{gtopk / step.tree_s:.0f} times."
    )


# -- report -------------------------------------------------------------------------------------------------------

# Numbers of ranks of which the lost mass is shown.
_MERGED: Final = (2, 4, 8, 16, 32)
_SUMS: Final = (("dense ring", "dense_s"), ("Top-k", "topk_s"), ("gTop-k, tree", "tree_s"), ("packed", "packed_s"))
_SPEEDS: Final = ("dense", "topk", "gtopk")
_EPOCHS: Final = Axis("epochs")


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    sizes = [2**level for level in range(1, study.ranks.bit_length())]
    link = LinkCost(study.latency / 1e3, 1e-9 / study.bandwidth)
    curves = _curves(sizes, link, study, rows)
    shares = [lost_share(size) for size in _MERGED]
    steps, lessons = [found[-1] for found in curves], summarise_courses(rows)
    timed = [row for row in rows if "seconds" in row]
    claims, judged = check_gtopk_claims(steps, sizes[-1], timed), check_convergence(lessons)
    lost = mass_rows(_MERGED, shares)
    own = [{"key": f"{step.model.name}, {step.basis}", "ranks": sizes[-1], **step.as_row()} for step in steps]
    own += [{"key": f"mass-{row['ranks']}", **row} for row in lost]
    ranges = [("dense sums", STATEMENTS["gtopk/dense"], claims[::2]), ("Top-k", STATEMENTS["gtopk/topk"], claims[1::2])]
    tables = [
        *map(_course_table, lessons),
        scaling_table(steps, sizes[-1]),
        efficiency_table(curves, sizes),
        parts_table(steps),
        mass_table(_MERGED, shares),
    ]
    settings = (
        f"{study.latency:g} ms and {study.bandwidth:.3g} GB/s between two ranks, {study.share:.2%} of the entries "
        "sent, no overlap"
    )
    return {
        "answer": " ".join(
            filter(None, [_trained(lessons), _gained(steps, claims, sizes[-1]), _lost(_MERGED, shares)])
        ),
        "ran": [("Model", settings)],
        "highlights": [
            *((lesson.gap(cell).partition(" (")[0], f"{lesson.name}: gTop-k") for lesson, cell in _published(lessons)),
            *((_of(found), f"steps gain {_range(statement)} over {name}") for name, statement, found in ranges),
            (f"{shares[-1][0]:.1%}", f"of the chosen mass is lost by put-back on {_MERGED[-1]} ranks"),
        ],
        "claims": [*judged, *claims],
        "figures": [
            *([courses_figure(lessons)] if lessons else []),
            _efficiency(curves, sizes),
            _mass(_MERGED, shares),
        ],
        "data": [data_table([row for row in rows if "curve" in row], "a row", "commonest label")] if lessons else [],
        "tables": tables,
        "rows": [*rows, *own],
        # What has a line for each number of ranks too is on the page.
        "terminal": [table for table in tables if len(table.rows) <= max(len(curves), len(_MERGED))],
        "facts": {"ranks": study.ranks, "steps": [step.as_row() for step in steps], "mass": lost},
    }


def _curves(sizes: Sequence[int], link: LinkCost, study: Study, rows: Sequence[Row]) -> list[list[Scaling]]:
    """Return for each network and compute time what steps take on each number of ranks."""
    by_size = [
        [
            *published_steps(size, link, study.share),
            *measured_steps(rows, size, link, study.share),
            *([] if study.tflops is None else assumed_steps(size, study.tflops, link, study.share)),
        ]
        for size in sizes
    ]
    return [list(own) for own in zip(*by_size, strict=True)]


def _published(lessons: Sequence[Lesson]) -> list[tuple[Lesson, Cell]]:
    return [(lesson, cell) for lesson in lessons for cell in lesson.cells if cell.strategy == "gtop-k"]


def _trained(lessons: Sequence[Lesson]) -> str:
    said = [f"{lesson.gap(cell)} for {lesson.name}" for lesson, cell in _published(lessons)]
    return f"The accuracy of gTop-k less that of dense sums is {', and '.join(said)}." if said else ""


def _gained(steps: Sequence[Scaling], claims: Sequence[Claim], size: int) -> str:
    said = []
    for basis in dict.fromkeys(step.basis for step in steps):
        own = [number for number, step in enumerate(steps) if step.basis == basis]
        inside, inside_topk = (sum(bool(claims[2 * number + of].holds) for number in own) for of in (0, 1))
        whose = {PUBLISHED: "the compute times of the authors", HERE: "those of one thread here"}.get(basis, basis)
        said.append(f"with {whose} for {inside} of {len(own)} networks, and over Top-k for {inside_topk}")
    return (
        f"On {size} ranks the cost of messages puts the gain of gTop-k over dense sums inside the published range "
        f"{'; '.join(said)}."
    )


def _lost(merged: Sequence[int], shares: Sequence[tuple[float, float]]) -> str:
    return (
        f"Putting back what the tree drops loses {shares[-1][0]:.1%} of the chosen mass on {merged[-1]} ranks; the "
        "conserving form loses none."
    )


def _of(claims: Sequence[Claim]) -> str:
    return f"{sum(bool(claim.holds) for claim in claims)} of {len(claims)}"


def _range(statement: Statement) -> str:
    return f"{statement.margin.least:g}x to {statement.margin.published:g}x"


def courses_figure(lessons: Sequence[Lesson]) -> Figure:
    """Return training loss and test accuracy against epochs, a line of two panels for each network."""
    panels = []
    for lesson in lessons:
        least = lesson.dense.rows[0]["least_loss"]
        losses = Axis("training loss", "log")
        for name, axis in (("train_loss", losses), ("accuracy", Axis("test accuracy", unit="%"))):
            marks: list[Line | Level] = []
            for number, cell in enumerate(lesson.cells):
                colour, _, dash = series(number)
                curve, seeds = cell.curve(), [row["curve"] for row in cell.rows]
                spans = [
                    (min(point), max(point)) for point in zip(*([at[name] for at in one] for one in seeds), strict=True)
                ]
                x, y = [point["epoch"] for point in curve], [point[name] for point in curve]
                names = [f"{cell.strategy} after {epoch:g} epochs" for epoch in x]
                marks.append(Line(cell.strategy, x, y, colour, "", dash, ranges=spans, names=names))
            if least is not None and name == "train_loss":
                marks.append(Level(least, "least possible"))
            panels.append(Panel(lesson.name, _EPOCHS, axis, marks))
    caption = (
        "Medians over the seeds, and their range. Densities are those of the warm-up in the first epochs, one each, "
        "and then one entry in a thousand. gTop-k is the published form, by a tree and with put-back. The least "
        "possible loss is that of new text: a network that remembers the text it is trained on falls below."
    )
    return Figure("courses", "Training to the end", caption, panels, columns=2, height=320)


def _efficiency(curves: Sequence[Sequence[Scaling]], sizes: Sequence[int]) -> Figure:
    panels = []
    for steps in curves:
        marks, speeds = [], SPEEDS[steps[0].model.name]
        for number, (label, name) in enumerate(_SUMS):
            colour, marker, dash = series(number)
            efficiencies = [step.efficiency(getattr(step, name)) for step in steps]
            marks.append(Line(label, sizes, efficiencies, colour, "", dash))
            if number < len(_SPEEDS):
                known = [size for size in sizes if size in SIZES]
                said = [speeds.efficiency(_SPEEDS[number], size) for size in known]
                marks.append(Line(f"{label}, published", known, said, colour, marker, width=0, hollow=True))
        title = f"{steps[0].model.name}: {1e3 * steps[0].compute_s:,.0f} ms ({steps[0].basis})"
        panels.append(Panel(title, period_axis("ranks", sizes), Axis("scaling efficiency", unit="%"), marks))
    caption = (
        "Share of a step that computes. Lines: from the cost of messages, nothing overlapped, with the compute time in "
        "the title. Rings: speeds that the authors measured."
    )
    return Figure("efficiency", "Scaling efficiency", caption, panels, share="xy")


def _mass(sizes: Sequence[int], shares: Sequence[tuple[float, float]]) -> Figure:
    marks = []
    for number, label in enumerate(("put-back, as published", "conserving")):
        colour, marker, dash = series(number)
        marks.append(Line(label, sizes, [share[number] for share in shares], colour, marker, dash))
    panel = Panel("", period_axis("ranks", sizes), Axis("chosen mass lost in one sum", unit="%"), marks)
    caption = "Entries that every rank chose and that are neither applied nor kept for later, in one sum by a tree."
    return Figure("mass", "What is lost", caption, [panel])


def _share(value: float) -> None:
    if value > 1:
        raise InvalidParameterError(f"the study gtopk: density and warm_up must be shares of at most 1. Got {value}.")


def _check(study: Study) -> None:
    if not study.momentum < 1:
        raise InvalidParameterError(f"the study gtopk: momentum={study.momentum} must lie in [0, 1).")
    scaling(MODELS[0], study.ranks, 1.0)  # refuses ranks that it cannot have


def _tasks(study: Study) -> list[_Task]:
    """Return what is trained; nothing without torch."""
    names = {"cnn": "mnist", "lstm": _TEXT_NAME}
    chosen = [names[task] for task in study.tasks if task in names] if find_spec("torch") else []
    return [_Task(name, study.rows, study.test_rows) for name in chosen]


_COST: Final = "The cost of messages"
#: The study.
STUDY: Final = Study(
    "gtopk",
    "What do sparse sums save on a slow network, and what do they cost?",
    ("gtopk",),
    options={
        "tasks": Option(
            tuple(TASKS), "cnn, lstm or none; repeat for both, which is the default.", flags=("--model",),
            choices=(*TASKS, "none"), may_be_empty=True,
        ),
        "ways": Option(
            tuple(WAYS), "dense, top-k, gtop-k or conserving; repeat for several. All by default.",
            flags=("--strategy", "-s"), choices=tuple(WAYS), demo=("top-k", "gtop-k"),
        ),
        "seeds": options.seeds(demo=(0, 1)),
        "rows": Option(8_000, "Most training rows.", least=100, demo=6_000),
        "test_rows": Option(4_000, least=100, demo=2_000),
        "epochs": options.epochs(24, demo=12),
        # Simulated ranks of the courses.
        "gang": Option(4, least=2),
        "momentum": Option(0.9, least=0),
        # Share of the entries that is sent, and those of the first epochs.
        "density": Option(0.001, above=0, check=_share),
        "warm_up": Option(WARM_UP, above=0, check=_share, may_be_empty=True),
        "timing": Option(
            True, "Time the published networks on one thread here.", flags=("--timing/--no-timing",)
        ),
        "networks": Option(tuple(SPEEDS), choices=tuple(SPEEDS), may_be_empty=True),
        "repeats": Option(5, least=1, demo=3),
        "ranks": Option(32, "Ranks of the tables, a power of two.", panel=_COST),
        "tflops": Option(
            None, "Also with computing at so many million million operations a second.", real=True, panel=_COST
        ),
        "latency": Option(0.436, "Milliseconds of an empty message.", panel=_COST, least=0),
        "bandwidth": Option(1 / 9, "Gigabytes a second between two ranks.", panel=_COST, above=0),
        "share": Option(
            0.001, "Share of the entries that is sent.", flags=("--density",), panel=_COST, above=0, check=_share
        ),
    },
    grids=[
        Grid(
            lambda s: {
                "model": s.networks if s.timing and find_spec("torch") else (), "strategy": ["compute"],
                "ranks": [None],
            },
            _time, ("repeats",), together=("model",),
            derive=lambda run: {
                "batch": SPEEDS[run.model].batch or _SENTENCES, "batches": list(_TIMED[run.model]),
            },
        ),
        Grid(
            lambda s: {
                "dataset": _tasks(s), "seed": s.seeds,
                "strategy": [DENSE, *(name for name in s.ways if name != DENSE)],
            },
            _train_all, ("epochs", "momentum"), derive=_decides, load=_lessons,
        ),
    ],
    report=_report,
    about=(
        "Without torch, or with --model none and --no-timing, only the model of the cost of messages is evaluated."
    ),
    examples=(
        "dsgd study gtopk --demo --out demo/",
        "dsgd study gtopk --model lstm --epochs 40 --seeds 5 --out study/",
        "dsgd study gtopk --model none --no-timing --tflops 10 --ranks 64 --latency 0.05 --bandwidth 1.25 --out study/",
    ),
    columns=("model", "strategy"),
    check=_check,
    needs_rows=False,
)  # fmt: skip
