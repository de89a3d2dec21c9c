"""Approximate kernels: transformers after which a linear model is nearly a kernel machine.

::

    model = make_pipeline(RandomFeatures(2000, gamma=0.1, random_state=0), SGDClassifier()).fit(X, y)

`RandomFeatures` draws its features without seeing rows, `Nystroem` makes them of some of the rows. Both are what
scikit-learn's `RBFSampler` and `Nystroem` are, with further kinds, sparse rows, single precision and blocks: a
transformation needs no more memory than its result. `parse_features` makes them of a text of the command line.
"""

from dsgd.kernel_approximation.nystroem import Nystroem
from dsgd.kernel_approximation.random_features import RandomFeatures, parse_features

__all__ = ["Nystroem", "RandomFeatures", "parse_features"]
