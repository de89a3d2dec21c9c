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

from dsgd.torch.classifier import TorchClassifier
from dsgd.torch.flat import FlatModule
from dsgd.torch.hooks import compress_hook
from dsgd.torch.lars import LARS
from dsgd.torch.launcher import launch
from dsgd.torch.measure import measure_node
from dsgd.torch.passes import Passes
from dsgd.torch.regressor import TorchRegressor
from dsgd.torch.synchronizer import Synchronizer
from dsgd.torch.trace import trace

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
