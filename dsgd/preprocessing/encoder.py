"""Mixed columns as rows of numbers: a scikit-learn transformer that never makes a dense matrix of categories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal, Self, get_args

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dsgd.errors import InvalidDataError, InvalidParameterError
from dsgd.inputs.frames import as_table, batches
from dsgd.inputs.tables import ArrayTable, Kind, Table
from dsgd.preprocessing.layout import Layout, Numbers, OneHot, RowWriter
from dsgd.preprocessing.statistics import Role, Statistics, stands_out, wanted_of
from dsgd.saving import SavingMixin
from dsgd.types import AnyArray
from dsgd.validation import check_choice, check_number, warn_user

_ROLES: Final = tuple(role for role in get_args(Role) if role != "auto")
#: Rows whose columns are looked at together.
BATCH_ROWS: Final = 65_536


@dataclass(eq=False, repr=False)
class ColumnEncoder(SavingMixin, TransformerMixin, BaseEstimator):
    """Columns of numbers, categories, dates and texts as rows of a CSR matrix.

    - Numbers are standardised: (x - mean) / standard deviation, over all rows that have a value. A missing number
      becomes the mean; if any was missing in ``fit``, a further feature marks missing numbers.
    - Categories (strings, and categorical types) are one-hot; columns with many of them are hashed to a feature and a
      sign. A missing value is a category. An unknown category has no feature.
    - Dates become a standardised time, and sines and cosines of the time of day, week and year. As categories or
      texts they are written by ISO 8601, in UTC.
    - Texts become hashed n-grams of words, of Euclidean norm one, as with scikit-learn's `HashingVectorizer`.

    The features are in this order: numbers and dates, one-hot columns, hashed categories, texts. If all columns are
    numbers and dates, the result is a dense array.

    Parameters
    ----------
    columns : mapping or None, default None
        How to encode some columns, by name: ``"numeric"``, ``"passthrough"`` (a number as it is, which may not be
        missing), ``"onehot"``, ``"hash"``, ``"text"``, ``"date"`` or ``"drop"``. All others are encoded by their type.
    categorical : {"auto", "onehot", "hash"}, default "auto"
        How to encode columns of categories; "auto" hashes those with more than `max_categories` of them in ``fit``.
    max_categories : int, default 10_000
        See `categorical`.
    min_frequency : int, default 1
        One-hot categories that occur less often in ``fit`` share one feature, as unknown categories then do.
    n_hashed : int, default 2**18
        Number of features of all hashed columns together, and of each text.
    ngram_range : tuple of int, default (1, 1)
        The smallest and the largest number of words in the n-grams of texts.
    handle_unknown : {"ignore", "error"}, default "ignore"
        Whether an unknown category in a one-hot column has no feature or is an error. A table whose column has unknown
        categories only is warned of.
    clip : float or None, default None
        The largest standardised number, in standard deviations; what is beyond becomes this one, with its sign. Single
        extreme values then do not dominate the steps of training. Dates are not clipped.
    dtype : dtype, default numpy.float32
        Type of the result, float32 or float64.

    Attributes
    ----------
    n_features_in_ : int
        Columns of the table.
    feature_names_in_ : array of str, shape (n_columns,)
        Their names, if they are strings. A table to transform must have these columns, in any order; others are
        ignored.
    n_features_out_ : int
        Features of the result.
    roles_ : dict
        How each column is encoded.
    kinds_ : dict
        What the values of each column are: ``"number"``, ``"category"`` or ``"date"``. Tables to transform, and files,
        are read so: ``"10"`` and 10 are one category.
    n_samples_seen_ : int
        Rows of ``fit``.

    Notes
    -----
    Mean and variance are exact for all rows to the last bit, however the rows are split. So the encoder is the same
    from one table, from the partitions of a dask dataframe, and from files that the ranks of a fit read; see
    `dsgd.preprocessing.statistics`.

    Sources: Weinberger et al., "Feature hashing for large scale multitask learning", ICML 2009, for hashing with signs.

    Examples
    --------
    >>> import pandas as pd
    >>> from dsgd.preprocessing import ColumnEncoder
    >>> table = pd.DataFrame({"price": [1.0, None, 3.0], "city": ["Oslo", "Rome", None]})
    >>> encoder = ColumnEncoder().fit(table)
    >>> encoder.get_feature_names_out().tolist()
    ['price', 'price_missing', 'city_Oslo', 'city_Rome', 'city_missing']
    >>> encoder.transform(table).toarray().tolist()
    [[-1.0, 0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0, 1.0]]
    """

    columns: Mapping[Any, str] | None = None
    _: KW_ONLY
    categorical: Literal["auto", "onehot", "hash"] = "auto"
    max_categories: int = 10_000
    min_frequency: int = 1
    n_hashed: int = 2**18
    ngram_range: tuple[int, int] = (1, 1)
    handle_unknown: Literal["ignore", "error"] = "ignore"
    clip: float | None = None
    dtype: Any = np.float32

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn means, deviations and categories of the columns of a table.

        Parameters
        ----------
        X : DataFrame, Arrow table, anything with ``__arrow_c_stream__``, or array, shape (n, n_columns)
            The rows.
        y : object, default None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        InvalidDataError
            A column cannot be encoded as requested.
        InvalidParameterError
            A parameter is outside its domain.
        """
        del y
        table = as_table(X)
        statistics = self.statistics_of(table)
        for part in batches(table, BATCH_ROWS):
            statistics.add(part)
        return self.learn(statistics, are_named=not isinstance(table, ArrayTable))

    def statistics_of(self, table: Table) -> Statistics:
        """Return empty statistics for the columns of a table, to which rows can be added.

        Parameters
        ----------
        table : Table
            Its columns say what becomes of them.

        Raises
        ------
        InvalidDataError, InvalidParameterError
            As `fit`.
        """
        self.check()
        if not table.names:
            raise InvalidDataError(
                f"Found array with 0 feature(s) (shape=({len(table)}, 0)) while a minimum of 1 is required."
            )
        if len(set(table.names)) < len(table.names):
            twice = sorted({str(name) for name in table.names if table.names.count(name) > 1})
            raise InvalidDataError(f"X has several columns of one name: {', '.join(twice)}. Rename them.")
        given = dict(self.columns or {})
        unknown = [name for name in given if name not in table.names]
        if unknown:
            raise InvalidDataError(
                f"{type(self).__name__}(columns=...) names columns that X does not have: {unknown!r}. It has "
                f"{', '.join(map(str, table.names))}."
            )
        roles: dict[Any, Role] = {}
        kinds: dict[Any, Kind] = {}
        of_kind: dict[str, Any] = {"number": "numeric", "date": "date", "category": self.categorical}
        for name in table.names:
            kind = table.kind(name)
            if name not in given and kind == "unknown":
                raise InvalidDataError(
                    f"column {name!r} holds neither numbers nor strings nor dates. Leave it out, with "
                    f"columns={{{name!r}: 'drop'}}."
                )
            roles[name] = given.get(name) or of_kind[kind]
            kinds[name] = table.value_kind(name)
        return Statistics(roles, int(self.max_categories), kinds)

    def learn(self, statistics: Statistics, *, are_named: bool = True) -> Self:
        """Take in the statistics of all rows.

        Parameters
        ----------
        statistics : Statistics
            From `statistics_of`, of all rows.
        are_named : bool, default True
            Whether the columns have names of their own.

        Returns
        -------
        self
        """
        if not statistics.n_rows:
            raise InvalidDataError("Found array with 0 sample(s) while a minimum of 1 is required.")
        names = list(statistics.roles)
        self.n_features_in_, self.n_samples_seen_ = len(names), statistics.n_rows
        self.__dict__.pop("feature_names_in_", None)
        if are_named and all(isinstance(name, str) for name in names):
            self.feature_names_in_ = np.asarray(names, dtype=object)
        self._columns = names
        roles: dict[Any, Any] = dict(statistics.roles)
        for name, found in statistics.categories.items():
            if roles[name] == "auto":
                roles[name] = "hash" if found.counts is None else "onehot"
        self.roles_, self.kinds_ = roles, dict(statistics.kinds)
        limit = np.inf if self.clip is None else float(self.clip)
        numbers = []
        for name, moments in statistics.moments.items():
            if roles[name] == "passthrough":
                numbers.append(Numbers(name, 0.0, 1.0, says_missing=False, is_whole=True))
                continue
            mean, scale = moments.mean_and_scale()
            is_date = roles[name] == "date"
            numbers.append(
                Numbers(name, mean, scale, moments.n_missing > 0, is_date, limit=np.inf if is_date else limit)
            )
        self._layout = Layout(
            tuple(numbers),
            tuple(self._one_hot(name, statistics) for name in names if roles[name] == "onehot"),
            tuple(name for name in names if roles[name] == "hash"),
            tuple(name for name in names if roles[name] == "text"),
            int(self.n_hashed),
            (int(self.ngram_range[0]), int(self.ngram_range[1])),
            tuple((name, self.kinds_[name]) for name in names if roles[name] in ("hash", "text")),
        )
        self.n_features_out_ = self._layout.width
        if not self.n_features_out_:
            raise InvalidDataError(f"{type(self).__name__}(columns=...) drops all columns of X.")
        odd = stands_out(statistics, given=self.columns or {}, clips=self.clip is not None)
        if odd:
            warn_user(f"{type(self).__name__}: " + " ".join(odd), UserWarning)
        return self

    def transform(self, X: Any) -> Any:
        """Return the features of rows.

        Parameters
        ----------
        X : DataFrame, Arrow table, anything with ``__arrow_c_stream__``, or array, shape (n, n_columns)
            The rows; columns are found by name, or in an array by position.

        Returns
        -------
        CSR or array, shape (n, n_features_out)
            Dense if all columns are numbers and dates.

        Raises
        ------
        InvalidDataError
            A column is missing, or has values that cannot be encoded.
        """
        check_is_fitted(self)
        table = self.checked(X)
        writer = self.writer()
        rows = writer.rows_of([table], len(table))
        self.warn_of_unseen(writer, "the table")
        return rows

    def warn_of_unseen(self, writer: RowWriter, where: str) -> None:
        """Warn of columns whose categories are all unknown, in rows that were written."""
        unseen = writer.unseen() if self.handle_unknown == "ignore" else []
        if unseen:
            warn_user(f"{where}: {' '.join(unseen)}", UserWarning)

    def writer(self) -> RowWriter:
        """Return what writes rows of several tables into one matrix."""
        return RowWriter(self._layout, self.dtype)

    def checked(self, X: Any) -> Table:
        """Return X for reading its columns, which are there.

        Raises
        ------
        InvalidDataError
            One is missing.
        """
        table = as_table(X)
        if isinstance(table, ArrayTable):
            if len(table.names) != self.n_features_in_:
                raise InvalidDataError(
                    f"X has {len(table.names)} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                    "features as input."
                )
            return table.named(self._columns)
        gone = [name for name in self._columns if name not in table.names and self.roles_[name] != "drop"]
        if gone:
            raise InvalidDataError(
                f"X has no column {', '.join(map(repr, gone))}, which {type(self).__name__} was fitted with. It has "
                f"{', '.join(map(str, table.names))}."
            )
        return table

    @property
    def columns_read_(self) -> list[Any]:
        """Names of the columns that `transform` reads."""
        check_is_fitted(self)
        return [name for name in self._columns if self.roles_[name] != "drop"]

    @property
    def wanted_(self) -> dict[Any, Kind]:
        """What files are to make of the columns that `transform` reads."""
        check_is_fitted(self)
        return wanted_of(self.roles_, vars(self).get("kinds_", {}))

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text = str(super().__repr__(N_CHAR_MAX))
        if not hasattr(self, "_layout"):
            return text
        widths = self._layout.widths()
        lines = [("column", "role", "features")]
        lines += [(str(name), str(self.roles_[name]), widths.get(name, "0")) for name in self._columns]
        sizes = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rows = (f"{a:<{sizes[0]}}  {b:<{sizes[1]}}  {c:>{sizes[2]}}" for a, b, c in lines)
        return "\n".join([text, *rows, f"{self.n_features_out_} features of {self.n_samples_seen_} rows"])

    def get_feature_names_out(self, input_features: Any = None) -> AnyArray:
        """Return the names of the features.

        Parameters
        ----------
        input_features : array of str or None, default None
            Ignored: the names are derived from those of the columns.

        Returns
        -------
        array of str, shape (n_features_out,)
            The name of a column, followed by ``_`` and a category, ``missing``, ``infrequent``, or the part of a date
            or text.
        """
        check_is_fitted(self)
        del input_features
        return np.asarray(self._layout.names(), dtype=object)

    def columns_of_features(self) -> AnyArray:
        """Return the column of each feature, None of those that hashed columns share.

        Returns
        -------
        array of object, shape (n_features,)
        """
        check_is_fitted(self)
        columns = np.empty(self.n_features_out_, dtype=object)
        columns[:] = self._layout.columns()
        return columns

    def _complete(self) -> None:
        """Refuse an encoder, of a file, that is not of the columns that it names."""
        if not hasattr(self, "_layout"):
            return
        layout, roles = self._layout, self.roles_
        found = {
            **{column.name: ("numeric", "passthrough", "date") for column in layout.numbers},
            **{column.name: ("onehot",) for column in layout.onehot},
            **dict.fromkeys(layout.hashed, ("hash",)),
            **dict.fromkeys(layout.texts, ("text",)),
        }
        kept = {name for name, role in roles.items() if role != "drop"}
        n_parts = len(layout.numbers) + len(layout.onehot) + len(layout.hashed) + len(layout.texts)
        if (
            set(self._columns) != set(roles)
            or len(self._columns) != len(roles)
            or self.n_features_in_ != len(roles)
            or kept != set(found)
            or n_parts != len(found)
            or any(roles[name] not in may_be for name, may_be in found.items())
            or not set(found).issuperset(name for name, _ in layout.kinds)
            or self.n_features_out_ != layout.width
            or not 1 <= layout.n_hashed < 2**31
            or not 1 <= layout.ngram_range[0] <= layout.ngram_range[1]
        ):
            raise InvalidDataError("its columns, roles and features do not fit each other")
        wanted_of(roles, vars(self).get("kinds_", {}))

    def _row_to_try(self) -> Any:
        known = {column.name: [*column.categories, *column.infrequent] for column in self._layout.onehot}
        row = np.empty((1, len(self._columns)), dtype=object)
        for k, name in enumerate(self._columns):
            kind = vars(self).get("kinds_", {}).get(name, "category")
            if self.roles_[name] == "date" or kind == "date":
                row[0, k] = np.datetime64(0, "us")
            elif self.roles_[name] in ("numeric", "passthrough") or kind == "number":
                row[0, k] = 0.0
            else:
                row[0, k] = "a"
            if known.get(name):
                row[0, k] = known[name][0]
        return row

    def check(self) -> None:
        """Raise if a parameter is outside its domain.

        Raises
        ------
        InvalidParameterError
            Names it.
        """
        name = type(self).__name__
        if self.columns is not None and not isinstance(self.columns, Mapping):
            raise InvalidParameterError(f"{name}(columns=...) must be a mapping or None. Got {self.columns!r}.")
        for column, role in (self.columns or {}).items():
            check_choice(f"{name}(columns=...) of {column!r}", role, _ROLES)
        check_choice(f"{name}(categorical=...)", self.categorical, ("auto", "onehot", "hash"))
        check_choice(f"{name}(handle_unknown=...)", self.handle_unknown, ("ignore", "error"))
        for parameter in ("max_categories", "min_frequency", "n_hashed"):
            check_number(f"{name}({parameter}=...)", getattr(self, parameter), low=1, integer=True)
        if self.clip is not None:
            check_number(f"{name}(clip=...)", self.clip, low=0, open_low=True)
        if self.n_hashed > 2**31 - 1:
            raise InvalidParameterError(f"{name}(n_hashed=...) must be below 2**31. Got {self.n_hashed!r}.")
        try:
            low, high = self.ngram_range
            are_numbers = 1 <= low <= high
        except (TypeError, ValueError):
            are_numbers = False
        if not are_numbers:
            raise InvalidParameterError(
                f"{name}(ngram_range=...) must be two numbers from 1 up, such as (1, 2). Got {self.ngram_range!r}."
            )
        try:
            is_float = np.dtype(self.dtype) in (np.float32, np.float64)
        except TypeError:
            is_float = False
        if not is_float:
            raise InvalidParameterError(f"{name}(dtype=...) must be float32 or float64. Got {self.dtype!r}.")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _one_hot(self, name: Any, statistics: Statistics) -> OneHot:
        found = statistics.categories[name]
        counts = found.counts or {}
        rare = frozenset(value for value, n in counts.items() if n < self.min_frequency)
        try:
            kept = sorted(value for value in counts if value not in rare)
        except TypeError as error:
            raise InvalidDataError(
                f"column {name!r} mixes categories that cannot be sorted ({error}). Use one type, such as strings."
            ) from error
        # Of texts alone other values are written as text; what is mixed stays as it is.
        is_mixed = statistics.kinds[name] == "category" and not all(isinstance(value, str) for value in counts)
        kind = None if is_mixed else statistics.kinds[name]
        return OneHot(name, kept, rare, found.n_missing > 0, self.handle_unknown == "error", kind)
