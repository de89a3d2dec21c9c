"""The SVM estimators, with the parameters and attributes of scikit-learn's.

`kernel_base` and `linear_base` are their bases, `one_vs_one` that of kernel classifiers, `single` that of estimators
with one problem. Called by users, by way of `dsgd.svm`. Begin with `svc`.
"""

__all__: list[str] = []
