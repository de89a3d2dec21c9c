"""Torch modules trained with the strategies, compressors and transports of dsgd.

Nothing else in the library imports torch; this package does, and says what to install where it is missing.
"""

from __future__ import annotations

try:
    import torch as _torch
except ImportError as _error:
    raise ImportError(
        'dsgd.torch needs torch, which is not installed here. Install it with: pip install "dsgd[torch]"'
    ) from _error

from dsgd.torch.estimators import TorchClassifier, TorchRegressor
from dsgd.torch.flat import FlatModule
from dsgd.torch.parts import LARS, Passes, measure_node, trace
from dsgd.torch.process_group import compress_hook, launch
from dsgd.torch.synchronizer import Synchronizer

__all__ = [
    "LARS",
    "FlatModule",
    "Passes",
    "Synchronizer",
    "TorchClassifier",
    "TorchRegressor",
    "compress_hook",
    "launch",
    "measure_node",
    "trace",
]

del _torch
