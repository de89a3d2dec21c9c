"""The SVM estimators, with the parameters and attributes of scikit-learn's.

`kernel_base` and `linear_base` are their bases, `kernel_machine` what predicts after training, `classifiers` the base
of kernel classifiers, which is made of a trainer of pairs and of how pairs vote (`pairs`). `kernel` has the estimators
with a kernel, `linear` the others. Called by users, by way of `dsgd.svm`. Begin with `kernel`.
"""
