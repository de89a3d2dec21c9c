"""Commands about this machine: what it is, its costs, and kernels compiled ahead.

``dsgd calibrate``: measure the costs of rows, messages and waiting on a cluster, and save them.

``dsgd info``: installed versions, the machine, and where files are kept.

``dsgd warm``: compile kernels ahead, so that no first fit waits for them.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dsgd.cli.options import AsJson, connected, examples, print_facts, tracked
from dsgd.errors import InvalidParameterError

if TYPE_CHECKING:
    from dsgd.sim import SavedCosts


CALIBRATE_EXAMPLES: Final = examples(
    "dsgd calibrate --workers 2",
    "dsgd calibrate --scheduler tcp://10.0.0.5:8786 --compress topk:0.01 --json",
)

# Rows of which the table shows what an epoch takes: of ijcnn1.
_N_ROWS, _N_ENTRIES, _N_COLUMNS = 50_000, 13, 22
_PERIODS: Final = (1, 16, 256, 4096)


def calibrate(
    workers: Annotated[int, typer.Option(min=0, help="Start this many worker processes.")] = 0,
    scheduler: Annotated[str | None, typer.Option(help="Use the cluster at this address.")] = None,
    jobs: Annotated[int, typer.Option(min=2, help="Threads that are measured where there is no cluster.")] = 2,
    sync: Annotated[
        list[str] | None,
        typer.Option(help="Measure the rounds of this strategy too, as in dsgd fit; repeat for several."),
    ] = None,
    compress: Annotated[
        list[str] | None,
        typer.Option(help="Measure rounds with this compressor too, as topk:0.01; repeat for several."),
    ] = None,
    float32: Annotated[bool, typer.Option("--float32", help="Measure rows of single precision too.")] = False,
    transport: Annotated[str, typer.Option(help="The transport, as in dsgd fit.")] = "auto",
    renew: Annotated[bool, typer.Option("--renew", help="Measure again what is known.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure bandwidth, latency, reduction, kernels and waiting of a cluster; print them, and keep them in a file.

    It takes some ten seconds. dsgd tune, studies and the simulator read the file, which is measured again when workers
    or versions change. What a busy machine has shown is not kept. Without --workers and --scheduler, threads of this
    process are measured.
    """
    from dsgd.cli.options import compressing, parse_sync
    from dsgd.report.page import is_busy, load, machine
    from dsgd.sim import known_costs
    from dsgd.sync import MinibatchSGD

    strategies = [MinibatchSGD(), *(parse_sync(text) for text in sync or ())]
    strategies += [compressing(1024, text) for text in compress or ()]
    busy = is_busy([{"load_at_start": load(), "machine": machine()}])
    with connected(workers, scheduler) as client:
        saved = known_costs(
            client,
            strategies=strategies,
            dtypes=("float64", "float32") if float32 else ("float64",),
            ranks=None if client is not None else jobs,
            transport=transport,
            renew=renew,
            keep=not busy,
        )
    spoilt = busy and not saved.reused
    if as_json:
        typer.echo(json.dumps(described(saved) | {"busy": spoilt}))
    else:
        _show(saved, kept=not spoilt)


def described(saved: SavedCosts) -> dict[str, Any]:
    """Return a calibration as plain numbers and strings."""
    model, link = saved.model, saved.model.link
    return {
        "file": str(saved.path),
        "measured_at": saved.measured_at.isoformat(timespec="seconds"),
        "reused": saved.reused,
        "seconds": saved.seconds,
        "ranks": model.calibration.ranks,
        "transport": model.transport,
        "latency_s": link.alpha_s,
        "byte_s": link.byte_s,
        "added_byte_s": link.added_byte_s,
        "rows": {name: {"row_s": cost.row_s, "entry_s": cost.entry_s} for name, cost in model.rows.items()},
        "rounds": {
            kind: [{"bytes": int(n_bytes), "seconds": seconds} for n_bytes, seconds in points]
            for kind, points in model.rounds.items()
        },
        "waits": [{"work_s": work_s, "wait_s": wait_s} for work_s, wait_s in model.waits],
        "end_s": model.end_s,
    }


def _show(saved: SavedCosts, *, kept: bool) -> None:
    from dsgd.report import Table, seconds_text, show_tables
    from dsgd.sim import Workload

    model, link = saved.model, saved.model.link
    facts = {
        "ranks": f"{model.calibration.ranks} over {model.transport}",
        "latency": f"{1e6 * link.alpha_s:.3g} us a message",
        "bandwidth": f"{_rate(link.byte_s)} GB/s",
        "reduction": f"{_rate(link.added_byte_s)} GB/s",
    }
    for name, row in model.rows.items():
        facts[f"{name} rows"] = f"{1e9 * row.row_s:.3g} ns a row, {1e9 * row.entry_s:.3g} ns an entry"
    for kind, points in model.rounds.items():
        texts = (f"{1e6 * seconds:.3g} us at {n_bytes / 1e3:.3g} kB" for n_bytes, seconds in (points[0], points[-1]))
        facts[f"round of {kind}"] = ", ".join(texts)
    print_facts(facts | {"end of an epoch": f"{1e6 * model.end_s:.3g} us"})
    load = Workload(_N_ROWS, _N_ENTRIES, _N_COLUMNS + 1, layout="sparse")
    costs = [(every, model.epoch(load, every)) for every in _PERIODS]
    title = f"{_N_ROWS:,} sparse rows of {_N_ENTRIES} entries, {_N_COLUMNS} columns, would take"
    columns = (
        "period = {0[0]} | work of a round = work | waiting = waiting | epoch = epoch | "
        "communication = {0[1].communication:.0%}"
    )
    table = Table.of(
        title, costs, columns, work=lambda one: seconds_text(one[1].compute_s / one[1].rounds),
        waiting=lambda one: seconds_text(one[1].wait_s / one[1].rounds), epoch=lambda one: seconds_text(one[1].seconds),
    )  # fmt: skip
    show_tables([table])
    how = f"read from {saved.path}" if saved.reused else f"measured in {saved.seconds:.1f} s, kept in {saved.path}"
    if not kept:
        how = (
            f"measured in {saved.seconds:.1f} s and not kept: other work kept this machine busy, and costs are too "
            "high. Measure again when it is idle."
        )
    typer.echo(how)


def _rate(byte_s: float) -> str:
    return f"{1e-9 / byte_s:.3g}" if byte_s > 0.0 else "more than can be measured of"


INFO_EXAMPLES: Final = examples("dsgd info", "dsgd info --scheduler tcp://10.0.0.5:8786 --json")
_PACKAGES: Final = ("dsgd", "numpy", "scipy", "scikit-learn", "numba", "dask", "distributed", "pandas", "torch")
_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def info(
    scheduler: Annotated[str | None, typer.Option(help="Describe the cluster at this address too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print versions, threads, memory, the cluster and cache folders, as for a bug report."""
    facts = collect(scheduler)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    for section, entries in facts.items():
        typer.echo(section)
        print_facts({f"  {name}": "not set" if value is None else str(value) for name, value in entries.items()})


def collect(scheduler: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the facts by section: versions, threads, machine, wires, folders and, with a scheduler, cluster."""
    from dsgd.comm.memory.cores import count_cores
    from dsgd.report.page import versions
    from dsgd.runtime.dask_internals import memory_bytes

    facts: dict[str, dict[str, Any]] = {
        "versions": versions(_PACKAGES),
        "threads": {"cpus": count_cores(), **{name: os.environ.get(name) for name in _THREAD_VARIABLES}},
        "machine": {"platform": platform.platform(), "memory_bytes": memory_bytes()},
        "wires": _wires(),
        "folders": _folders(),
    }
    if scheduler is not None:
        facts["cluster"] = _cluster(scheduler)
    return facts


def _wires() -> dict[str, Any]:
    """Return the wires that ranks on this machine can use, and where its configuration lets them listen."""
    import dask.config

    from dsgd.comm.memory.segment import shared_folder

    try:
        left = os.statvfs(shared_folder())
        memory = f"{shared_folder()}, {left.f_bavail * left.f_frsize >> 20} MiB free"
    except OSError as error:
        memory = f"none: {error}"
    return {
        "shared memory": memory,
        "tcp, rpc": "available",
        "dsgd.comm.ports": dask.config.get("dsgd.comm.ports", "any"),
        "dsgd.comm.interface": dask.config.get("dsgd.comm.interface", "that of the worker's address"),
    }


def _folders() -> dict[str, Any]:
    from dsgd.datasets import cache_folder
    from dsgd.kernels.jit import kernel_folder

    return {
        "DSGD_DATA": os.environ.get("DSGD_DATA"),
        "datasets": str(cache_folder()),
        "kernels": str(kernel_folder() or "nowhere: no folder can be written to"),
    }


def _cluster(scheduler: str) -> dict[str, Any]:
    with connected(0, scheduler) as client:
        assert client is not None
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        return {
            "scheduler": scheduler,
            "workers": len(workers),
            "threads": sum(worker["nthreads"] for worker in workers),
            "memory_bytes": sum(worker["memory_limit"] or 0 for worker in workers),
            "hosts": len({worker["host"] for worker in workers}),
        }


WARM_EXAMPLES: Final = examples("dsgd warm", "dsgd warm --estimators svc,sgd", "dsgd warm --all")

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
    from dsgd.kernels.jit import kernel_folder

    n_fits = compile_ahead(names, everything=everything)
    typer.echo(f"{n_fits} fits done; their kernels are in {kernel_folder()}")


def compile_ahead(names: Sequence[str], *, everything: bool = False) -> int:
    """Do small fits with a progress bar; returns how many."""
    fits = [fit for name in names for fit in _fits(name, everything)]
    for estimator, rows in tracked(fits, "Compiling"):
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
