"""The study of gTop-k: whether it ends where dense sums do, what sparse sums save on a slow network, what is lost.

Small networks are trained on simulated ranks with dense sums, Top-k and gTop-k, after the published warm-up. The
networks of the publication are timed on one thread, and scaling efficiency follows from a model of the cost of messages
with these times and with those of the authors.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from dsgd.collectives.cost import Link
from dsgd.compress import DGC, GTopK
from dsgd.errors import InvalidParameterError
from dsgd.report import Axis, Claim, Figure, Level, Line, Panel, Table
from dsgd.sim import SimulatedCluster
from dsgd.study import gtopk_cost as cost
from dsgd.study.dnn import Digits, described, load_digits
from dsgd.study.frame import options
from dsgd.study.frame.data import MissingData, StudyData, place_name
from dsgd.study.frame.report import data_table, line_of
from dsgd.study.frame.rows import Cell, Row, Run, cells_of, one_of
from dsgd.study.frame.study import Batch, Grid, Option, Study
from dsgd.study.published import STATEMENTS, as_points
from dsgd.sync import MinibatchSGD
from dsgd.types import AnyArray, FloatVector, IntVector

__all__ = ["STUDY"]

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
# Characters from which the next is foretold: more than the longest word.
_BEFORE: Final = 10


_LETTERS: Final = 20
_LONGEST: Final = 7


@dataclass(frozen=True)
class InventedText:
    """A text of invented words, drawn one by one by Zipf's law; code 0 is the space, and 1 to 20 are letters.

    Its best possible loss is known: the entropy of the choice of a word over its mean length, with the space.
    """

    n_words: int = 60
    seed: int = 0

    @property
    def n_symbols(self) -> int:
        """How many different characters there are."""
        return _LETTERS + 1

    def words(self) -> list[IntVector]:
        """Return the words, each an array of letters, the most frequent first."""
        rng = np.random.default_rng((self.seed, 0))
        found: dict[bytes, IntVector] = {}
        while len(found) < self.n_words:
            word = rng.integers(1, _LETTERS + 1, rng.integers(2, _LONGEST + 1))
            found.setdefault(word.tobytes(), word)
        return list(found.values())

    def frequencies(self) -> FloatVector:
        """Return how often each word comes, shape (n_words,): the n-th an n-th as often as the first."""
        shares = 1.0 / np.arange(1, self.n_words + 1)
        found: FloatVector = shares / shares.sum()
        return found

    def entropy(self) -> float:
        """Return the least mean loss of a character, in nats: that of who knows all that came before."""
        shares = self.frequencies()
        lengths = np.array([len(word) + 1 for word in self.words()])
        return float(-(shares @ np.log(shares)) / (shares @ lengths))

    def draw(self, n: int, length: int, seed: int) -> tuple[AnyArray, IntVector]:
        """Return a text as rows: the characters before each one, and that character."""
        rng, words = np.random.default_rng((self.seed, 1, seed)), self.words()
        # Words have two letters or more, so that so many are enough.
        chosen = rng.choice(self.n_words, size=(n + length) // 3 + 1, p=self.frequencies())
        text = np.concatenate([np.append(words[number], 0) for number in chosen])[: n + length].astype(np.int64)
        rows = np.lib.stride_tricks.sliding_window_view(text, length)[:n]
        return np.ascontiguousarray(rows), text[length:]


_TEXT: Final = InventedText()
_TEXT_NAME: Final = "invented words"


def _load(source: Digits, dtype: str, rows: Sequence[Row]) -> StudyData | MissingData:
    """Return the rows of a task: digits (MNIST, or those of scikit-learn), or a text of invented words."""
    if source.name != _TEXT_NAME:
        return load_digits(source, dtype, rows)
    assert source.rows is not None
    assert source.test_rows is not None
    found = _TEXT.draw(source.rows, _BEFORE, seed=0), _TEXT.draw(source.test_rows, _BEFORE, seed=1)
    return StudyData(_TEXT_NAME, "generated", *found[0], *found[1])


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


def _train_all(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    lessons = batch.data
    least = _TEXT.entropy() if lessons.name == _TEXT_NAME else None
    known = described(lessons) | {"least_loss": least}
    for run in runs:
        yield known | _train(run, lessons)


def _train(run: Run, lessons: StudyData) -> Row:
    """Train a network; return its course."""
    from dsgd.torch import launch

    with _one_thread():
        found = launch(_Course(run, lessons), SimulatedCluster(run.ranks, _NETWORK, seed=run.seed))
    curve = found.value
    return {
        "test_accuracy": curve[-1]["accuracy"],
        **{name: curve[-1][name] for name in ("test_loss", "train_loss")},
        "bytes_sent": int(found.ledger.totals()["bytes_sent"]),
        "network": _NETWORK,
        "cluster": place_name(None, _NETWORK),
        "n_params": curve[-1].pop("n_params"),
        "curve": curve,
    }


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute on one thread."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Course:
    """The training loop of every rank."""

    def __init__(self, run: Run, lessons: StudyData) -> None:
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
        import torch
        from torch.nn.functional import cross_entropy

        from dsgd.study.networks import AnnealedSGD
        from dsgd.torch import Synchronizer

        run, task, steps = self._run, TASKS[self._run.model], _steps(self._run)
        module = copy.deepcopy(self._module)
        options: dict[str, Any] = {"lr": task.lr, "momentum": run.momentum, "steps": run.epochs * steps}
        made = AnnealedSGD(module.parameters(), **options)
        sync = Synchronizer(module, made, sync=_sync(run), batch_size=task.batch, rank=rank)
        X, y = map(torch.from_numpy, sync.rows(self._lessons.X[self._order], self._lessons.y[self._order]))
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


def _time(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    """Yield how long forward and backward passes of networks take on one thread."""
    import torch
    from torch.nn.functional import cross_entropy

    from dsgd.study.networks import BUILDERS

    del batch
    for run in runs:
        build, rows_of = BUILDERS[run.model]
        taken: list[list[float]] = []
        with _one_thread(), torch.random.fork_rng():
            torch.manual_seed(0)
            network = build()
            data = [rows_of(size) for size in run.batches]
            for _ in range(run.repeats + 1):
                taken.append([])
                for inputs, targets in data:
                    network.zero_grad(set_to_none=True)
                    begin = time.perf_counter()
                    cross_entropy(network(inputs), targets).backward()
                    taken[-1].append(time.perf_counter() - begin)
        small, large = run.batches
        yield {
            "seconds": [extended((small, one), (large, other), run.batch) for one, other in taken[1:]],
            "timed": taken[1:],
            "n_params": sum(parameter.numel() for parameter in network.parameters()),
        }


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
    columns = (
        "sums = strategy | accuracy = test_accuracy:.2% | - dense, 95 % = gap | test loss = test_loss:.4f | "
        "loss - dense, 95 % = loss | training loss = train_loss:.4f | sent = bytes_sent:B | dense / sent = times"
    )
    first = lesson.dense.rows[0]
    least = (
        "" if first["least_loss"] is None else f" No model can have a lower mean loss than {first['least_loss']:.4f}."
    )
    note = (
        f"{first['n_params']:,} parameters, {first['epochs']} epochs over {first['rows']:,} rows, {first['batch']} of "
        f"a rank in a step; tested on {first['test_rows']:,} others, {len(lesson.dense.rows)} seeds. Sent: by all "
        f"ranks, with the warm-up.{least}"
    )
    return Table.of(
        lesson.name,
        lesson.cells,
        columns,
        note,
        gap=lesson.gap,
        loss=lambda cell: lesson.gap(cell, "test_loss"),
        times=lambda cell: f"{dense_bytes / cell.median('bytes_sent'):.0f}x",
    )


def check_convergence(lessons: Sequence[Lesson]) -> list[Claim]:
    """Return whether gTop-k as published ends as accurate as dense sums, one claim for each network."""
    claims = []
    for lesson in lessons:
        cell, dense = one_of(lesson.cells, strategy="gtop-k"), lesson.dense
        if cell is None or (found := cell.minus(dense, "test_accuracy")) is None:
            continue
        row = cell.rows[0]
        commonest = row["majority_accuracy"] - dense.median("test_accuracy")
        note = (
            f"Dense {dense.median('test_accuracy'):.2%}, gTop-k {cell.median('test_accuracy'):.2%} after "
            f"{row['epochs']} epochs of {row['rows'] // row['ranks'] // row['batch']} steps; {row['n_params']:,} "
            "parameters."
        )
        baseline = f"{as_points(commonest)}: commonest label"
        statement = STATEMENTS["gtopk/convergence"]
        claims.append(statement.judged(lesson.name, found, note, trivial=dense.is_trivial, baseline=baseline))
    return claims


# -- report -------------------------------------------------------------------------------------------------------

# Numbers of ranks of which the lost mass is shown.
_MERGED: Final = (2, 4, 8, 16, 32)


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    sizes = [2**level for level in range(1, study.ranks.bit_length())]
    link, most = Link(latency_s=study.latency / 1e3, byte_s=1e-9 / study.bandwidth), sizes[-1]
    by_size = [
        [
            *cost.published_steps(size, link, study.share),
            *cost.measured_steps(rows, size, link, study.share),
        ]
        for size in sizes
    ]
    curves = [list(own) for own in zip(*by_size, strict=True)]
    steps, lessons = by_size[-1], summarise_courses(rows)
    claims = cost.check_gtopk_claims(steps, most, [row for row in rows if "seconds" in row])
    lost = [
        {"ranks": size, "put_back": put_back, "conserving": conserving}
        for size, (put_back, conserving) in zip(_MERGED, map(cost.lost_share, _MERGED), strict=True)
    ]
    lost_text = f"{lost[-1]['put_back']:.1%}"
    mass_columns = "ranks = ranks | put-back = put_back:.2% | conserving = conserving:.2%"
    tables = [
        *map(_course_table, lessons),
        cost.scaling_table(steps, most),
        cost.efficiency_table(curves, sizes),
        cost.parts_table(steps),
        Table.of("Chosen mass that is neither applied nor kept", lost, mass_columns),
    ]
    published = [(lesson, cell) for lesson in lessons if (cell := one_of(lesson.cells, strategy="gtop-k"))]
    said = [f"{lesson.gap(cell)} for {lesson.name}" for lesson, cell in published]
    gained = []
    for basis in dict.fromkeys(step.basis for step in steps):
        own = [number for number, step in enumerate(steps) if step.basis == basis]
        inside, inside_topk = (sum(bool(claims[2 * number + of].holds) for number in own) for of in (0, 1))
        whose = "the compute times of the authors" if basis == cost.PUBLISHED else "those of one thread here"
        gained.append(f"with {whose} for {inside} of {len(own)} networks, and over Top-k for {inside_topk}")
    answer = [
        f"The accuracy of gTop-k less that of dense sums is {', and '.join(said)}." if said else "",
        f"On {most} ranks the cost of messages puts the gain of gTop-k over dense sums inside the published range "
        f"{'; '.join(gained)}.",
        f"Putting back what the tree drops loses {lost_text} of the chosen mass on {_MERGED[-1]} ranks; the conserving "
        "form loses none.",
    ]
    ranges = []
    for way, name, found in (("dense", "dense sums", claims[::2]), ("topk", "Top-k", claims[1::2])):
        margin, inside = STATEMENTS[f"gtopk/{way}"].margin, sum(bool(claim.holds) for claim in found)
        text = f"steps gain {margin.least:g}x to {margin.published:g}x over {name}"
        ranges.append((f"{inside} of {len(found)}", text))
    settings = (
        f"{study.latency:g} ms and {study.bandwidth:.3g} GB/s between two ranks, {study.share:.2%} of the entries "
        "sent, no overlap"
    )
    return {
        "answer": " ".join(filter(None, answer)),
        "ran": [("Model", settings)],
        "highlights": [
            *((lesson.gap(cell).partition(" (")[0], f"{lesson.name}: gTop-k") for lesson, cell in published),
            *ranges,
            (lost_text, f"of the chosen mass is lost by put-back on {_MERGED[-1]} ranks"),
        ],
        "claims": [*check_convergence(lessons), *claims],
        "figures": [_courses_figure(lessons)] if lessons else [],
        "data": [data_table([row for row in rows if "curve" in row], "a row", "commonest label")] if lessons else [],
        "tables": tables,
    }


def _courses_figure(lessons: Sequence[Lesson]) -> Figure:
    """Return training loss and test accuracy against epochs, a line of two panels for each network."""
    panels = []
    for lesson in lessons:
        least = lesson.dense.rows[0]["least_loss"]
        for name, axis in (
            ("train_loss", Axis("training loss", "log")), ("accuracy", Axis("test accuracy", unit="%")),
        ):  # fmt: skip
            marks: list[Line | Level] = []
            for number, cell in enumerate(lesson.cells):
                x = [at.median for at in cell.along("epoch")]
                names = [f"{cell.strategy} after {epoch:g} epochs" for epoch in x]
                marks.append(line_of(cell.strategy, x, cell.along(name), number, marker="", names=names))
            if least is not None and name == "train_loss":
                marks.append(Level(least, "least possible"))
            panels.append(Panel(lesson.name, Axis("epochs"), axis, marks))
    caption = (
        "Medians over the seeds, and their range. Densities are those of the warm-up in the first epochs, one each, "
        "and then one entry in a thousand. gTop-k is the published form, by a tree and with put-back. The least "
        "possible loss is that of new text: a network that remembers the text it is trained on falls below."
    )
    return Figure("courses", "Training to the end", caption, panels, columns=2, height=320)


def _share(value: float) -> None:
    if value > 1:
        raise InvalidParameterError(f"the study gtopk: density and warm_up must be shares of at most 1. Got {value}.")


def _check(study: Study) -> None:
    if not study.momentum < 1:
        raise InvalidParameterError(f"the study gtopk: momentum={study.momentum} must lie in [0, 1).")
    cost.scaling(cost.MODELS[0], study.ranks, 1.0)  # refuses ranks that it cannot have


def _tasks(study: Study) -> list[Digits]:
    """Return what is trained; nothing without torch."""
    names = {"cnn": "mnist", "lstm": _TEXT_NAME}
    chosen = [names[task] for task in study.tasks if task in names] if find_spec("torch") else []
    return [Digits(study.rows, study.test_rows, name) for name in chosen]


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
        "warm_up": Option(cost.WARM_UP, above=0, check=_share, may_be_empty=True),
        "timing": Option(
            True, "Time the published networks on one thread here.", flags=("--timing/--no-timing",)
        ),
        "networks": Option(tuple(cost.SPEEDS), choices=tuple(cost.SPEEDS), may_be_empty=True),
        "repeats": Option(5, least=1, demo=3),
        "ranks": Option(32, "Ranks of the tables, a power of two.", panel=_COST),
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
                "batch": cost.SPEEDS[run.model].batch or _SENTENCES, "batches": list(_TIMED[run.model]),
            },
        ),
        Grid(
            lambda s: {
                "dataset": _tasks(s), "seed": s.seeds,
                "strategy": [DENSE, *(name for name in s.ways if name != DENSE)],
            },
            _train_all, ("epochs", "momentum"), derive=_decides, load=_load,
        ),
    ],
    report=_report,
    about=(
        "Without torch, or with --model none and --no-timing, only the model of the cost of messages is evaluated."
    ),
    examples=(
        "dsgd study gtopk --demo --out demo/",
        "dsgd study gtopk --model lstm --epochs 40 --seeds 5 --out study/",
        "dsgd study gtopk --model none --no-timing --ranks 64 --latency 0.05 --bandwidth 1.25 --out study/",
    ),
    columns=("model", "strategy"),
    check=_check,
    needs_rows=False,
)  # fmt: skip
