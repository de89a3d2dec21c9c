"""``python -m dsgd.accel [options] script.py [arguments]``, or ``-m module`` instead of the script."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence

from dsgd.accel.calls import recorded_calls, table_of
from dsgd.accel.patch import install


def main(argv: Sequence[str] | None = None) -> None:
    """Run a script with scikit-learn's classes accelerated."""
    options, parser = _parsed(argv)
    name, rest = options.module or options.script, options.rest
    if options.module is not None and options.script is not None:
        rest = [options.script, *rest]
    if name is None:
        parser.error("name a script, or a module with -m")
    if options.module is None and not os.path.exists(name):
        parser.error(f"there is no file {name!r}")
    _install(options, parser)
    sys.argv = [name, *rest]
    try:
        _run(name, options.module is not None)
    finally:
        if options.verbose and recorded_calls():
            from rich.console import Console

            Console(stderr=True).print(table_of(recorded_calls()))


def _run(name: str, is_module: bool) -> None:
    if is_module:
        sys.path.insert(0, os.getcwd())
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(name))
        runpy.run_path(name, run_name="__main__")


# CPython keeps frames in chunks of 16 kB, and whenever a call crosses the end of one, it maps another, which it unmaps
# on return. That end lies among the frames of the script here, which are deeper than usual: imports alone may cross it
# ten thousand times, in a tenth of a second. A frame as large as this one says it is comes with a chunk of a megabyte.
_run.__code__ = _run.__code__.replace(co_stacksize=66_000)


def _install(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    try:
        install(verbose=options.verbose, compare=options.compare, exclude=options.exclude)
    except ValueError as error:
        parser.error(str(error).replace("install(exclude=...)", "--exclude"))


def _parsed(argv: Sequence[str] | None) -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser(
        prog="python -m dsgd.accel",
        description="Run an unchanged scikit-learn script with the solvers of dsgd: SVC, NuSVC, SVR, NuSVR, "
        "OneClassSVM, LinearSVC, LinearSVR, SGDClassifier, SGDRegressor, LogisticRegression, Lasso, ElasticNet, Ridge "
        "and PoissonRegressor.",
        allow_abbrev=False,
    )
    parser.add_argument("--verbose", action="store_true", help="list every fit, with its solver and seconds")
    parser.add_argument(
        "--compare", action="store_true", help="repeat every fit with scikit-learn, to tell what was saved"
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="CLASS",
        help="leave a class or function as it is, such as SVC or cross_validate; may be repeated",
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module as a script")
    parser.add_argument("script", nargs="?", help="the script")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    return parser.parse_args(argv), parser


if __name__ == "__main__":
    main()
