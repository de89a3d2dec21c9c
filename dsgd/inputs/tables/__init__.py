"""Tables column by column: numbers, codes of categories, texts and dates, whichever library holds them.

`dsgd.preprocessing` reads columns by these, and estimators the column of the target. Begin with `base`, which says what
a table answers; `reading` turns a user's data into one. There is a reader for pandas, one for Arrow memory, which all
other libraries hand out, and one for arrays. No library is loaded for anybody who has none of its objects.
"""

from dsgd.inputs.tables.arrow_table import ArrowTable, as_numbers, kind_of_type, pyarrow_for, saved_index
from dsgd.inputs.tables.base import (
    ArrayTable,
    Coded,
    Kind,
    State,
    Table,
    dates_of_text,
    is_text,
    joined,
    numbers_of_text,
    state_of_text,
)
from dsgd.inputs.tables.reading import (
    PandasTable,
    as_table,
    batches,
    categories,
    column,
    column_without_numbers,
    is_frame,
    pop_column,
    utf8,
)

__all__ = [
    "ArrayTable",
    "ArrowTable",
    "Coded",
    "Kind",
    "PandasTable",
    "State",
    "Table",
    "as_numbers",
    "as_table",
    "batches",
    "categories",
    "column",
    "column_without_numbers",
    "dates_of_text",
    "is_frame",
    "is_text",
    "joined",
    "kind_of_type",
    "numbers_of_text",
    "pop_column",
    "pyarrow_for",
    "saved_index",
    "state_of_text",
    "utf8",
]
