"""The SVM estimators, with the parameters and attributes of scikit-learn's.

`kernel_base` and `linear_base` hold what they share, `one_vs_one` what the kernel classifiers do, `single` what those
of one problem do. Called by users, by way of `dsgd.svm`. Begin with `svc`.
"""

__all__: list[str] = []
