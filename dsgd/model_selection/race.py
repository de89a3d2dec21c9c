"""The course of a search: models train, scores are taken, and candidates drop out.

It is the same in this process and on every rank of a cluster: what it decides follows from scores and objectives that
all ranks have in common.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsgd.errors import InvalidDataError
from dsgd.model_selection.training import Training
from dsgd.types import AnyArray

#: Returns the scores by metric of models, by their numbers, on the rows of a split of a kind (``"test"`` or
#: ``"train"``), and the seconds of each.
Score = Callable[[Sequence[int], int, str], tuple[Sequence[dict[str, float]], float]]


class Scores:
    """The scores of a search so far, (n_candidates, n_splits) of each kind and metric."""

    def __init__(self, training: Training, race: Race, n_candidates: int, n_splits: int, score: Score) -> None:
        self._training, self._race, self._score = training, race, score
        self.n_candidates, self._n_splits = n_candidates, n_splits
        shape = n_candidates, n_splits
        self.found = {kind: {name: np.full(shape, np.nan) for name in race.metrics} for kind in race.kinds}
        self.seconds = np.zeros(shape)

    def models_of(self, candidates: AnyArray) -> list[int]:
        """Return the numbers of the models of candidates."""
        n = self._n_splits
        return [int(candidate) * n + split for candidate in candidates for split in range(n)]

    def means(self, metric: str) -> AnyArray:
        """Return the mean test scores, shape (n_candidates,)."""
        means: AnyArray = self.found["test"][metric].mean(axis=1)
        return means

    def update(self, candidates: AnyArray) -> None:
        """Score the models of candidates as they are, which are settled."""
        models, n = self._training.models, self._n_splits
        for split in range(n):
            numbers = [int(candidate) * n + split for candidate in candidates]
            sound = [number for number in numbers if not models[number].problem]
            for kind, metrics in self.found.items():
                for number in set(numbers).difference(sound):
                    for values in metrics.values():
                        values[number // n, split] = self._race.of_failed(models[number].problem)
                if not sound:
                    continue
                found, seconds = self._score(sound, split, kind)
                for number, scores in zip(sound, found, strict=True):
                    self.seconds[number // n, split] += seconds if kind == "test" else 0.0
                    for name, value in scores.items():
                        metrics[name][number // n, split] = value


@dataclass(frozen=True)
class Race:
    """What is scored, and when candidates drop out."""

    metrics: tuple[str, ...]
    chooser: str
    kinds: tuple[str, ...]
    error_score: Any
    factor: float | None
    min_epochs: int

    def of_failed(self, problem: str) -> float:
        """Return the score of a model that failed, or raise `InvalidDataError`."""
        if self.error_score == "raise":
            raise InvalidDataError(problem)
        return float(self.error_score)

    def run(self, training: Training, scores: Scores) -> AnyArray:
        """Train all models, dropping candidates on the way if that is wanted; return the last rung of each."""
        n = scores.n_candidates
        rungs, competing = np.zeros(n, np.int64), np.arange(n)
        n_rungs = 1 if self.factor is None else 1 + math.floor(math.log(n) / math.log(self.factor) + 1e-9)
        for rung in range(n_rungs):
            is_last = rung == n_rungs - 1
            training.run(math.inf if is_last else round(self.min_epochs * (self.factor or 1.0) ** rung))
            training.settle(training.running)
            rungs[competing] = rung
            scores.update(competing)
            if not is_last:
                means = scores.means(self.chooser)
                ordered = competing[np.argsort(-np.nan_to_num(means[competing], nan=-np.inf), kind="stable")]
                n_left = math.ceil(len(competing) / (self.factor or 1.0))
                training.stop(scores.models_of(ordered[n_left:]))
                competing = np.sort(ordered[:n_left])
        return rungs
