"""What benchmarks measure with: rows that say where they were made, tables, timing by turns, and worker processes.

Methods that are compared take turns: they see the same machine, one after the other, again and again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

#: What the command line of a benchmark says.
Options = argparse.Namespace
Name = TypeVar("Name", bound=Hashable)


def machine() -> dict[str, Any]:
    """Return commit, processor, cores and versions."""
    from dsgd.report import page as provenance

    here, versions = provenance.machine(), provenance.versions()
    return {
        "commit": provenance.commit() or "unknown",
        "cpu": here["cpu"],
        "cores": here["cores"],
        **{name: versions[name] for name in ("python", "dsgd", "numpy", "numba", "scikit-learn")},
    }


class Rows:
    """Appends measurements to a file of JSON lines; a no-op without a file.

    Parameters
    ----------
    benchmark : str
        Name of the benchmark.
    path : str or None
        The file.
    """

    def __init__(self, benchmark: str, path: str | None) -> None:
        self._head = {"benchmark": benchmark, **machine()} if path else {}
        self._path = Path(path) if path else None

    def add(self, **values: Any) -> None:
        """Append one row."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        row = {**self._head, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **values}
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")


@contextmanager
def table(title: str, *columns: str) -> Iterator[Callable[..., None]]:
    """Print a table: on a terminal a line as soon as it is there, in a file all in the end.

    Parameters
    ----------
    title : str
        What stands above it.
    *columns : str
        Heads; what follows a colon is the format of its numbers, as in ``"seconds:.2f"``.

    Yields
    ------
    callable
        Takes the cells of a line. Text stays as it is, and None is an empty cell.
    """
    from rich.live import Live

    from dsgd.report import Table, show_tables

    heads, formats = zip(*((column + ":").split(":")[:2] for column in columns), strict=True)
    texts, cells, console = [not form for form in formats], list[list[str]](), show_tables([])
    console.print(f"\n{title}", markup=False, soft_wrap=True)
    with Live(console=console, auto_refresh=False) as live:

        def line(*values: Any) -> None:
            for k, value in enumerate(values):
                texts[k] &= value is None or isinstance(value, str)
            row = zip(values, formats, strict=True)
            cells.append(["" if v is None else v if isinstance(v, str) else format(v, form) for v, form in row])
            n_text = next((k for k, is_text in enumerate(texts) if not is_text), len(texts))
            live.update(Table("", heads, cells, n_text=n_text).renderable(console.width), refresh=True)

        yield line
    if not console.is_terminal:
        console.line()


@contextmanager
def report(rows: Rows, title: str, columns: str, /, **facts: Any) -> Iterator[Callable[..., None]]:
    """Print a table of rows as they are made, and write them.

    Parameters
    ----------
    rows : Rows
        The file.
    title : str
        What stands above the table.
    columns : str
        ``heading = name*factor:form`` with bars between; without a name the heading is one.
    **facts
        What all rows have besides.

    Yields
    ------
    callable
        Takes a row by name; what is None is an empty cell.
    """
    parts = [(part.strip().partition(" = ")) for part in columns.split("|")]
    specs = [(head, *(spec or head).partition(":")[::2]) for head, _, spec in parts]
    with table(title, *(f"{head.partition(':')[0]}:{form}" for head, _, form in specs)) as line:

        def add(**row: Any) -> None:
            rows.add(**facts, **row)
            cells = []
            for _, name, _ in specs:
                name, _, factor = name.partition("*")
                value = (facts | row).get(name)
                cells.append(value * float(factor) if factor and value is not None else value)
            line(*cells)

        yield add


@dataclass(frozen=True)
class Timing:
    """One call: wall-clock seconds, seconds of this process's processor time, and what was returned."""

    seconds: float
    cpu_s: float
    value: Any


def timed(work: Callable[..., Any], *arguments: Any, **options: Any) -> Timing:
    """Call, and say what it took."""
    begin, cpu = time.perf_counter(), time.process_time()
    value = work(*arguments, **options)
    return Timing(time.perf_counter() - begin, time.process_time() - cpu, value)


def in_turns(
    methods: Mapping[Name, Callable[[], Any]], repeats: int, *, warm_up: int = 0, alternate: bool = False
) -> dict[Name, list[Timing]]:
    """Call all methods in turn, `repeats` times.

    Parameters
    ----------
    methods : mapping of callable
        By name.
    repeats : int
        How many turns count.
    warm_up : int, optional
        Turns before these, in which code is compiled and loaded.
    alternate : bool, optional
        Whether every other turn is the other way round.
    """
    found: dict[Name, list[Timing]] = {name: [] for name in methods}
    for turn in range(-warm_up, repeats):
        for name in reversed(list(methods)) if alternate and turn % 2 else list(methods):
            timing = timed(methods[name])
            if turn >= 0:
                found[name].append(timing)
    return found


def median_s(timings: Sequence[Timing]) -> float:
    """Return the median of the seconds."""
    return statistics.median(timing.seconds for timing in timings)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios of neighbours, which saw the machine at the same speed."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def spread(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return that ratio with the least and the largest, as text."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def epoch_s(model: Any) -> float:
    """Return the median seconds of an epoch of a fitted estimator; the first, which loads things, does not count."""
    ends = [epoch["seconds"] for epoch in model.fit_report_["epochs"]]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(ends))


def waiting_share(totals: Mapping[str, float]) -> float:
    """Return the share of the ranks' time that communication takes, from the totals of a ledger."""
    from dsgd.ledger import PHASES

    spent = sum(totals[f"{phase}_s"] for phase in PHASES)
    return (totals["wire_s"] + totals["wait_s"]) / spent


@contextmanager
def workers(n: int, threads: int = 1, *, set_as_default: bool = True, **options: Any) -> Iterator[Any]:
    """Give a client of a `distributed.LocalCluster` of `n` worker processes; `options` are the cluster's."""
    from distributed import Client, LocalCluster

    options = {"dashboard_address": "127.0.0.1:0", "silence_logs": logging.CRITICAL, **options}
    with (
        LocalCluster(n_workers=n, threads_per_worker=threads, **options) as cluster,
        Client(cluster, set_as_default=set_as_default) as client,
    ):
        yield client


def in_processes(
    size: int,
    target: Callable[..., None],
    arguments: Callable[[int, Connection], Sequence[Any]],
    meet: Callable[[list[Any]], Any],
) -> Any:
    """Run a rank in each of several fresh processes; return what that of rank 0 has sent in the end.

    Parameters
    ----------
    size : int
        How many.
    target : callable
        What a process runs. It sends where it can be found, receives what `meet` returns, and sends what it has found.
    arguments : callable
        Returns the arguments of `target` for a rank and its end of the pipe.
    meet : callable
        Takes what the ranks have sent at first.
    """
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    try:
        for rank in range(size):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=target, args=tuple(arguments(rank, theirs))))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        common = meet([pipe.recv() for pipe in pipes])
        for pipe in pipes:
            pipe.send(common)
        found = [pipe.recv() for pipe in pipes]
        return found[0]
    finally:
        for process in processes:
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()


@contextmanager
def gloo(store: str, rank: int, size: int, interface: str = "lo") -> Iterator[None]:
    """Join torch's gloo, whose ranks meet in the file `store`, with one thread each."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    # Without this gloo resolves the host's name, which not every machine can.
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
