"""SVMs on a cluster: the programs that every rank runs.

`kernel` trains a kernel SVM, `linear` a linear one, `finish` brings the last rows that move to one rank. Called by the
estimators, on the client's side to pack rows and on the workers to train. Begin with `linear`.
"""

__all__: list[str] = []
