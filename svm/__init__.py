"""Support vector machines: the exact solvers are to come; linear SVMs train with `dsgd.SGDClassifier(loss="hinge")`."""

if __name__ != "dsgd.svm":  # a folder named svm on sys.path would hide LIBSVM's module and load this one twice
    raise ImportError("this folder installs as dsgd.svm: run `pip install -e .` and `import dsgd.svm`")

__all__: list[str] = []
