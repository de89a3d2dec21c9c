"""Support vector machines, solved to a duality gap proven over all rows in float64.

The names below are loaded when they are first used: a worker that solves needs no estimators, and no scikit-learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if __name__ != "dsgd.svm":  # a folder named svm on sys.path would hide LIBSVM's module and load this one twice
    raise ImportError("this folder installs as dsgd.svm: run `pip install -e .` and `import dsgd.svm`")

from dsgd.lazy import loaded_on_use

if TYPE_CHECKING:
    from dsgd.svm.estimators.certificate import screen
    from dsgd.svm.estimators.linear_svc import LinearSVC
    from dsgd.svm.estimators.linear_svr import LinearSVR
    from dsgd.svm.estimators.nu_svc import NuSVC
    from dsgd.svm.estimators.nu_svr import NuSVR
    from dsgd.svm.estimators.one_class import OneClassSVM
    from dsgd.svm.estimators.svc import SVC
    from dsgd.svm.estimators.svr import SVR
    from dsgd.svm.kernel_solver.elimination import Elimination, EliminationRecord
    from dsgd.svm.kernels.buffers import release_memory
    from dsgd.svm.path.grid import PathPoint, SVMPath, svm_path

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

_HOMES: Final = {
    "SVC": "dsgd.svm.estimators.svc",
    "SVR": "dsgd.svm.estimators.svr",
    "Elimination": "dsgd.svm.kernel_solver.elimination",
    "EliminationRecord": "dsgd.svm.kernel_solver.elimination",
    "LinearSVC": "dsgd.svm.estimators.linear_svc",
    "LinearSVR": "dsgd.svm.estimators.linear_svr",
    "NuSVC": "dsgd.svm.estimators.nu_svc",
    "NuSVR": "dsgd.svm.estimators.nu_svr",
    "OneClassSVM": "dsgd.svm.estimators.one_class",
    "PathPoint": "dsgd.svm.path.grid",
    "SVMPath": "dsgd.svm.path.grid",
    "release_memory": "dsgd.svm.kernels.buffers",
    "screen": "dsgd.svm.estimators.certificate",
    "svm_path": "dsgd.svm.path.grid",
}

__getattr__ = loaded_on_use(__name__, _HOMES)
