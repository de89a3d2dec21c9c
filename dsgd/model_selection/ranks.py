"""A search on the ranks of a cluster: rows stay where they are, and every rank trains all columns on its own rows.

Problem: the rows of a search are on many workers, and a fit of each candidate on each fold is a job and thousands of
messages, each of one short model.

Method: every rank has the columns of all models, which skip the rows that their splits hold out, and all of them are
averaged in one message where a round of local SGD ends (`dsgd.sync.LocalSGD`). A column is then what ``fit`` on the
training rows of its split makes on as many ranks. Where periods or numbers of rows differ, rounds end at other times:
there is one message at each end of a round of the columns with the most rounds, for all whose rounds have ended since.

Cost per synchronisation: one all-reduce of the columns whose rounds end. In all that is as many bytes as the models of
single fits and, in an epoch, as many messages as the candidate with the shortest period has alone. An epoch ends with
another short one, and so does each score.

Source: local SGD as in `dsgd.sync.local`; averages with an L1 penalty as in `dsgd.local.sgd`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy.sparse import csr_matrix

from dsgd.errors import IncompatiblePartsError, InvalidDataError
from dsgd.estimators.base import AbstractSGD
from dsgd.estimators.packing import Packer
from dsgd.inputs.blocks import widen
from dsgd.inputs.shared import visit
from dsgd.ledger import COMPUTE, ENCODE
from dsgd.local import Shard
from dsgd.local.base import Evaluation
from dsgd.local.columns import Panel, make_panels
from dsgd.local.shard import spans, split
from dsgd.model_selection.base import Measure, Race, Scores, decisions_of
from dsgd.model_selection.training import Model, Training, weigh
from dsgd.runtime.rank import Rank
from dsgd.runtime.train.adaptation import missing_factor
from dsgd.sync import EpochAveraging, LocalSGD, mean_shares, resolve
from dsgd.types import AnyArray, FloatMatrix, FloatVector, IndexVector

#: The strategies by which columns are averaged.
Averaging: TypeAlias = LocalSGD | EpochAveraging


def strategies_of(candidates: Iterable[AbstractSGD]) -> list[Averaging]:
    """Return what each candidate's ``sync`` means."""
    strategies: list[Averaging] = []
    for candidate in candidates:
        strategy: Any = resolve(candidate.sync)
        if type(strategy) not in (LocalSGD, EpochAveraging) or strategy.overlap or strategy.compressor:
            raise IncompatiblePartsError(
                "SGDSearchCV on a cluster averages models in rounds of a fixed length: sync, of the estimator or in "
                "param_grid, must be None, a number of samples, LocalSGD or EpochAveraging, without overlap and "
                f"compressor. Got {strategy!r}. Compare other strategies with GridSearchCV."
            )
        strategies.append(strategy)
    return strategies


def split_roles(splits: Sequence[tuple[Any, Any]], order: IndexVector | None, lengths: Sequence[int]) -> list[AnyArray]:
    """Return for each block which of its rows the splits train and test on, in bits: what `RolePacker` reads."""
    ends = [0, *accumulate(lengths)]
    flags = np.zeros((ends[-1], 2 * len(splits)), bool)
    for number, (train, test) in enumerate(splits):
        flags[train, 2 * number] = True
        flags[test, 2 * number + 1] = True
        if len(train) != int(flags[:, 2 * number].sum()):
            raise InvalidDataError(f"split {number} of cv trains on a row more than once; SGDSearchCV masks rows.")
    bits = np.packbits(flags, axis=1)
    bits = bits if order is None else bits[order]
    return [bits[low:high] for low, high in pairwise(ends)]


@dataclass(frozen=True)
class RankRows:
    """The rows of one rank in the order of training, and what each split does with them."""

    shard: Shard
    kept: AnyArray
    tested: AnyArray

    @property
    def n_rows(self) -> int:
        """Visits an epoch makes."""
        return self.shard.n_rows

    def cut(self, n: int) -> list[RankRows]:
        """Return the rows of n ranks that are threads of one process: views, of consecutive rows."""
        parts = [split(self.n_rows, n, k) for k in range(n)]
        return [
            RankRows(self.shard.packed(low, high), self.kept[:, low:high], self.tested[:, low:high])
            for low, high in parts
        ]

    @cached_property
    def matrix(self) -> Any:
        """The rows as an array or a CSR matrix, to be multiplied."""
        shard = self.shard
        if shard.indptr is None or shard.indices is None:
            return shard.values
        low, high = int(shard.indptr[0]), int(shard.indptr[-1])
        pointers = shard.indptr.astype(np.int64) - low
        entries = shard.values[low:high], shard.indices[low:high].view(np.int32)
        return csr_matrix((*entries, pointers), shape=(shard.n_rows, shard.n_features))


@dataclass(frozen=True)
class RolePacker:
    """Packs blocks that have the roles of their rows at the end into the rows of a rank."""

    packer: Packer
    n_splits: int

    def __call__(self, blocks: Sequence[Any], rank_number: int) -> RankRows:
        """Return the rows of a rank, made of its blocks in order."""
        packer = self.packer
        builder = packer.builder(None, rank_number, copies=True)
        bits = [np.zeros((0, -(-2 * self.n_splits // 8)), np.uint8)]
        given: Iterator[Any] = visit(blocks)
        for X, y, weights, roles in given:
            builder.look(widen(X, packer.n_features), packer.targets(y), weights)
            bits.append(roles)
        for X, *_ in visit(blocks):
            builder.place(widen(X, packer.n_features))
        walk, shard = builder.walk, builder.finish()
        flags = np.unpackbits(np.concatenate(bits), axis=1, count=2 * self.n_splits)
        flags = flags if walk is None else flags[walk]
        kept, tested = np.ascontiguousarray(flags[:, 0::2].T), np.ascontiguousarray(flags[:, 1::2].T)
        return RankRows(replace(shard, seed=packer.seed if packer.shuffle else None), kept, tested)


class SharedTraining(Training):
    """Trains models on the rows of several ranks; see `Training`. Every rank makes one of it, with equal models."""

    def __init__(self, rank: Rank, rows: RankRows, models: Sequence[Model], strategies: Sequence[Averaging]) -> None:
        super().__init__(rows.shard, rows.kept, models)
        self._rank = rank
        # Kernels are compiled or loaded before ranks meet.
        for panel in self._panels:
            panel.run(rows.shard, rows.kept[panel.columns[0].split], self._order, 0, 0)
        n_splits = len(rows.kept)
        own = [[int(np.count_nonzero(kept)), _entries(rows.shard, kept)] for kept in rows.kept]
        with rank.ledger.round("setup"):
            told = rank.group.roll_call(np.array(own, np.int64).ravel()).reshape(rank.size, n_splits, 2)
            squares = np.array([_mean_square(rows, kept) for kept in rows.kept])
            # Rows of each rank in each split.
            self._counts: Any = told[:, :, 0]
            totals, entries = told.sum(axis=0).T
            if not totals.all():
                raise InvalidDataError(
                    f"split {int(totals.argmin())} of cv has no rows to train on, or none with a weight."
                )
            squares *= self._counts[rank.number] / totals
            sums = np.concatenate([squares, rows.kept @ rows.shard.weights.astype(np.float64)])
            rank.group.allreduce(sums)
        squares = sums[:n_splits]
        weigh(models, totals.astype(np.float64), sums[n_splits:])
        densities = (entries / (totals * rows.shard.n_features)).tolist()
        self.rounds, self._pooled = [1] * len(models), [1.0] * len(models)
        for number, model in enumerate(models):
            strategy, counts = strategies[model.candidate], self._counts[:, model.split]
            if rank.size > 1:
                period = strategy.period.on_rows_of(densities[model.split])
                self.rounds[number] = period.rounds_per_epoch(counts.tolist())
            missing = missing_factor(strategy, model.optimizer, int(np.count_nonzero(counts)))
            if missing != 1.0:
                self._pooled[number] = model.optimizer.pooled_factor(missing, float(squares[model.split]))
        columns = [column for panel in self._panels for column in panel.columns]
        self._panels = make_panels(
            (replace(each, rounds=self.rounds[each.model], optimizer=models[each.model].optimizer) for each in columns),
            rows.shard,
        )
        self.sizes = [0] * len(models)
        for panel in self._panels:
            for column in panel.columns:
                self.sizes[column.model] += panel.n_mixed

    def _eta_scale(self, number: int) -> float:
        return super()._eta_scale(number) * self._pooled[number]

    def _visit_all(self, threads: ThreadPoolExecutor) -> None:
        """Take all panels over all rows of this rank, and average them where their rounds end."""
        ledger = self._rank.ledger
        kinds = [(panel.columns[0].split, panel.columns[0].rounds) for panel in self._panels]
        places = {kind: self._places(*kind) for kind in set(kinds)}
        shares, most = self._shares(), max(rounds for _, rounds in kinds)
        weights = {panel: np.array([shares[column.model] for column in panel.columns]) for panel in self._panels}
        for step in range(most):
            self._rank.check()
            moving = []
            for panel, kind in zip(self._panels, kinds, strict=True):
                # A round that ends between two of the most frequent ones is averaged with the later one.
                before, after = step * kind[1] // most, (step + 1) * kind[1] // most
                if after > before:
                    moving.append((panel, places[kind][before], places[kind][after]))
            with ledger.round("sync"):
                begin = ledger.clock() if ledger.timing else 0.0
                self._walk_each(moving)
                if ledger.timing:
                    ledger.charge(COMPUTE, ledger.clock() - begin)
                self._average({panel: weights[panel] for panel, *_ in moving})

    def _places(self, number: int, rounds: int) -> list[int]:
        """Return the places of the walk of this epoch at which rounds of a split begin, and where the last one ends."""
        n_rows = self._shard.n_rows
        if rounds == 1:
            return [0, n_rows]
        kept = self._kept[number]
        if self._shard.seed is not None:
            kept = np.concatenate([kept[:0], *(kept[low:high] for low, high in spans(self._order, 0, n_rows))])
        rows = int(self._counts[self._rank.number, number]) * np.arange(rounds + 1) // rounds
        places = np.searchsorted(np.cumsum(kept, dtype=np.int64), rows) + 1
        places[rows == 0] = 0
        return [int(place) for place in places]

    def _shares(self) -> dict[int, float]:
        """Return the weight of this rank in the mean of each model in training."""
        known: dict[Hashable, float] = {}
        shares: dict[int, float] = {}
        for number in self.running:
            model = self.models[number]
            sgd = model.optimizer
            # What the planned rates are made of: models of the same ones have a weight in common.
            key = model.split, sgd.schedule, sgd.power_t, sgd.objective.alpha
            if key not in known:
                known[key] = self._share(model)
            shares[number] = known[key]
        return shares

    def _share(self, model: Model) -> float:
        """Return the weight of this rank in the mean of a model, as `dsgd.runtime.train.adaptation` has it."""
        counts = self._counts[:, model.split].astype(np.float64)
        if (counts == counts[0]).all():
            return 1.0 / len(counts)
        begins = 1.0 + (self.n_epochs - 1) * counts
        rates = model.optimizer.planned_rates(begins, counts)
        return float(mean_shares(self._counts[:, model.split], rates)[self._rank.number])

    def _walk_each(self, moving: Sequence[tuple[Panel, int, int]]) -> None:
        """Take each panel over its places start..stop, all of them over one stretch before the next."""
        # Stretches begin where they do for any other panels, so that these change no bit.
        first = min(start for _, start, _ in moving) // self._stretch * self._stretch
        for low in range(first, max(stop for *_, stop in moving), self._stretch):
            for panel, start, stop in moving:
                begin, end = max(start, low), min(stop, low + self._stretch)
                if begin < end:
                    panel.run(self._shard, self._kept[panel.columns[0].split], self._order, begin, end)
        steps = sum((stop - start) * len(panel.columns) for panel, start, stop in moving)
        per_row = self._shard.entries(0, self._shard.n_rows) / max(1, self._shard.n_rows)
        self._rank.worked(rows=max(stop - start for _, start, stop in moving), entries=int(steps * per_row))

    def _average(self, shares: Mapping[Panel, FloatVector]) -> None:
        """Replace columns by their means over the ranks, in one message; `shares` are the weights of this one."""
        if self._rank.size == 1:
            return
        ledger = self._rank.ledger
        begin = ledger.clock() if ledger.timing else 0.0
        parts = []
        for panel, weights in shares.items():
            part = panel.to_mix()
            part *= weights.astype(part.dtype)
            part[:, weights == 0.0] = 0.0  # a rank without rows must not be able to spoil the mean
            parts.append(part)
        message = np.concatenate([part.ravel() for part in parts])
        if ledger.timing:
            ledger.charge(ENCODE, ledger.clock() - begin)
        self._rank.group.allreduce(message)
        stops = list(accumulate(part.size for part in parts))
        for panel, part, stop in zip(shares, parts, stops, strict=True):
            panel.mixed(message[stop - part.size : stop].reshape(part.shape))

    def _objectives(self) -> dict[int, FloatVector]:
        """Return the objectives of each model on the rows of all ranks."""
        found = super()._objectives()
        if self._rank.size == 1:
            return found
        counts = {number: self._counts[:, self.models[number].split] for number in found}
        own = {number: int(counts[number][self._rank.number]) for number in found}
        message = np.concatenate(
            [values * own[number] if own[number] else 0 * values for number, values in found.items()]
        )
        with self._rank.ledger.round("control"):
            self._rank.group.allreduce(message)
        stops = list(accumulate(len(values) for values in found.values()))
        return {
            number: message[stop - len(found[number]) : stop] / counts[number].sum()
            for number, stop in zip(found, stops, strict=True)
        }


class Found(NamedTuple):
    """What a search on ranks brings home."""

    scores: dict[str, dict[str, FloatMatrix]]
    score_seconds: FloatMatrix
    models: list[Model]
    n_epochs: int
    rungs: AnyArray
    rounds: Sequence[int] = ()
    sizes: Sequence[int] = ()


def search_on_rank(
    rank: Rank,
    data: RankRows,
    models: Sequence[Model],
    strategies: Sequence[Averaging],
    race: Race,
    scorers: dict[str, str],
    measures: Sequence[Measure],
) -> Found | None:
    """Search on one rank, together with its peers; rank 0 returns what is found."""
    training = SharedTraining(rank, data, copy.deepcopy(list(models)), strategies)
    scoring = _SharedScoring(rank, data, training, scorers, measures)
    scores = Scores(training, race, len(measures), len(data.kept), scoring.score)
    rungs = race.run(training, scores)
    if rank.number != 0:
        return None
    for model in training.models:
        model.coef = model.intercept = None
    more = training.n_epochs, rungs, training.rounds, training.sizes
    return Found(scores.found, scores.seconds, training.models, *more)


class _SharedScoring:
    """Scores of models on the rows of all ranks."""

    def __init__(
        self, rank: Rank, rows: RankRows, training: Training, scorers: dict[str, str], measures: Sequence[Measure]
    ) -> None:
        self._rank, self._rows, self._training = rank, rows, training
        self._scorers, self._measures = scorers, measures
        self._means: dict[tuple[int, str], float] = {}

    def score(self, numbers: Sequence[int], number: int, kind: str) -> tuple[list[dict[str, float]], float]:
        """Return scores and seconds of models; see `dsgd.model_selection.base.Score`."""
        begin = time.perf_counter()
        mask = (self._rows.tested if kind == "test" else self._rows.kept)[number]
        rows, shard = np.flatnonzero(mask), self._rows.shard
        targets, weights = shard.targets[rows].astype(np.float64), shard.weights[rows].astype(np.float64)
        mean = self._mean((number, kind), targets, weights)
        models = [self._training.models[k] for k in numbers]
        sums = np.zeros((len(models), len(self._scorers), len(Evaluation().as_vector())))
        for k, model in enumerate(models):
            decisions, measure = decisions_of([model], self._rows.matrix, rows)[:, 0], self._measures[model.candidate]
            for m, name in enumerate(self._scorers.values()):
                sums[k, m] = measure.sums(name, decisions, targets, weights, mean).as_vector()
        with self._rank.ledger.round("control"):
            self._rank.group.allreduce(sums.reshape(-1))
        found = [
            {
                metric: self._measures[model.candidate].score(name, Evaluation.from_vector(sums[k, m]))
                for m, (metric, name) in enumerate(self._scorers.items())
            }
            for k, model in enumerate(models)
        ]
        return found, (time.perf_counter() - begin) / len(models)

    def _mean(self, key: tuple[int, str], targets: FloatVector, weights: FloatVector) -> float:
        """Return the mean target of the rows of a split and kind on all ranks."""
        if key not in self._means:
            sums = np.array([weights @ targets, weights.sum()])
            with self._rank.ledger.round("control"):
                self._rank.group.allreduce(sums)
            self._means[key] = float(sums[0] / sums[1]) if sums[1] else float("nan")
        return self._means[key]


def _entries(shard: Shard, kept: AnyArray) -> int:
    """Return how many entries the kept rows have."""
    if shard.indptr is None:
        return int(np.count_nonzero(kept)) * shard.n_features
    return int(np.diff(shard.indptr.astype(np.int64))[kept != 0].sum())


def _mean_square(rows: RankRows, kept: AnyArray) -> float:
    """Return the mean squared length of the first kept rows, as `Shard.mean_square` of these alone."""
    first = np.flatnonzero(kept)[:4096]
    part = rows.matrix[first]
    entries = (part.data if rows.shard.is_sparse else part).reshape(-1).astype(np.float64)
    return float(entries @ entries) / max(1, len(first))
