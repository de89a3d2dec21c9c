"""Where ranks of a job run: the cluster, which of its workers, and what holds them together."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, Final, Self

from dsgd.comm.base import TransportName, check_transport
from dsgd.errors import InvalidParameterError
from dsgd.runtime.checkpoints.checkpoint import AUTO, Checkpoint
from dsgd.runtime.timeouts import FailurePolicy, Shrink, Timeouts, as_policy
from dsgd.validation import check_bool

#: What ``workers=`` takes: names, addresses or hosts of workers, or amounts of resources by name.
Workers = Sequence[str] | Mapping[str, float] | None

#: Fields that have an effect on worker processes only.
_OF_WORKERS: Final = ("transport", "on_failure", "elastic", "timeouts", "workers")

#: Fields that say where a fit runs, reads and writes, which is no part of a model.
PLACES: Final = ("client", "workers", "checkpoint", "resume_from")


def check_workers(where: str, value: object) -> None:
    """Raise `InvalidParameterError` unless a parameter names workers, or resources, or is None."""
    if isinstance(value, Mapping):
        is_right = all(isinstance(name, str) and isinstance(n, (int, float)) and n >= 0 for name, n in value.items())
    else:
        is_right = isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
    if value is not None and not (is_right and value):
        raise InvalidParameterError(
            f"{where} must be a list of names, addresses or hosts of workers, a mapping of resources to amounts, as "
            f"{{'GPU': 1}}, or None. Got {value!r}."
        )


@dataclass(frozen=True, repr=False)
class Gang:
    """The ranks of a fit: where they run, how they exchange, and what happens when a machine fails.

    Pass it as `client` of an estimator. Its fields are parameters of the estimator: ``client__transport`` in
    ``set_params`` and in grids of a search. All estimators take `transport`, `timeouts` and `workers`; each says which
    others, and refuses the rest.

    Parameters
    ----------
    client : distributed.Client, SimulatedCluster or None, default None
        The cluster to train on. None trains arrays in this process, and dask collections on the current client or on a
        local cluster, which is kept for later fits (`dsgd.runtime.close_own_cluster`). With a
        `dsgd.sim.SimulatedCluster`, ranks run in this process on a virtual clock.
    transport : {"auto", "spin", "shm", "tcp", "rpc"} or str, default "auto"
        How ranks on a cluster exchange: by default shared memory inside a host and TCP between hosts; see
        `dsgd.runtime.run_on_cluster`.
    on_failure : {"raise", "restart", "shrink"}, `dsgd.runtime.Restart` or `dsgd.runtime.Shrink`, default "raise"
        What happens on a cluster when a worker is lost or hangs: raise the error; continue with all rows on the
        remaining workers; or continue with the remaining ranks and the rows they hold. The objects also limit how
        often. SVMs, whose gap is proven over all rows, do not shrink.
    checkpoint : str, path, `dsgd.runtime.Checkpoint` or None, default None
        Folder or URL where ``fit`` writes the state of training, every 30 seconds by default. A folder that holds
        checkpoints of another fit is refused.
    resume_from : "auto", str, path or None, default None
        Folder or URL of checkpoints from which ``fit`` continues, with the same data and parameters. "auto" continues
        from the checkpoints in the folder of `checkpoint`, or starts from the beginning if it has none.
    elastic : bool, default False
        Whether workers that join the cluster take part from the next epoch on.
    timeouts : `dsgd.runtime.Timeouts` or None, default None
        How long a fit on a cluster waits for peers, other fits, heartbeats and the scheduler. None uses the Dask
        settings ``dsgd.runtime.timeouts``.
    workers : list of str, dict of str to float, or None, default None
        Workers that a fit on a cluster may use: names, addresses or hosts, or resources that they have, as
        ``{"GPU": 1}``. None uses what ``dask.annotate(workers=..., resources=...)`` says, or all.
    out_of_core : bool, default False
        Keep the rows in files on the disks of the workers or of this machine, for data larger than memory. The model is
        the same, bit for bit.

    Raises
    ------
    InvalidParameterError
        A field has a value it cannot have.

    Examples
    --------
    >>> from dsgd import Gang, SGDClassifier
    >>> model = SGDClassifier(client=Gang(transport="tcp", on_failure="restart"))
    >>> model.set_params(client__transport="shm").client
    Gang(transport='shm', on_failure='restart')
    """

    client: Any = None
    _: KW_ONLY
    transport: TransportName = "auto"
    on_failure: FailurePolicy = "raise"
    checkpoint: Checkpoint | str | os.PathLike[str] | None = None
    resume_from: str | os.PathLike[str] | None = None
    elastic: bool = False
    timeouts: Timeouts | None = None
    workers: Workers = None
    out_of_core: bool = False

    def __post_init__(self) -> None:
        """Refuse values that a field cannot have."""
        check_transport("Gang(transport=...)", self.transport)
        as_policy("Gang(on_failure=...)", self.on_failure)
        if self.timeouts is not None and not isinstance(self.timeouts, Timeouts):
            raise InvalidParameterError(
                f"Gang(timeouts=...) must be dsgd.runtime.Timeouts(...) or None. Got {self.timeouts!r}."
            )
        check_workers("Gang(workers=...)", self.workers)
        check_bool("Gang(elastic=...)", self.elastic)
        check_bool("Gang(out_of_core=...)", self.out_of_core)
        places: tuple[type, ...] = (str, os.PathLike, type(None))
        for name, kinds, also in (
            ("checkpoint", (*places, Checkpoint), " or a Checkpoint"),
            ("resume_from", places, ""),
        ):
            value = getattr(self, name)
            if not isinstance(value, kinds) or value == "":
                raise InvalidParameterError(f"Gang({name}=...) must be None, a folder, a URL{also}. Got {value!r}.")
        if self.resume_from == AUTO and self.checkpoint is None:
            raise InvalidParameterError(
                "Gang(resume_from='auto') resumes from the folder of the checkpoints: set checkpoint=... as well."
            )

    def __repr__(self) -> str:
        client = [] if self.client is None else [repr(self.client)]
        return f"Gang({', '.join([*client, *(f'{name}={value!r}' for name, value in self.given().items())])})"

    def __sklearn_clone__(self) -> Self:
        return self  # a live client cannot be copied

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the fields by name, as scikit-learn asks for the parameters of a part of an estimator."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def given(self, *, of_workers: bool = False) -> dict[str, Any]:
        """Return the fields but `client` that are not at their defaults; of those that workers alone heed, or all."""
        names = {field.name: field.default for field in fields(self)[1:] if not of_workers or field.name in _OF_WORKERS}
        return {name: getattr(self, name) for name, default in names.items() if getattr(self, name) != default}

    def changed(self, fields_: Mapping[str, Any]) -> Self:
        """Return this with other values of some fields."""
        if unknown := fields_.keys() - self.get_params().keys():
            raise InvalidParameterError(
                f"Gang(...) has no field {min(unknown)!r}. It has {', '.join(self.get_params())}."
            )
        return replace(self, **fields_)

    def plain(self) -> Any:
        """Return this, or the client alone if nothing else is given."""
        return self if self.given() else self.client

    def placeless(self) -> Self | None:
        """Return this without what says where a fit runs, reads and writes; None if nothing else is given."""
        nowhere: dict[str, Any] = dict.fromkeys(PLACES)
        found: Self | None = replace(self, **nowhere).plain()
        return found

    def check(self, name: str, takes: Collection[str]) -> None:
        """Raise `InvalidParameterError` for fields that an estimator, of this name, does not take.

        `takes` holds names of fields, and "shrink" where ranks may go on without the rows of a lost machine.
        """
        for field, value in self.given().items():
            if field not in ("transport", "timeouts", "workers", *takes):
                raise InvalidParameterError(f"{name}(client=Gang({field}={value!r})): {name} does not take {field}.")
        if "shrink" not in takes and isinstance(as_policy(name, self.on_failure), Shrink):
            raise InvalidParameterError(
                f"{name}(client=Gang(on_failure={self.on_failure!r})) would go on without the rows of the lost "
                'machine, but its gap is proven over all rows. Take "restart", which brings them back, or "raise".'
            )


def as_gang(client: Any) -> Gang:
    """Return what a user means by the client of an estimator."""
    return client if isinstance(client, Gang) else _HERE if client is None else Gang(client)


def meant_workers(given: Workers) -> tuple[list[str] | None, dict[str, float]]:
    """Return the names and resources of the workers that are meant: by what is given, else by Dask's annotations."""
    import dask

    if isinstance(given, Mapping):
        return None, dict(given)
    if given is not None:
        return list(given), {}
    noted = dask.get_annotations()
    names, resources = noted.get("workers"), noted.get("resources")
    names = [names] if isinstance(names, str) else names
    # Dask also takes functions of a key, which say nothing of a fit.
    return (
        [str(name) for name in names] if isinstance(names, (list, tuple, set, frozenset)) else None,
        dict(resources) if isinstance(resources, Mapping) else {},
    )


_HERE: Final = Gang()
