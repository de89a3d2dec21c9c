"""From what a user passes to row blocks on a cluster, and from a model back to lazy predictions."""

from dsgd.inputs.announcing import announced
from dsgd.inputs.blocks import Block, BlockSummary, make_block, widen
from dsgd.inputs.estimator import AbstractClusterEstimator, ClusterBlocks, count_threads
from dsgd.inputs.frames import validated
from dsgd.inputs.linear import AbstractLinearEstimator
from dsgd.inputs.sources import is_collection, is_distributed

__all__ = [
    "AbstractClusterEstimator",
    "AbstractLinearEstimator",
    "Block",
    "BlockSummary",
    "ClusterBlocks",
    "announced",
    "count_threads",
    "is_collection",
    "is_distributed",
    "make_block",
    "validated",
    "widen",
]
