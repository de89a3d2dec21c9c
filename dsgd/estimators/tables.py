"""Mixed columns at the entry of a fit: from here on rows are matrices.

Rows of tables become CSR where they are: tables in memory and files here, partitions of dask dataframes and, with a
client, pieces of files on the workers. Files are read piece by piece, once for what the encoder learns and once for the
rows; before, those of CSV for what their columns hold. Out of core the rows of this process go to a file as they are
made.

What encodes is loaded by a fit that encodes: most do not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sklearn.base import clone

from dsgd.errors import IncompatiblePartsError, InvalidDataError, InvalidParameterError
from dsgd.inputs.blocks import Block
from dsgd.inputs.estimator import with_targets
from dsgd.inputs.frames import as_table, batches, column
from dsgd.inputs.linear import as_numpy
from dsgd.inputs.named import check_names, kind_of_labels, take_named
from dsgd.inputs.rows import Rows
from dsgd.inputs.shared import holds_blocks, is_simulated
from dsgd.inputs.sources import is_collection, is_distributed, to_delayed_blocks
from dsgd.inputs.table_files import TableFiles, are_table_files, with_files_opened
from dsgd.inputs.table_pieces import Piece
from dsgd.inputs.tables import Kind, Table, refuse_queries
from dsgd.local.shard import MappedFile, mapped_bytes
from dsgd.stages import stage

if TYPE_CHECKING:
    from dsgd.preprocessing import ColumnEncoder
    from dsgd.preprocessing.statistics import Statistics


# Statistics of so many parts are merged by one task.
_MERGED: Final = 8


def check_encoder(name: str, encoder: Any) -> None:
    """Raise `InvalidParameterError` unless this is None, "auto" or a `ColumnEncoder` with valid parameters."""
    if encoder is None:
        return
    from dsgd.preprocessing import ColumnEncoder

    if isinstance(encoder, ColumnEncoder):
        encoder.check()
    elif not (isinstance(encoder, str) and encoder == "auto"):
        raise InvalidParameterError(
            f"{name}(encoder=...) must be None, 'auto' or a ColumnEncoder of dsgd.preprocessing. Got {encoder!r}."
        )


def encoded(estimator: Any, given: tuple[Any, Any, Any], *, goes_on: bool) -> tuple[Any, Any, Any]:
    """Return rows, targets and weights encoded, as arrays or delayed blocks; set what is learnt of columns."""
    X, y, weights = (as_numpy(each, name) for each, name in zip(given, ("X", "y", "sample_weight"), strict=True))
    files = are_table_files(X)
    kept = estimator.encoder_ if goes_on else None
    if estimator.encoder is None and kept is None and not files:
        vars(estimator).pop("encoder_", None)
        return take_named(X, y, weights)
    if isinstance(X, Rows) or holds_blocks(X):
        raise IncompatiblePartsError(
            f"{type(estimator).__name__}(encoder=...) takes tables, and X is {X!r:.60}. Encode them before: "
            "Rows(encoder.fit_transform(table), y)."
        )
    from dsgd.preprocessing import ColumnEncoder

    encoder = kept
    fresh = clone(estimator.encoder) if isinstance(estimator.encoder, ColumnEncoder) else ColumnEncoder()
    client = estimator._deployment.client
    on_cluster = client is not None and not is_simulated(client)
    found: tuple[Any, Any, Any]
    if files:
        X = with_files_opened(X).with_targets(_named(y, weights))
        if not X.pieces:
            raise InvalidDataError(f"{X!r}: no rows.")
        encoder, found = (_read_there if on_cluster else _read_here)(estimator, (X, y, weights), kept, fresh)
    elif is_distributed(X):
        encoder, found = _encoded_there(estimator, take_named(X, y, weights), encoder or fresh, fits=encoder is None)
    else:
        refuse_queries(y, "y")
        refuse_queries(weights, "sample_weight")
        X, y, weights = take_named(X, y, weights)
        with stage("encode"):
            encoder = fresh.fit(X) if encoder is None else encoder
            table = encoder.checked(X)
            found = _rows(estimator, encoder, [table], len(table)), y, weights
    estimator.encoder_ = encoder
    for name in ("n_features_in_", "feature_names_in_"):
        vars(estimator).pop(name, None)
        if hasattr(encoder, name):
            setattr(estimator, name, getattr(encoder, name))
    return found


def _named(*given: Any) -> list[str]:
    """Return the names among targets and weights."""
    return list(dict.fromkeys(each for each in given if isinstance(each, str)))


def _as_they_are(head: Table) -> ColumnEncoder:
    """Return what takes columns as they are, where no encoder is asked for; all must be numbers."""
    from dsgd.preprocessing import ColumnEncoder

    for name in head.names:
        if head.kind(name) != "number":
            raise InvalidDataError(
                f"column {name!r} holds no numbers. Pass encoder='auto', or a dsgd.preprocessing.ColumnEncoder that "
                "says what becomes of it."
            )
    return ColumnEncoder(dict.fromkeys(head.names, "passthrough"), dtype=np.float64)


def _rows(estimator: Any, encoder: ColumnEncoder, tables: Iterable[Table], n_rows: int) -> Any:
    """Return encoded rows of this process: in memory, or out of core in a file."""
    writer = encoder.writer()
    if not estimator._deployment.out_of_core or not writer.knows_its_size:
        return writer.rows_of(tables, n_rows)
    mapping = MappedFile(tempfile.gettempdir(), mapped_bytes(*writer.most_bytes(n_rows)))
    return writer.rows_of(tables, n_rows, mapping.empty, mapping.release)


def _begun(
    estimator: Any, files: TableFiles, named: list[str], fresh: ColumnEncoder, over: Callable[..., Iterable[Any]]
) -> tuple[ColumnEncoder, Statistics, dict[str, Kind]]:
    """Return the encoder of files, the statistics that it is to learn, and what is wanted of all columns."""
    from dsgd.preprocessing.statistics import CATEGORICAL, wanted_of

    given = fresh.columns or {}
    # A saved index is a column for who has a role for it.
    columns = [name for name in files.all_names if name not in named and (name in files.names or name in given)]
    dropped = [name for name in columns if given.get(name) == "drop"]
    names = [name for name in columns if given.get(name) in CATEGORICAL]
    labels = _kind_of_labels(estimator, named)
    read = [name for name in [*columns, *named] if name not in dropped and name not in labels]
    kinds = files.kinds(read, names, over) | labels
    head = files.head({name: kinds.get(name) for name in columns})
    encoder = fresh if estimator.encoder is not None else _as_they_are(head)
    statistics = encoder.statistics_of(head)
    return encoder, statistics, wanted_of(statistics.roles, statistics.kinds) | {name: kinds[name] for name in named}


def _kind_of_labels(estimator: Any, named: list[str]) -> dict[str, Kind]:
    """Return the kind of the column of targets, the first one, where labels were passed to ``partial_fit``."""
    is_known = vars(estimator).get("_given_classes", False) and named
    return {named[0]: kind_of_labels(estimator.classes_)} if is_known else {}


def _wanted_again(
    estimator: Any, encoder: ColumnEncoder, files: TableFiles, named: list[str], over: Any
) -> dict[str, Kind]:
    """Return what is wanted of all columns where training goes on: what was wanted before."""
    known = {name: kind for name, kind in vars(encoder).get("kinds_", {}).items() if name in named}
    known |= _kind_of_labels(estimator, named)
    new = files.kinds([name for name in named if name not in known], over=over)
    return encoder.wanted_ | known | new


def _read_here(
    estimator: Any, given: tuple[TableFiles, Any, Any], kept: ColumnEncoder | None, fresh: ColumnEncoder
) -> tuple[ColumnEncoder, tuple[Any, Any, Any]]:
    """Return the encoder, fitted, and the rows of files in this process."""
    files, y, weights = given
    names = _named(y, weights)
    with stage("encode"):
        if kept is None:
            encoder, statistics, wanted = _begun(estimator, files, names, fresh, map)
            encoder.learn(_with_rows(statistics, files.tables(statistics.columns, wanted)))
            encoder.kinds_ |= {name: wanted[name] for name in names}
        else:
            encoder, wanted = kept, _wanted_again(estimator, kept, files, names, map)
        columns = encoder.columns_read_
        parts: dict[str, list[Any]] = {name: [] for name in names}

        def tables() -> Iterator[Table]:
            for table in files.tables([*columns, *names], wanted):
                for name in names:
                    parts[name].append(column(table, name))
                yield table

        n_rows = files.n_rows
        if n_rows is None and kept is None:
            n_rows = encoder.n_samples_seen_
        elif n_rows is None:
            n_rows = sum(map(len, files.tables(columns[:1])))
        X = _rows(estimator, encoder, tables(), n_rows)
    found = {name: np.concatenate(values) for name, values in parts.items()}
    return encoder, (X, *(found[each] if isinstance(each, str) else each for each in (y, weights)))


def _read_there(
    estimator: Any, given: tuple[TableFiles, Any, Any], kept: ColumnEncoder | None, fresh: ColumnEncoder
) -> tuple[ColumnEncoder, tuple[Any, Any, Any]]:
    """Return the encoder, fitted, and delayed blocks: a piece of the files is read by the worker that has its rows."""
    import dask

    files, y, weights = given
    check_names(y, weights)
    names = _named(y, weights)
    files.check(names)

    def over(f: Callable[[Piece], Any], pieces: Sequence[Piece]) -> list[Any]:
        return _computed(estimator, [dask.delayed(f, pure=False)(piece) for piece in pieces])

    if kept is None:
        encoder, statistics, wanted = _begun(estimator, files, names, fresh, over)
        learn = dask.delayed(_learned_from_piece, pure=False)
        encoder.learn(_merged_there(estimator, [learn(statistics, piece, wanted) for piece in files.pieces]))
        encoder.kinds_ |= {name: wanted[name] for name in names}
    else:
        encoder, wanted = kept, _wanted_again(estimator, kept, files, names, over)
    encode, shared = dask.delayed(_encoded_piece, pure=False), dask.delayed(encoder, pure=False)
    return encoder, ([encode(shared, piece, y, weights, wanted) for piece in files.pieces], None, None)


def _encoded_there(
    estimator: Any, given: tuple[Any, Any, Any], encoder: ColumnEncoder, *, fits: bool
) -> tuple[ColumnEncoder, tuple[Any, Any, Any]]:
    """Return the encoder, fitted, and delayed blocks of a dask collection or of delayed blocks of tables."""
    import dask

    parts = to_delayed_blocks(*given, build=with_targets, compute=lambda values: _computed(estimator, values))
    if fits:
        learn = dask.delayed(_learned_from_block, pure=False)
        statistics = encoder.statistics_of(_head(estimator, given[0], parts[0]))
        encoder.learn(_merged_there(estimator, [learn(statistics, part) for part in parts]))
    encode, shared = dask.delayed(_encoded_block, pure=False), dask.delayed(encoder, pure=False)
    return encoder, ([encode(shared, part) for part in parts], None, None)


def _head(estimator: Any, X: Any, first: Any) -> Table:
    """Return a table that says what the columns of a collection hold."""
    import dask

    if hasattr(X, "chunks"):
        return as_table(np.empty((0, X.shape[1]), X.dtype))
    # Types alone do not say what objects are.
    if is_collection(X) and not any(dtype.hasobject for dtype in X.dtypes if isinstance(dtype, np.dtype)):
        return as_table(X._meta)
    (rows,) = _computed(estimator, [dask.delayed(lambda block: block[0][:1000], pure=False)(first)])
    return as_table(rows)


def _computed(estimator: Any, values: Sequence[Any]) -> list[Any]:
    """Compute delayed values where the estimator trains."""
    from dsgd.runtime import client_for
    from dsgd.runtime.gang.cluster import Cluster

    gang = estimator._deployment
    with client_for(gang.client) as client, stage("encode"):
        cluster = Cluster(client, gang)
        return cluster.gather(cluster.compute(values), "encoding the rows", "peer")


def _merged_there(estimator: Any, parts: Sequence[Any]) -> Statistics:
    """Return the statistics of all rows from delayed ones, which the workers merge."""
    import dask

    merge = dask.delayed(_merged, pure=False)
    while len(parts) > 1:
        parts = [merge(list(parts[k : k + _MERGED])) for k in range(0, len(parts), _MERGED)]
    (statistics,) = _computed(estimator, parts)
    found: Statistics = statistics
    return found


def _merged(parts: Sequence[Statistics]) -> Statistics:
    # What a task is given belongs to others, too.
    total = parts[0].empty()
    for part in parts:
        total.merge(part)
    return total


def _with_rows(statistics: Statistics, tables: Iterable[Table]) -> Statistics:
    from dsgd.preprocessing.encoder import BATCH_ROWS

    for table in tables:
        for part in batches(table, BATCH_ROWS):
            statistics.add(part)
    return statistics


def _learned_from_piece(statistics: Statistics, piece: Piece, wanted: Mapping[str, Kind]) -> Statistics:
    return _with_rows(statistics.empty(), piece.tables(statistics.columns, wanted))


def _learned_from_block(statistics: Statistics, block: Any) -> Statistics:
    return _with_rows(statistics.empty(), [as_table(block[0])])


def _encoded_piece(
    encoder: ColumnEncoder, piece: Piece, y: str, weights: str | None, wanted: Mapping[str, Kind]
) -> Block:
    names = _named(y, weights)
    tables = list(piece.tables([*encoder.columns_read_, *names], wanted))
    X = encoder.writer().rows_of(tables, sum(map(len, tables)))
    found = {name: np.concatenate([column(table, name) for table in tables]) for name in names}
    return X, found[y], None if weights is None else found[weights]


def _encoded_block(encoder: ColumnEncoder, block: Any) -> Block:
    X, y, weights = block
    return encoder.transform(X), y, weights
