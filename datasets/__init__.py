"""Datasets: a registry with downloads, svmlight readers and generators with a known separator."""

if __name__ != "dsgd.datasets":  # a folder named datasets on sys.path would hide Hugging Face's package
    raise ImportError("this folder installs as dsgd.datasets: run `pip install -e .` and `import dsgd.datasets`")

__all__: list[str] = []
