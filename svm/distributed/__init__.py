"""What the ranks of a gang run when they solve an SVM together: rows in, the same solution on all of them out.

`kernel` trains a kernel SVM, `linear` a linear one, `finish` brings the last rows that move to one rank. Called by the
estimators, on the client's side to pack rows and on the workers to train. Begin with `linear`.
"""

__all__: list[str] = []
