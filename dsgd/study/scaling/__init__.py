"""The scaling study: published speed-ups of synchronous SGD, compared with the balance equations.

::

    predicted = [predict_point(point) for point in PUBLISHED]
    scaling_page(predicted).save("study/")

Nothing is trained. `published` has the points and the assumptions about them, `model` predicts, `tables` judges the
claims, `figures` and `report` draw the page. The command line and programs call what is exported here; begin with
`model`.
"""

from dsgd.study.scaling.model import Curve, Predicted, curves, node_counts, predict_point, vary
from dsgd.study.scaling.points import PUBLISHED, PublishedPoint
from dsgd.study.scaling.report import Own, own_tables, scaling_page
from dsgd.study.scaling.tables import assumptions_table, points_table, scaling_answer, scaling_claims, variations_table

__all__ = [
    "PUBLISHED",
    "Curve",
    "Own",
    "Predicted",
    "PublishedPoint",
    "assumptions_table",
    "curves",
    "node_counts",
    "own_tables",
    "points_table",
    "predict_point",
    "scaling_answer",
    "scaling_claims",
    "scaling_page",
    "variations_table",
    "vary",
]
