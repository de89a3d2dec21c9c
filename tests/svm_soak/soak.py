"""Many problems, spread over processes: one that takes too long ends its process, is reported, and left behind."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from threadpoolctl import threadpool_limits

from svm_soak.judge import Verdict, judge
from svm_soak.problems import Problem, draw

_TELL_EVERY_S = 30.0
#: A problem that waits, and takes no processor time, hangs after so many times what it may take.
_PATIENCE = 10.0


@dataclass
class Summary:
    """What came of a soak: verdicts by their numbers, and of each that broke a law a text that replays it."""

    verdicts: dict[int, Verdict] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0

    @property
    def outcomes(self) -> Counter[str]:
        """How many ended in which way."""
        return Counter(verdict.outcome for verdict in self.verdicts.values())

    def __str__(self) -> str:
        found, n = self.verdicts.values(), len(self.verdicts)
        ends = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.most_common())
        rows, ties, corrected = (sum(getattr(v, f"n_{name}") for v in found) for name in ("rows", "ties", "corrected"))
        seconds, slowest = max((verdict.seconds, number) for number, verdict in self.verdicts.items())
        return (
            f"{n} problems, {len(self.failures)} failures; {ends}; rounding above tol in "
            f"{sum(v.is_loose for v in found)}; {rows} predictions, {ties} ties, {corrected} thresholds of LIBSVM by "
            f"rounding; steps {max(v.ratio for v in found):.2f} of the bound at most; slowest fit {seconds:.2f} s "
            f"(number {slowest}), {1e3 * self.elapsed_s / n:.1f} ms per problem"
        )


def _judge_all(answers: Any, by: Callable[[Problem], Verdict], seed: int, numbers: range, most_s: float) -> None:
    """Send a verdict of each problem; a signal ends the process where one takes too long."""
    with threadpool_limits(1):
        for number in numbers:
            signal.setitimer(signal.ITIMER_PROF, most_s)
            signal.setitimer(signal.ITIMER_REAL, _PATIENCE * most_s)
            try:
                verdict = by(draw(seed, number))
            except Exception:  # whatever a fit raises that is not meant to be raised is what the soak looks for
                verdict = Verdict("raised", [traceback.format_exc()])
            answers.send(verdict)


def _verdicts(seed: int, numbers: range, most_s: float, by: Callable[[Problem], Verdict]) -> Iterator[Verdict]:
    """Yield the verdict of each problem, from as many processes as it takes, one after the other."""
    context = multiprocessing.get_context("spawn")
    while numbers:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_judge_all, args=(theirs, by, seed, numbers, most_s), daemon=True)
        process.start()
        theirs.close()
        with ours, suppress(EOFError):
            while numbers:
                yield ours.recv()
                numbers = numbers[1:]
        process.join()
        if numbers:
            yield Verdict("hung", [f"no answer within {most_s:g} s; the process ended with {process.exitcode}"])
            numbers = numbers[1:]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def soak(
    seed: int,
    numbers: range,
    *,
    n_processes: int = 1,
    most_s: float = 60.0,
    by: Callable[[Problem], Verdict] = judge,
    say: Callable[[str], None] = _say,
) -> Summary:
    """Judge problems of a seed, each at most so many seconds of processor time; say failures as they come."""
    summary, begin = Summary(), time.monotonic()
    told = begin

    def judge_share(share: range) -> None:
        nonlocal told
        for number, verdict in zip(share, _verdicts(seed, share, most_s, by), strict=True):
            summary.verdicts[number] = verdict
            summary.elapsed_s = time.monotonic() - begin
            if verdict.failures:
                what = "; ".join(verdict.failures)
                text = f"SOAK_SEED={seed} SOAK_FIRST={number} SOAK_RUNS=1  {draw(seed, number)}: {what}"
                summary.failures.append(text)
                say(text)
            if time.monotonic() - told > _TELL_EVERY_S:
                told = time.monotonic()
                say(f"... {summary}")

    with ThreadPoolExecutor(n_processes) as pool:
        list(pool.map(judge_share, [numbers[k::n_processes] for k in range(n_processes)]))
    return summary
