"""Searches over parameters that share the work between candidates and folds.

`SGDSearchCV` (`search`) trains all candidates on all folds in one pass over the rows: `training` turns parameters into
columns and trains these, and `ranks` does it on a cluster. `SVMSearchCV` (`svm_search`) solves the C of a kernel SVM
one from another. `base` is what both have of scikit-learn's searches, and scores models. Called by users;
`dsgd.local.columns` has the panels, `dsgd.kernels.columns` the steps, and `dsgd.svm.path` the paths. Start with
`search` or `svm_search`.
"""

from dsgd.model_selection.search import SGDSearchCV
from dsgd.model_selection.svm_search import SVMSearchCV

__all__ = ["SGDSearchCV", "SVMSearchCV"]
