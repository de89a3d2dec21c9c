"""From a user's data to row blocks on a cluster, and from a model to lazy predictions.

The names below are loaded when they are first used: a worker that packs rows loads neither estimators nor scikit-learn,
which would take longer than many a fit.
"""

__all__: list[str] = []
