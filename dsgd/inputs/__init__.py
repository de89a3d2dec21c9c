"""From a user's data to row blocks on a cluster, and from a model to lazy predictions.

The names below are loaded when they are first used: a worker that packs rows loads neither estimators nor scikit-learn,
which would take longer than many a fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.inputs.blocks import Block, BlockSummary, count_threads, make_block, widen
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


__getattr__ = loaded_on_use(
    __name__,
    {
        ".blocks": "Block BlockSummary count_threads make_block widen",
        ".callbacks": "notifies_callbacks",
        ".estimator": "AbstractClusterEstimator",
        ".frames": "validated",
        ".linear": "AbstractLinearEstimator",
        ".placed": "ClusterBlocks",
        ".sources": "is_collection is_distributed",
    },
)
