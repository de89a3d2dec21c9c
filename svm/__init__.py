"""Support vector machines solved exactly: to a duality gap over all rows, computed in float64."""

if __name__ != "dsgd.svm":  # a folder named svm on sys.path would hide LIBSVM's module and load this one twice
    raise ImportError("this folder installs as dsgd.svm: run `pip install -e .` and `import dsgd.svm`")

from dsgd.svm.buffers import release_memory
from dsgd.svm.certificate import screen
from dsgd.svm.elimination import Elimination, EliminationRecord
from dsgd.svm.linear_svc import LinearSVC
from dsgd.svm.linear_svr import LinearSVR
from dsgd.svm.nu_svc import NuSVC
from dsgd.svm.nu_svr import NuSVR
from dsgd.svm.one_class import OneClassSVM
from dsgd.svm.path import PathPoint, SVMPath, svm_path
from dsgd.svm.svc import SVC
from dsgd.svm.svr import SVR

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
