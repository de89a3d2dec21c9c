"""The study of neural networks: methods of synchronisation by accuracy, seconds and bytes, on handwritten digits.

Every point of a curve is a separate training run from the same start and with the same seed, because the models of
ranks in the middle of a run are not what training returns. Every study includes the synchronous run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from dsgd import sync as methods
from dsgd.compress import DGC, QSGD, ErrorFeedback, GTopK, Layerwise, PowerSGD
from dsgd.datasets import find, load, locate
from dsgd.errors import DatasetError, DsgdError, InvalidDataError, InvalidParameterError
from dsgd.report import Axis, Claim, Figure, Line, Panel, Table, byte_text, figure_text
from dsgd.report.figures import MUTED, texts_at
from dsgd.sim import SimulatedCluster
from dsgd.study.frame import options
from dsgd.study.frame.data import MissingData, StudyData, file_names, majority_accuracy, point, sizes_of, spent
from dsgd.study.frame.report import data_table, gang_text, joined, line_of, where
from dsgd.study.frame.rows import Cell, Row, Run, cells_of, one_of, pareto
from dsgd.study.frame.study import Batch, Grid, Option, Study
from dsgd.study.published import STATEMENTS, average, exact
from dsgd.types import AnyArray

__all__ = ["STUDY"]

# -- digits --------------------------------------------------------------------------------------------------------

# Mean and standard deviation of the pixels of MNIST over 255, the usual scaling.
_MEAN, _DEVIATION = 0.1307, 0.3081


def load_images(rows: int | None = None, test_rows: int | None = None) -> StudyData:
    """Return at most so many of MNIST if it is on this machine, else of the 1,797 digits of scikit-learn, 8 by 8."""
    try:
        train, test = (load("mnist", part, dtype=np.float32, download=False) for part in ("train", "test"))
    except DatasetError:
        from sklearn import datasets

        X, y = datasets.load_digits(return_X_y=True)
        order, n_test = np.random.default_rng(0).permutation(len(y)), 360
        X, y = X[order].astype(np.float32).reshape(-1, 1, 8, 8) / 16.0 - 0.3, y[order].astype(np.int64)
        train_X, train_y = X[n_test:][:rows], y[n_test:][:rows]
        return StudyData("digits", "scikit-learn", train_X, train_y, X[:n_test][:test_rows], y[:n_test][:test_rows])
    images = [
        (_pixels(one.X, most), np.asarray(one.y[:most]).astype(np.int64))
        for one, most in ((train, rows), (test, test_rows))
    ]
    return StudyData("mnist", file_names(train.source), *images[0], *images[1])


def _pixels(X: Any, rows: int | None) -> AnyArray:
    dense = np.asarray(X[:rows].toarray() if hasattr(X, "toarray") else X[:rows], dtype=np.float32)
    side = round(dense.shape[1] ** 0.5)
    scaled = (dense / (255.0 if dense.max() > 1.0 else 1.0) - _MEAN) / _DEVIATION
    images: AnyArray = np.ascontiguousarray(scaled.reshape(-1, 1, side, side), dtype=np.float32)
    return images


def described(data: StudyData) -> Row:
    """Return the columns of a row that describe images or texts."""
    return {
        "source": data.source, "checksum": data.checksum, "shape": list(data.X.shape[1:]),
        "majority_accuracy": majority_accuracy(data.y, data.y_test),
    }  # fmt: skip


@dataclass(frozen=True)
class Digits:
    """At most so many digits: those of MNIST if it is on this machine."""

    rows: int | None
    test_rows: int | None
    name: str = "mnist"


def load_digits(source: Digits, dtype: str, rows: Sequence[Row]) -> StudyData | MissingData:
    """Load digits; what is left of MNIST where a study has begun with it and it is not here any more."""
    del dtype
    own = [row for row in rows if row.get("dataset") == "mnist"]
    is_gone = own and locate(find("mnist"), "train") is None
    left = sizes_of("mnist", own, source.rows, source.test_rows) if is_gone else None
    return left or load_images(source.rows, source.test_rows)


# -- methods -------------------------------------------------------------------------------------------------------

_SYNCHRONOUS: Final = "synchronous"
# Each weight is sent as its best approximation of rank 2.
_LOW_RANK: Final = Layerwise({"*": ErrorFeedback(PowerSGD(2))})
# Batches between two exchanges, for methods that do not exchange after every batch; parts of a model that is exchanged
# in parts, all of them in as many batches; and groups of ranks with a leader of their own.
_RARE, _FRAGMENTS, _GROUPS = 16, 4, 2


def _gradients(study: Study, ranks: int, compressor: Any = None) -> methods.MinibatchSGD:
    # The rate is for the batch of two ranks. With more ranks it grows in proportion, over the first half of an epoch.
    warmup = 0.5 if ranks > 2 else 0.0
    return methods.MinibatchSGD(
        batch=ranks * study.batch, base_batch=2 * study.batch, warmup=warmup, compressor=compressor
    )


#: Every method by name: a function that makes its strategy for a study and a number of ranks.
WAYS: Final[Mapping[str, Callable[[Study, int], methods.AbstractStrategy[Any]]]] = MappingProxyType(
    {
        _SYNCHRONOUS: _gradients,
        "local": lambda study, ranks: methods.LocalSGD(_RARE * study.batch),
        "post-local": lambda study, ranks: methods.PostLocalSGD(_RARE * study.batch, study.batch),
        "easgd": lambda study, ranks: methods.EASGD(_RARE * study.batch),
        "leader": lambda study, ranks: methods.LeaderSGD(_RARE * study.batch),
        "async-easgd": lambda study, ranks: methods.AsyncEASGD(_RARE * study.batch),
        "async-leader": lambda study, ranks: methods.AsyncLeaderSGD(_RARE * study.batch, n_groups=_GROUPS),
        "sgp": lambda study, ranks: methods.SGP(study.batch),
        "dpsgd": lambda study, ranks: methods.DPSGD(study.batch),
        "gtopk": lambda study, ranks: _gradients(study, ranks, GTopK(study.density)),
        "dgc": lambda study, ranks: _gradients(study, ranks, DGC(study.density, study.momentum)),
        "powersgd": lambda study, ranks: _gradients(study, ranks, _LOW_RANK),
        "qsgd": lambda study, ranks: _gradients(study, ranks, QSGD()),
        "diloco": lambda study, ranks: methods.DiLoCo(_RARE * study.batch, 0.7, 0.5),
        "streaming": lambda study, ranks: methods.StreamingDiLoCo(
            _RARE // _FRAGMENTS * study.batch, _FRAGMENTS, 1, 0.5, 0.7, 0.5
        ),
    }
)


def _decides(run: Run) -> Row:
    # DGC has a momentum of its own.
    momentum = 0.0 if run.strategy == "dgc" else run.study.momentum
    return {"sync": repr(WAYS[run.strategy](run.study, run.ranks)), "momentum": momentum}


def _check(study: Study) -> None:
    for name in ("ranks", "seeds", "looks"):
        numbers = list(getattr(study, name))
        if numbers != sorted(set(numbers)):
            raise InvalidParameterError(f"the study dnn: {name} must be rising numbers. Got {numbers}.")
    if not study.momentum < 1:
        raise InvalidParameterError(f"the study dnn: momentum={study.momentum} must lie in [0, 1).")


# -- measuring -----------------------------------------------------------------------------------------------------


def _measure(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    """Train on one number of ranks."""
    images, warm = batch.data, set()
    for run in runs:
        if batch.client is not None and run.model not in warm:
            # Timings exclude loading torch and compiled code on the workers.
            _fit(batch, run, 1, 4 * run.ranks * run.batch)
            warm.add(run.model)
        curve = []
        for epochs in run.looks:
            model = _fit(batch, run, epochs)
            worth = {"accuracy": model.score(images.X_test, images.y_test)}
            curve.append(point(model, epochs) | worth | {"train_loss": model.history_[-1]["train_loss"]})
        yield {
            **described(images),
            "test_accuracy": curve[-1]["accuracy"],
            "train_s": curve[-1]["seconds"],
            **spent(model, run.ranks),
            "n_params": sum(parameter.numel() for parameter in model.module_.parameters()),
            "curve": curve,
        }


def _fit(batch: Batch, run: Run, epochs: int, rows: int | None = None) -> Any:
    """Return a fitted estimator."""
    from dsgd.study.networks import CNN, MLP, AnnealedSGD
    from dsgd.torch import TorchClassifier

    images, sync, cluster = batch.data, WAYS[run.strategy](run.study, run.ranks), batch.client
    model = TorchClassifier(
        CNN if run.model == "cnn" else MLP,
        module__side=images.X.shape[-1],
        optimizer=AnnealedSGD,
        optimizer__momentum=run.momentum,
        optimizer__steps=epochs * -(-len(images.y[:rows]) // (run.ranks * run.batch)),
        lr=run.lr,
        batch_size=None if sync.exchanges == "gradient" else run.batch,
        max_epochs=epochs,
        sync=sync,
        client=cluster or SimulatedCluster(run.ranks, run.network or "10GbE", seed=run.seed),
        random_state=run.seed,
    )
    try:
        return model.fit(images.X[:rows], images.y[:rows])
    except InvalidDataError as error:
        raise DsgdError(f"{run.strategy} on {run.ranks} ranks: {error} Leave it out, or lower --lr.") from error


# -- reading rows --------------------------------------------------------------------------------------------------


class _Gang:
    """All methods with one network and one number of ranks, the synchronous run among them."""

    def __init__(self, own: Cell) -> None:
        self.cells = cells_of(own.rows, "strategy")
        self.dataset, self.model, self.ranks, self.network = own.dataset, own.model, own.ranks, own.network
        self.name = f"{self.model.upper()} on {self.dataset}, {gang_text(self.ranks, self.network)}"
        self.title = f"{self.model.upper()}, {self.ranks} ranks ({where(self.network)})"

    @property
    def synchronous(self) -> Cell:
        """The synchronous run."""
        found = one_of(self.cells, strategy=_SYNCHRONOUS)
        assert found is not None  # gangs without one are left out
        return found

    def share(self, cell: Cell) -> float:
        """Return the bytes of the synchronous run over those of a cell."""
        return self.synchronous.median("bytes_sent") / max(1.0, cell.median("bytes_sent"))

    def front(self, cost: str) -> list[str]:
        """Return the Pareto front of accuracy and `cost` (bytes_sent or train_s), cheapest first."""
        return pareto({cell.strategy: (cell.median(cost), -cell.median("test_accuracy")) for cell in self.cells})


def _gangs(rows: Sequence[Row]) -> list[_Gang]:
    found = [_Gang(own) for own in cells_of(rows, "dataset", "model", "ranks", "network")]
    return [gang for gang in found if one_of(gang.cells, strategy=_SYNCHRONOUS)]


def _claims(gang: _Gang) -> list[Claim]:
    """Return what this library promises of neural networks, and whether it holds here."""
    claims = []
    is_whole = gang.dataset == "mnist" and gang.cells[0].rows[0]["rows"] >= 60_000
    for cell in gang.cells if is_whole and (gang.model, gang.ranks, gang.network) == ("cnn", 2, None) else ():
        statement, found = STATEMENTS.get(f"dsgd/dnn-accuracy-{cell.strategy}"), average(cell.column("test_accuracy"))
        if statement is not None and found is not None:
            trivial = cell.stat("majority_accuracy")
            commonest = f"{trivial.median:.2%}: commonest label" if trivial else ""
            claims.append(statement.judged(gang.name, found, f"{cell.sync}.", baseline=commonest))
    for cell in gang.cells if gang.ranks == 2 else ():
        statement = STATEMENTS.get(f"dsgd/dnn-bytes-{cell.strategy}")
        if statement is not None:
            # Bytes follow from a closed form (tests/laws/test_bytes.py): no seed changes them.
            times, note = exact(gang.share(cell)), f"{cell.sync}."
            claims.append(
                statement.judged(
                    gang.name, times, note, trivial=gang.synchronous.is_trivial, baseline="1/1: synchronous"
                )
            )
    return claims


# -- reporting -----------------------------------------------------------------------------------------------------


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    gangs = _gangs(rows)
    # With one point per curve, the first figure shows all there is.
    figures = [_pareto_figure(gangs)] if gangs else []
    if gangs and len(study.looks) > 1:
        figures.append(_curves_figure(gangs))
    clock = "Seconds are those of a virtual clock with an estimated cost of work; bytes and models are real."
    return {
        "answer": " ".join(map(_answer, gangs))
        or "No synchronous run has finished yet, so there is nothing to compare with.",
        "ran": [
            ("Ranks", f"{joined(study.ranks)}; {where(study.network)}"),
            (
                "Training",
                f"{study.batch} rows of a rank in a step, rate {study.lr:g}, momentum {study.momentum:g}; evaluated "
                f"after {joined(study.looks)} epochs; seeds {joined(study.seeds)}",
            ),
        ],
        "doubts": [] if study.network is None else [clock],
        "data": [data_table(rows, "a row")],
        "claims": [claim for gang in gangs for claim in _claims(gang)],
        "source": "What this library promises.",
        "figures": figures,
        "tables": [_table(gang) for gang in gangs],
    }


def _answer(gang: _Gang) -> str:
    base = gang.synchronous.median("test_accuracy")
    close = [cell for cell in gang.cells if cell.median("test_accuracy") >= base - 0.003]
    least = min(close, key=lambda cell: cell.median("bytes_sent"))
    soonest = min(close, key=lambda cell: cell.median("train_s"))
    return (
        f"{gang.name}: {len(close)} of {len(gang.cells)} methods come within 0.3 points of the synchronous {base:.2%}; "
        f"of them {least.strategy} sends the least, {byte_text(least.median('bytes_sent'))} "
        f"(1/{gang.share(least):.0f}), and {soonest.strategy} finishes first, after "
        f"{figure_text(soonest.median('train_s'))} s."
    )


def _table(gang: _Gang) -> Table:
    """Return one row per method, the synchronous one first."""
    fronts = {"*": gang.front("bytes_sent"), "+": gang.front("train_s")}
    base, first = gang.synchronous.median("test_accuracy"), gang.cells[0].rows[0]

    def share(cell: Cell) -> str:
        times = gang.share(cell)
        return "1" if cell.strategy == _SYNCHRONOUS else f"1/{times:.1f}" if times >= 1 else f"{1 / times:.2f}"

    def method(cell: Cell) -> str:
        return " ".join([cell.strategy, *(star for star, front in fronts.items() if cell.strategy in front)])

    columns = (
        "method = method | accuracy = test_accuracy:.2% | - synchronous = behind | s = train_s:3 | "
        "wire + wait s = wire | encode s = encode_s:3 | sent = bytes_sent:B | sent / synchronous = share | "
        "control = control_bytes_sent:B | rounds = rounds:,.0f | messages = messages:,.0f"
    )
    note = (
        f"{first['n_params']:,} parameters, {first['looks'][-1]} epochs over {first['rows']:,} rows; accuracy on "
        f"{first['test_rows']:,} others. Seconds but the first column: of the mean rank. Sent: by all ranks together, "
        "for the algorithm; control: all other messages. "
        "No other method is better in both accuracy and bytes (*), or accuracy and seconds (+)."
    )
    return Table.of(
        gang.name,
        gang.cells,
        columns,
        note,
        method=method,
        share=share,
        behind=lambda cell: f"{100 * (cell.median('test_accuracy') - base):+.2f}",
        wire=lambda cell: figure_text(cell.median("wire_s") + cell.median("wait_s")),
    )


_SENT: Final = Axis("sent by all ranks", "log", "B")
_SECONDS: Final = Axis("seconds", "log", "s")
_ERROR: Final = Axis("test error", "log", "%")


def _pareto_figure(gangs: Sequence[_Gang]) -> Figure:
    """Return test error against bytes and seconds at the end of training, a line of two panels per gang."""
    panels = []
    for gang in gangs:
        for cost, axis in (("bytes_sent", _SENT), ("train_s", _SECONDS)):
            front = gang.front(cost)
            points = {cell.strategy: (cell.median(cost), 1.0 - cell.median("test_accuracy")) for cell in gang.cells}
            x, y = [points[name][0] for name in front], [points[name][1] for name in front]
            # Labels of the others would overlap; the legend names them.
            written = texts_at({name: points[name] for name in front})
            marks = [Line("Pareto front", x, y, MUTED, width=1.2, steps=True)]
            for number, (name, (at, error)) in enumerate(points.items()):
                style: dict[str, Any] = {"dash": "solid", "width": 0, "size": 8, "written": written}
                marks.append(line_of(name, [at], [error], number, names=[name], **style))
            costs, errors = zip(*points.values(), strict=True)
            panels.append(Panel(gang.title, _roomy(axis, costs, 0.25), _roomy(_ERROR, errors, 0.12), marks))
    caption = (
        "Test error of the model that training returns, against what all ranks have sent and against the time it took. "
        "The line joins the Pareto front: no other method is better in both."
    )
    return Figure("pareto", "Accuracy for bytes and for seconds", caption, panels, columns=2, height=330)


def _curves_figure(gangs: Sequence[_Gang]) -> Figure:
    """Return test error against bytes and seconds after some epochs and at the end, a line of panels per gang."""
    panels = []
    for gang in gangs:
        for cost, axis in (("bytes_sent", _SENT), ("seconds", _SECONDS)):
            marks = [
                line_of(
                    cell.strategy, [at[cost] for at in cell.curve()], [1.0 - at["accuracy"] for at in cell.curve()],
                    number, names=[f"{cell.strategy} after {at['epoch']:g} epochs" for at in cell.curve()],
                )
                for number, cell in enumerate(gang.cells)
            ]  # fmt: skip
            panels.append(Panel(gang.title, axis, _ERROR, marks))
    caption = "Each point is a training of its own, from the same start, that ends after so many epochs."
    return Figure("curves", "Test error during training", caption, panels, columns=2, height=330)


def _roomy(axis: Axis, values: Sequence[float], share: float) -> Axis:
    """Return an axis with a share of its length left free below the values, for the names of points.

    Values within a factor of four get a linear axis, since a logarithmic one has few ticks there.
    """
    low, high = min(values), max(values)
    if low <= 0.0 or high <= 4.0 * low:
        room = (high - low) or 0.5 * high or 1.0
        return replace(axis, scale="linear", low=max(0.0, low - share * room), high=high + 0.08 * room)
    factor = high / low
    return replace(axis, low=low / factor**share, high=high * factor**0.08)


#: The study.
STUDY: Final = Study(
    "dnn",
    "How should the ranks of a neural network synchronise?",
    (),
    options={
        "models": Option(
            ("mlp", "cnn"), "mlp or cnn; repeat for both, which is the default.", flags=("--model",),
            choices=("mlp", "cnn"), demo=("mlp",),
        ),
        "ways": Option(
            tuple(WAYS), f"{', '.join(WAYS)}; repeat for several. All by default.", flags=("--strategy", "-s"),
            choices=tuple(WAYS), may_be_empty=True,
        ),
        "ranks": Option((2, 4), "Numbers of ranks, as 2,4.", least=2, demo=(16,)),
        "seeds": options.seeds((0,)),
        # Each is a separate training run from the same start.
        "looks": Option((1, 8), "Epochs after which a run is evaluated, as 1,4.", least=1, demo=(1, 3)),
        "rows": Option(None, "Training rows.", of=int, demo=8_000),
        "test_rows": Option(None, demo=1_000),
        "network": options.network(demo="10GbE"),
        "batch": Option(32, "Rows of a rank in a step.", panel="Training", least=1, demo=16),
        # Where gradients are exchanged, that of a batch of two ranks; it falls linearly to zero at the end.
        "lr": Option(0.03, "The learning rate.", panel="Training", above=0),
        "momentum": Option(0.9, least=0),
        "density": Option(0.01, "Share of the entries that gTop-k and DGC send.", panel="Training", above=0),
    },
    grids=[
        Grid(
            lambda s: {
                "ranks": s.ranks, "dataset": [Digits(s.rows, s.test_rows)], "model": s.models, "seed": s.seeds,
                "strategy": [_SYNCHRONOUS, *(name for name in s.ways if name != _SYNCHRONOUS)],
            },
            _measure,
            ("network", "looks", "batch", "lr"),
            derive=_decides,
            workers=lambda run: run.ranks if run.study.network is None else 0,
            load=load_digits,
        )
    ],
    report=_report,
    examples=(
        "dsgd study dnn --demo --out demo/",
        "dsgd study dnn --model cnn --ranks 2 --out study/",
        "dsgd study dnn --model mlp -s local -s gtopk -s diloco --ranks 16 --simulated --network 1GbE --out study/",
    ),
    columns=("model", "strategy"),
    check=_check,
    simulated="10GbE",
    on_cluster=True,
)  # fmt: skip
