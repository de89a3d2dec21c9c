"""Tables of mixed columns as rows of numbers: `ColumnEncoder`.

::

    model = SGDClassifier(loss="log_loss", encoder=ColumnEncoder()).fit("clicks/*.parquet", "clicked")
    model = make_pipeline(ColumnEncoder(), SGDClassifier(loss="log_loss")).fit(table, y)

`dsgd.preprocessing.statistics` has what it learns and the loops, `dsgd.preprocessing.layout` what it makes of a row.
"""

from dsgd.preprocessing.encoder import ColumnEncoder

__all__ = ["ColumnEncoder"]
