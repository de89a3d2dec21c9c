"""Validation of torch modules: the rows that are scored after every epoch, and the module as it is then."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.utils import check_X_y
from torch import nn

from dsgd.inputs.blocks import Block
from dsgd.inputs.frames import validated
from dsgd.inputs.validation import ScoredRows, checked_block, refuse_unknown_labels, scorer_for
from dsgd.torch.flat import FlatModule
from dsgd.torch.statistics import ModuleStatistics
from dsgd.torch.weights import checked_weights
from dsgd.types import AnyArray, FloatVector


@dataclass(frozen=True)
class _ModelOf:
    """Makes a fitted estimator of the parameters of a module and its buffers."""

    estimator: Any
    template: nn.Module

    def __call__(self, params: FloatVector, statistics: Mapping[str, AnyArray]) -> Any:
        model = self.estimator
        flat, buffers = FlatModule(self.template, model.device), ModuleStatistics(self.template)
        flat.params[:] = params
        flat.to_device()
        buffers.load(dict(statistics))
        model.module_ = flat.module.eval()
        return model


def scored_rows(estimator: Any, given: tuple[Any, Any, Any], template: nn.Module) -> ScoredRows:
    """Return validation rows, checked against the training rows, and what scores a module on them."""
    many = not estimator._is_classification
    options: dict[str, Any] = {"allow_nd": True, "multi_output": many, "dtype": "numeric", "y_numeric": many}

    def check() -> Block:
        X, y, weights = given
        if estimator.dataset is not None:  # nobody here has seen its rows
            X, y = check_X_y(X, y, **options)
        else:
            X, y = validated(estimator, X, y, reset=False, **options)
        return X, y, checked_weights(weights, X)

    block = checked_block(check)
    if estimator._is_classification:
        refuse_unknown_labels(block[1], estimator.classes_)
    bare = estimator._without_client()
    for name in ("_audience", "feature_names_in_", "module_"):
        vars(bare).pop(name, None)
    flat = FlatModule(copy.deepcopy(template))
    statistics = {name: vector.copy() for name, vector in ModuleStatistics(flat.module).vectors().items()}
    found = ScoredRows(_ModelOf(bare, copy.deepcopy(template)), scorer_for(bare), block)
    if torch.device(estimator.device).type == "cpu":  # another device may be there on the workers alone
        found.try_out(type(estimator).__name__, estimator.scoring, flat.params, statistics)
    return found
