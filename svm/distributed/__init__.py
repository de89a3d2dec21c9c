"""SVMs on a cluster: the programs that every rank runs.

`kernel` trains a kernel SVM, `dealing` hands pairs of classes to ranks, `linear` trains a linear one. Called by the
estimators, on the client's side to pack rows and on the workers to train. Begin with `linear`.
"""
