"""``dsgd warm``: compile kernels ahead, so that no first fit waits for them."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer

from dsgd.cli.training_options import examples
from dsgd.errors import InvalidParameterError

EXAMPLES: Final = examples("dsgd warm", "dsgd warm --estimators svc,sgd", "dsgd warm --all")

#: The estimators of each name, and the parameters that their fits in turn are given.
_ESTIMATORS: Final[dict[str, list[tuple[str, str, list[dict[str, Any]]]]]] = {
    "sgd": [("dsgd", name, [{"n_jobs": 1}, {"n_jobs": 2}]) for name in ("SGDClassifier", "SGDRegressor")],
    "linear": [
        ("dsgd.linear_model", name, [{}])
        for name in ("LogisticRegression", "Lasso", "ElasticNet", "Ridge", "PoissonRegressor")
    ],
    "linear-svc": [("dsgd.svm", name, [{}]) for name in ("LinearSVC", "LinearSVR")],
    "svc": [("dsgd.svm", name, [{}, {"kernel": "linear"}]) for name in ("SVC", "NuSVC", "SVR", "NuSVR", "OneClassSVM")],
}


def warm(
    estimators: Annotated[
        str, typer.Option(help=f"Which estimators, with commas between: {', '.join(_ESTIMATORS)}.")
    ] = ",".join(_ESTIMATORS),
    everything: Annotated[
        bool, typer.Option("--all", help="Single precision and sparse rows too, which takes four times as long.")
    ] = False,
) -> None:
    """Compile the kernels of estimators for this machine, and keep them on disk.

    Small fits of each are done at their defaults. Kernels that are on disk already are not compiled again; fits with
    other parameters compile what they need besides. NUMBA_CACHE_DIR says where kernels go.
    """
    names = [name.strip() for name in estimators.split(",")]
    for name in names:
        if name not in _ESTIMATORS:
            raise InvalidParameterError(f"--estimators: {name!r} is none of {', '.join(_ESTIMATORS)}.")
    from dsgd.kernels.cache import kernel_folder

    n_fits = compile_ahead(names, everything=everything)
    typer.echo(f"{n_fits} fits done; their kernels are in {kernel_folder()}")


def compile_ahead(names: Sequence[str], *, everything: bool = False) -> int:
    """Do small fits with a progress bar; returns how many."""
    from rich.console import Console
    from rich.progress import track

    fits = [fit for name in names for fit in _fits(name, everything)]
    console = Console(stderr=True)
    for estimator, rows in track(fits, "Compiling", console=console, transient=True, disable=not console.is_terminal):
        with warnings.catch_warnings():
            # Of fits that nobody will look at.
            warnings.simplefilter("ignore")
            estimator.fit(*rows)
            estimator.predict(rows[0])
    return len(fits)


def _fits(name: str, everything: bool) -> Iterator[tuple[Any, tuple[Any, Any]]]:
    """Yield estimators with the rows that they are fitted to."""
    import numpy as np
    import scipy.sparse as sp
    from sklearn.base import is_classifier

    draws = np.random.default_rng(0)
    # More rows than are compared with each other one by one, and features of all widths that kernels tell apart.
    X = draws.normal(size=(256, 8))
    margin = X[:, 0] + 0.1 * draws.normal(size=len(X))
    classes, values = [(margin > 0).astype(int), np.digitize(margin, [-0.5, 0.5])], [np.exp(margin)]
    forms = [X, X.astype(np.float32), sp.csr_array(X), sp.csr_array(X.astype(np.float32))] if everything else [X]
    for module, made, settings in _ESTIMATORS[name]:
        kind = getattr(import_module(module), made)
        for parameters, rows in itertools.product(settings, forms):
            for y in classes if is_classifier(kind()) else values:
                yield kind(**parameters), (rows, y)
