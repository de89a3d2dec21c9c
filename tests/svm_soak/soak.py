"""Many problems, spread over processes, each watched: one that takes too long is killed, reported, and left behind."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from svm_soak.problems import draw

_MODULE = "svm_soak.worker"
_TELL_EVERY_S = 30.0
#: Until the first line of a process: imports and compiled kernels are loaded.
_START_S = 120.0
#: A problem that takes no processor time hangs after so many times what it may take.
_PATIENCE = 10.0


@dataclass
class Summary:
    """What came of a soak.

    Parameters
    ----------
    n_runs : int
        Problems that were judged.
    outcomes : Counter
        How many ended in which way.
    failures : list of str
        One text per problem that broke a law, with the line that replays it.
    n_loose : int
        Problems where rounding may exceed the tolerance.
    n_rows, n_ties, n_corrected : int
        Predictions compared with LIBSVM's, those that differ in ties, and duals whose threshold rounding chose there.
    worst_ratio, worst_s : float
        Largest share of the allowed steps, longest of our fits, in seconds.
    slowest : int or None
        The number of that fit's problem.
    elapsed_s : float
        Wall time.
    """

    n_runs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    n_loose: int = 0
    n_rows: int = 0
    n_ties: int = 0
    n_corrected: int = 0
    worst_ratio: float = 0.0
    worst_s: float = 0.0
    slowest: int | None = None
    elapsed_s: float = 0.0

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.most_common())
        return (
            f"{self.n_runs} problems, {len(self.failures)} failures; {ends}; rounding above tol in {self.n_loose}; "
            f"{self.n_rows} predictions, {self.n_ties} ties, {self.n_corrected} thresholds of LIBSVM by rounding; "
            f"steps {self.worst_ratio:.2f} of the bound at most; slowest fit {self.worst_s:.2f} s "
            f"(number {self.slowest}), "
            f"{1e3 * self.elapsed_s / max(1, self.n_runs):.1f} ms per problem"
        )


class _Worker:
    """A process that judges every k-th problem, and the one that it is at."""

    def __init__(self, seed: int, numbers: range) -> None:
        self.seed, self.numbers = seed, numbers
        self.current: int | None = None
        self.is_busy = True
        self.process = self._start()
        self.since, self.spent_s, self._rest = time.monotonic(), 0.0, b""

    def _start(self) -> subprocess.Popen[bytes]:
        words = [self.seed, self.numbers.start, self.numbers.stop, self.numbers.step]
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        path = str(Path(__file__).parents[1])
        return subprocess.Popen(
            [sys.executable, "-m", _MODULE, *map(str, words)],
            stdout=subprocess.PIPE,
            env={**os.environ, **threads, "PYTHONPATH": path},
        )

    def read(self) -> list[dict[str, Any]] | None:
        """Return what it has said since, or None if it has ended."""
        assert self.process.stdout is not None
        block = os.read(self.process.stdout.fileno(), 2**16)
        if not block:
            return None
        *lines, self._rest = (self._rest + block).split(b"\n")
        self.since, self.spent_s = time.monotonic(), self._spent_s()
        return [json.loads(line) for line in lines]

    def is_late(self, most_s: float) -> bool:
        """Return whether it has said nothing for too long, by its processor time: machines are busy now and then."""
        most_s = most_s if self.current is not None else _START_S
        if time.monotonic() - self.since < most_s:
            return False
        return self._spent_s() - self.spent_s > most_s or time.monotonic() - self.since > _PATIENCE * most_s

    def _spent_s(self) -> float:
        try:
            times = psutil.Process(self.process.pid).cpu_times()
        except psutil.NoSuchProcess:
            return 0.0
        return float(times.user + times.system)

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def after(self) -> range:
        """Return the problems that come after the one it is at."""
        at = self.numbers.start if self.current is None else self.current
        return range(at + self.numbers.step, self.numbers.stop, self.numbers.step)


def soak(
    seed: int, numbers: range, *, n_processes: int = 1, most_s: float = 60.0, say: Callable[[str], None]
) -> Summary:
    """Judge problems.

    Parameters
    ----------
    seed : int
        Where they are drawn.
    numbers : range
        Which of them, one after the other.
    n_processes : int
        Processes that share them.
    most_s : float
        Seconds of processor time after which a problem hangs.
    say : callable
        Takes lines of text: failures as they come, and now and then how far it is.
    """
    summary, begin = Summary(), time.monotonic()
    told = begin
    workers = [_Worker(seed, numbers[k::n_processes]) for k in range(min(n_processes, len(numbers)))]
    with selectors.DefaultSelector() as selector:

        def watch(worker: _Worker) -> None:
            assert worker.process.stdout is not None
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)

        def leave(worker: _Worker) -> None:
            assert worker.process.stdout is not None
            selector.unregister(worker.process.stdout)
            worker.end()
            workers.remove(worker)

        def replace(worker: _Worker, why: str) -> None:
            number = worker.numbers.start if worker.current is None else worker.current
            _note(summary, seed, {"number": number, "outcome": "hung", "failures": [why]}, say)
            leave(worker)
            if worker.after():
                workers.append(_Worker(seed, worker.after()))
                watch(workers[-1])

        for worker in workers:
            watch(worker)
        try:
            while workers:
                for key, _ in selector.select(timeout=1.0):
                    worker = key.data
                    lines = worker.read()
                    if lines is None:
                        if worker.is_busy:
                            replace(worker, f"the process ended with status {worker.process.wait()}")
                        else:
                            leave(worker)
                        continue
                    for line in lines:
                        if "begins" in line:
                            worker.current, worker.is_busy = line["begins"], True
                        else:
                            worker.is_busy = False
                            _note(summary, seed, line, say)
                for worker in [worker for worker in workers if worker.is_late(most_s)]:
                    replace(worker, f"no answer within {most_s:g} s")
                if time.monotonic() - told > _TELL_EVERY_S:
                    told = time.monotonic()
                    summary.elapsed_s = told - begin
                    say(f"... {summary}")
        finally:
            for worker in workers:
                worker.end()
    summary.elapsed_s = time.monotonic() - begin
    return summary


def _note(summary: Summary, seed: int, line: dict[str, Any], say: Callable[[str], None]) -> None:
    """Add a verdict to the summary, and say so if a law is broken."""
    summary.n_runs += 1
    summary.outcomes[line["outcome"]] += 1
    for name in ("rows", "ties", "corrected"):
        setattr(summary, f"n_{name}", getattr(summary, f"n_{name}") + line.get(name, 0))
    summary.n_loose += bool(line.get("loose", False))
    summary.worst_ratio = max(summary.worst_ratio, line.get("ratio", 0.0))
    if line.get("seconds", 0.0) > summary.worst_s:
        summary.worst_s, summary.slowest = line["seconds"], line["number"]
    if line["failures"]:
        what = "; ".join(line["failures"])
        text = f"SOAK_SEED={seed} SOAK_FIRST={line['number']} SOAK_RUNS=1  {draw(seed, line['number'])}: {what}"
        summary.failures.append(text)
        say(text)
