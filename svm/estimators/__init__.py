"""The SVM estimators, with the parameters and attributes of scikit-learn's.

`kernel_base` and `linear_base` are their bases, `classifiers` that of kernel classifiers, `single` has the estimators
of one problem. Called by users, by way of `dsgd.svm`. Begin with `svc`.
"""
