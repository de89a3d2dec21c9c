"""Support vector machines, solved to a duality gap proven over all rows in float64.

The names below are loaded when they are first used: a worker that solves needs no estimators, and no scikit-learn.
"""

from typing import TYPE_CHECKING

if __name__ != "dsgd.svm":  # a folder named svm on sys.path would hide LIBSVM's module and load this one twice
    raise ImportError("this folder installs as dsgd.svm: run `pip install -e .` and `import dsgd.svm`")

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.svm.estimators.kernel import SVC, SVR, NuSVC, NuSVR, OneClassSVM, screen
    from dsgd.svm.estimators.linear import LinearSVC, LinearSVR
    from dsgd.svm.kernel_solver.elimination import Elimination, EliminationRecord
    from dsgd.svm.kernels.threads import release_memory
    from dsgd.svm.path import PathPoint, SVMPath, svm_path

__all__ = [
    "SVC",
    "SVR",
    "Elimination",
    "EliminationRecord",
    "LinearSVC",
    "LinearSVR",
    "NuSVC",
    "NuSVR",
    "OneClassSVM",
    "PathPoint",
    "SVMPath",
    "release_memory",
    "screen",
    "svm_path",
]


__getattr__ = loaded_on_use(__name__)
