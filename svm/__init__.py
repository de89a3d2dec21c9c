"""Support vector machines, solved to a duality gap proven over all rows in float64.

The names below are loaded when they are first used: a worker that solves needs no estimators, and no scikit-learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsgd.lazy import loaded_on_use

if __name__ != "dsgd.svm":  # a folder named svm on sys.path would hide LIBSVM's module and load this one twice
    raise ImportError("this folder installs as dsgd.svm: run `pip install -e .` and `import dsgd.svm`")


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


__getattr__ = loaded_on_use(
    __name__,
    {
        ".estimators.certificate": "screen",
        ".estimators.linear_svc": "LinearSVC",
        ".estimators.linear_svr": "LinearSVR",
        ".estimators.nu_svc": "NuSVC",
        ".estimators.nu_svr": "NuSVR",
        ".estimators.one_class": "OneClassSVM",
        ".estimators.svc": "SVC",
        ".estimators.svr": "SVR",
        ".kernel_solver.elimination": "Elimination EliminationRecord",
        ".kernels.buffers": "release_memory",
        ".path.grid": "PathPoint SVMPath svm_path",
    },
)
