"""The exceptions and warnings of dsgd.

::

    DsgdError
    ├── InvalidDataError (ValueError)          the data cannot be trained on
    │   ├── PartitionMismatchError             X, y and sample_weight are cut differently
    │   └── ParseError                         a file does not read as what it claims to be
    ├── InvalidParameterError (ValueError)     a parameter has a value it cannot have
    │   └── IncompatiblePartsError             two parts, each valid, do not go together
    ├── MissingPackageError (ImportError)      a package is not installed that a method needs
    ├── DatasetError                           a dataset is unknown or cannot be had
    ├── CheckpointError                        a checkpoint cannot be written, read or resumed from
    ├── ModelFileError (ValueError)            a model cannot be saved, or a file holds none that can be loaded
    ├── DiskSpaceError (OSError)               a disk has too little room for rows that do not fit into memory
    ├── ClusterError (RuntimeError)            the cluster cannot run the job
    │   ├── ClusterUnreachableError            no scheduler answers
    │   ├── MemoryLimitError                   a worker has too little memory for its share of the rows
    │   └── VersionMismatchError               a worker has no dsgd, or another one
    └── GangError (RuntimeError)               a running gang stopped
        ├── PausedError                        the ranks saved their state and stopped on request
        ├── RankError                          a rank raised; carries rank, worker, host and cause
        ├── WorkerLostError                    the process of a rank went away
        ├── GangTimeoutError (TimeoutError)    a wait outlived its deadline
        ├── ProtocolError                      a peer sent something unexpected
        └── AbortedError                       this rank stopped because the job did

and two warnings: `StragglerWarning` (UserWarning), a rank is much slower than the others; `DivergenceWarning`
(ConvergenceWarning of scikit-learn), a fit ended above the objective that it began at.

Every error pickles, so that an error of a rank reaches the client unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    DivergenceWarning: type[Warning]

__all__ = [
    "AbortedError",
    "CheckpointError",
    "ClusterError",
    "ClusterUnreachableError",
    "DatasetError",
    "DiskSpaceError",
    "DivergenceWarning",
    "DsgdError",
    "GangError",
    "GangTimeoutError",
    "IncompatiblePartsError",
    "InvalidDataError",
    "InvalidParameterError",
    "MemoryLimitError",
    "MissingPackageError",
    "ModelFileError",
    "ParseError",
    "PartitionMismatchError",
    "PausedError",
    "ProtocolError",
    "RankError",
    "StragglerWarning",
    "VersionMismatchError",
    "WorkerLostError",
]


class DsgdError(Exception):
    """Any error of this library."""


class InvalidDataError(DsgdError, ValueError):
    """The data passed cannot be trained on or predicted."""


class PartitionMismatchError(InvalidDataError):
    """X, y and sample_weight are not cut into the same partitions."""


class ParseError(InvalidDataError):
    """A file does not follow its format.

    Parameters
    ----------
    path : str
        The file.
    line : int
        The line, counted from 1.
    problem : str
        What is wrong with it.
    """

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(path, line, problem)
        self.path = path
        self.line = line
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.problem}"


class InvalidParameterError(DsgdError, ValueError):
    """A parameter has a value it cannot have."""


class IncompatiblePartsError(InvalidParameterError):
    """Two parts that are valid by themselves cannot be combined."""


class MissingPackageError(DsgdError, ImportError):
    """A method needs a package that is not installed."""


class DatasetError(DsgdError):
    """A dataset is unknown, or can be neither found, downloaded nor made."""


class CheckpointError(DsgdError):
    """A checkpoint cannot be written or read, or belongs to another job."""


class ModelFileError(DsgdError, ValueError):
    """A model holds what cannot be saved, or a file holds no model that this version can load."""


class DiskSpaceError(DsgdError, OSError):
    """A disk has too little room for rows that are trained out of core."""


class ClusterError(DsgdError, RuntimeError):
    """The cluster cannot run the job."""


class ClusterUnreachableError(ClusterError):
    """No scheduler answers at the address given."""


class MemoryLimitError(ClusterError):
    """A worker has too little memory for its share of the rows; nothing has been moved yet."""


class VersionMismatchError(ClusterError):
    """A worker cannot import dsgd, or has another version than the client."""


class GangError(DsgdError, RuntimeError):
    """A gang that was running has stopped."""


class PausedError(GangError):
    """The ranks have kept their state and stopped at an agreed point, as requested.

    The client that requested this forms a new gang; no one else sees this error.
    """


class RankError(GangError):
    """A rank program raised.

    Parameters
    ----------
    rank : int
        The rank that raised first.
    worker : str
        Its worker: a Dask worker address, or the name of a thread.
    host : str
        The host the worker runs on.
    cause : str
        The error and its traceback as text.
    """

    def __init__(self, rank: int, worker: str, host: str, cause: str) -> None:
        super().__init__(rank, worker, host, cause)
        self.rank = rank
        self.worker = worker
        self.host = host
        self.cause = cause

    def __str__(self) -> str:
        return f"rank {self.rank} on worker {self.worker} (host {self.host}) raised:\n{self.cause}"


class WorkerLostError(GangError):
    """A worker process left the cluster while its gang was running.

    Parameters
    ----------
    rank : int
        The rank that was lost; -1 for the process that drove a detached fit.
    worker : str
        Address of its worker.
    host : str
        The host the worker ran on.
    how : str, default "left the cluster"
        How it was lost, to follow "worker ..." in the message.
    """

    def __init__(self, rank: int, worker: str, host: str, how: str = "left the cluster") -> None:
        super().__init__(rank, worker, host, how)
        self.rank = rank
        self.worker = worker
        self.host = host
        self.how = how

    def __str__(self) -> str:
        who = f"rank {self.rank}" if self.rank >= 0 else "the driver of the fit"
        return (
            f"{who} was lost: worker {self.worker} (host {self.host}) {self.how} during the job. "
            "Fit again; if it was killed for memory, give workers more of it or use more workers."
        )


class GangTimeoutError(GangError, TimeoutError):
    """A rank waited for something longer than its deadline allows."""


class ProtocolError(GangError):
    """A peer sent a frame that does not belong to this job, round or operation."""


class AbortedError(GangError):
    """A rank stopped because its job was aborted; the reason is elsewhere."""


class StragglerWarning(UserWarning):
    """A rank takes much longer for a row than the others; the text names its worker and host."""


def __getattr__(name: str) -> type[Warning]:
    if name != "DivergenceWarning":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Made when it is asked for: its base takes the time to load scikit-learn.
    from sklearn.exceptions import ConvergenceWarning

    text = "A fit ended above the objective that it began at; the text has both, and what to change."
    made = type(name, (ConvergenceWarning,), {"__module__": __name__, "__doc__": text})
    return globals().setdefault(name, made)  # type: ignore[no-any-return]
