"""Which workers of a shared cluster a job may run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsgd.errors import InvalidParameterError

#: What ``workers=`` takes: names, addresses or hosts of workers, or amounts of resources by name.
Workers = Sequence[str] | Mapping[str, float] | None


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
