"""From a user's data to row blocks on a cluster, and from a model to lazy predictions.

The names below are loaded when they are first used: a worker that packs rows loads neither estimators nor scikit-learn,
which would take longer than many a fit.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dsgd.inputs.asked import count_threads
    from dsgd.inputs.blocks import Block, BlockSummary, make_block, widen
    from dsgd.inputs.callbacks import notifies_callbacks
    from dsgd.inputs.estimator import AbstractClusterEstimator
    from dsgd.inputs.frames import validated
    from dsgd.inputs.linear import AbstractLinearEstimator
    from dsgd.inputs.placed import ClusterBlocks
    from dsgd.inputs.sources import is_collection, is_distributed

__all__ = [
    "AbstractClusterEstimator",
    "AbstractLinearEstimator",
    "Block",
    "BlockSummary",
    "ClusterBlocks",
    "count_threads",
    "is_collection",
    "is_distributed",
    "make_block",
    "notifies_callbacks",
    "validated",
    "widen",
]

_HOMES: Final = {
    "AbstractClusterEstimator": "estimator",
    "AbstractLinearEstimator": "linear",
    "Block": "blocks",
    "BlockSummary": "blocks",
    "ClusterBlocks": "placed",
    "count_threads": "asked",
    "is_collection": "sources",
    "is_distributed": "sources",
    "make_block": "blocks",
    "notifies_callbacks": "callbacks",
    "validated": "frames",
    "widen": "blocks",
}


def __getattr__(name: str) -> Any:
    """Load a name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dsgd.inputs' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"dsgd.inputs.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
