"""From a user's data to row blocks on a cluster, and from a model to lazy predictions."""

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
