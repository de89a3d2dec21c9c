"""Searches over parameters that train all candidates on all folds in one pass over the rows.

`SGDSearchCV` is the estimator; `candidates` turns parameters into columns, `training` trains these, `scoring` scores
the models, `race` drops candidates, `results` makes the table, and `ranks` does it on a cluster. Called by users;
`dsgd.local.columns` has the panels and `dsgd.kernels.columns` the steps. Start with `search`.
"""

from dsgd.model_selection.search import SGDSearchCV

__all__ = ["SGDSearchCV"]
