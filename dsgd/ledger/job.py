"""The ledger of a job: what its ranks have counted, as sums, as a table of pandas and as a text."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsgd.errors import InvalidParameterError, MissingPackageError
from dsgd.ledger.rank import PHASES, RECORD_DTYPE, SENT, RankRecords
from dsgd.stages import Stage

if TYPE_CHECKING:
    import pandas as pd

# Advice is given where another setting takes less than so much of the time; and for communication that is more than the
# first of these shares of the rank-seconds, so that it becomes the second.
_CLEARLY: Final = 0.8
_MUCH, _LITTLE = 0.25, 0.1


@dataclass(frozen=True)
class Ledger:
    """The ledger of a job: the seconds and bytes of every rank.

    Parameters
    ----------
    ranks : sequence of RankRecords
        One entry per rank, in rank order.
    elapsed_s : float
        Wall-clock seconds of the job as the client saw it, including data placement; on a simulated cluster, the
        virtual seconds until the last rank had ended.
    workers : sequence of str
        The worker of each rank if ranks run on workers; each of several threads of a worker is a rank.
    stages : sequence of Stage
        The time and bytes of the whole fit, in the caller's process and on the workers; see `dsgd.stages`.
    dask_bytes : int
        What Dask itself has moved for a job on workers: the plan to each of them, and models and records back. Rows
        that it has moved to the workers are in `stages`.
    record : callable or None
        Makes the `dsgd.sim.RunRecord` of this ledger, which `what_if` asks; None of what is not trained by SGD.

    Examples
    --------
    >>> from dsgd.ledger import Ledger, RankLedger
    >>> ledger = Ledger([RankLedger(0).records()], elapsed_s=0.5)
    >>> ledger.totals()["rounds"]
    0
    """

    ranks: Sequence[RankRecords]
    elapsed_s: float = field(default=0.0)
    workers: Sequence[str] = ()
    stages: Sequence[Stage] = ()
    dask_bytes: int = 0
    record: Callable[[Ledger], Any] | None = field(default=None, repr=False, compare=False)

    def totals(self) -> dict[str, float]:
        """Return the sums over ranks.

        Returns
        -------
        dict
            ``compute_s``, ``encode_s``, ``wire_s``, ``wait_s``, ``bytes_sent`` and ``messages`` of the algorithm,
            ``control_s``, ``control_bytes_sent`` and ``control_messages`` of everything else that ranks exchange (all
            summed over ranks), and ``rounds`` (synchronisations, counted once).
        """
        names = [*(f"{phase}_s" for phase in PHASES), *SENT]
        totals: dict[str, float] = {name: sum(r.totals[name] for r in self.ranks) for name in names}
        totals["rounds"] = max((r.totals["rounds"] for r in self.ranks), default=0)
        return totals

    def per_rank(self) -> dict[int, dict[str, float]]:
        """Return the totals of each rank, by rank."""
        return {r.rank: dict(r.totals) for r in self.ranks}

    def to_frame(self) -> pd.DataFrame:
        """Return the kept records as a pandas frame, one row per rank and round.

        Returns
        -------
        pandas.DataFrame
            Columns ``rank``, ``round``, ``op``, ``compute_s``, ``encode_s``, ``wire_s``, ``wait_s``, ``control_s``,
            ``bytes_sent``, ``messages``, ``control_bytes_sent``, ``control_messages``. Long runs keep a sample of
            their rounds; `totals` always counts all of them.

        Raises
        ------
        MissingPackageError
            pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingPackageError(
                "Ledger.to_frame() needs pandas, which is not installed here. Install it with: pip install pandas; or "
                "use the records as they are, structured arrays of numpy: ledger.ranks[0].records."
            ) from error

        frames = [pd.DataFrame(r.records).assign(rank=r.rank) for r in self.ranks]
        columns = ["rank", *(RECORD_DTYPE.names or ())]
        return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)

    def what_if(
        self,
        network: Any = None,
        ranks: int | None = None,
        every: int | None = None,
        compressor: Any = None,
        stragglers: Any = None,
        sync: Any = None,
    ) -> Any:
        """Return what the run would have taken with other settings.

        Its rounds are played again, with the seconds of work that were recorded; see `dsgd.sim.what_if`. Rows are dealt
        anew to other ranks, each with a core as fast as those of the run. How well the model would have been is another
        question.

        Parameters
        ----------
        network : Network or str, optional
            Another network, by itself or by its name: ``"1GbE"``, ``"WAN"``, ...
        ranks : int, optional
            How many ranks.
        every : int, optional
            Rows of a rank between two exchanges.
        compressor : AbstractCompressor or str, optional
            How vectors are encoded, such as ``"topk:0.01"``.
        stragglers : AbstractStragglers or str, optional
            How the work of ranks varies; in a real run, beside what was recorded.
        sync : object, optional
            Another strategy, as estimators take it.

        Returns
        -------
        dsgd.sim.WhatIf
            Seconds with an interval, by phase, bytes, and what this rests on. ``print`` shows it as a text.

        Raises
        ------
        InvalidParameterError
            The model was not trained by SGD; or a parameter is out of range, or does not go with the strategy.
        """
        changes = {"network": network, "ranks": ranks, "every": every, "compressor": compressor}
        changes |= {"stragglers": stragglers, "sync": sync}
        return self._recorded("what_if").what_if(**changes)

    def sweep(self, every: Sequence[int], **changes: Any) -> Any:
        """Return what the run would have taken with each of several periods.

        Parameters
        ----------
        every : sequence of int
            Periods: rows of a rank between two exchanges.
        **changes
            What else would have been different; see `what_if`.

        Returns
        -------
        dsgd.sim.Sweep
            A `dsgd.sim.WhatIf` for each, and the ``knee``. ``print`` shows a table.

        Raises
        ------
        InvalidParameterError
            As for `what_if`.
        """
        return self._recorded("sweep").sweep(every, **changes)

    def diff(self, other: Ledger) -> str:
        """Return a text table of where seconds and bytes went in this run and in another, and what differs.

        Parameters
        ----------
        other : Ledger
            That of another run. Of each phase there is the mean over the ranks of a run.
        """
        head = f"{'':>10} {'this run':>12} {'the other':>12} {'difference':>12} {'ratio':>8}"
        lines, both = [head, "-" * len(head)], (self, other)

        def add(name: str, values: Sequence[float], unit: str = "s") -> None:
            this, that = values
            ratio = f"{that / this:>7.2f}x" if this > 0 else f"{'-':>8}"
            lines.append(f"{name:>10} {this:>10.4g} {unit} {that:>10.4g} {unit} {that - this:>+10.4g} {unit} {ratio}")

        sums = [run.totals() for run in both]
        for phase in PHASES:
            add(phase, [sums[k][f"{phase}_s"] / max(1, len(run.ranks)) for k, run in enumerate(both)])
        add("elapsed", [self.elapsed_s, other.elapsed_s])
        add("sent", [total["bytes_sent"] / 1e6 for total in sums], "M")
        add("rounds", [total["rounds"] for total in sums], " ")
        return "\n".join(
            [*lines, f"seconds in the mean over ranks, {len(self.ranks)} and {len(other.ranks)}; sent in MB"]
        )

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write the kept records as a timeline, which ui.perfetto.dev and chrome://tracing open.

        Each rank has a track, on which the phases of its rounds follow each other, and a counter of the bytes it has
        sent. Records have no times of day: every rank begins at zero, and what was not kept is left out.

        Parameters
        ----------
        path : str or os.PathLike
            The file of trace events, JSON.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        events: list[dict[str, Any]] = []
        for one in self.ranks:
            track, at_us, sent = {"pid": 0, "tid": one.rank}, 0.0, 0
            events.append({"ph": "M", "name": "thread_name", **track, "args": {"name": f"rank {one.rank}"}})
            for record in one.records:
                about = {"round": int(record["round"]), "op": str(record["op"])}
                for phase in PHASES:
                    spent_us = 1e6 * float(record[f"{phase}_s"])
                    if spent_us > 0.0:
                        events.append({"ph": "X", "name": phase, **track, "ts": at_us, "dur": spent_us, "args": about})
                        at_us += spent_us
                sent += int(record["bytes_sent"])
                name = f"bytes sent by rank {one.rank}"
                events.append({"ph": "C", "name": name, "pid": 0, "ts": at_us, "args": {"bytes": sent}})
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")

    def _recorded(self, method: str) -> Any:
        if self.record is None:
            raise InvalidParameterError(
                f"Ledger.{method}() plays rounds of SGD, and this ledger knows of none: it is there after a fit of "
                "SGDClassifier and SGDRegressor."
            )
        return self.record(self)

    def summary(self) -> str:
        """Return a text table: a line per rank, the total, the shares of communication and control, and workers.

        Below it is a line for each stage of the fit: its seconds, and the bytes of rows and targets that it handled.
        For stages on workers, these are the seconds of the slowest and the bytes of all. The last line is `advice`, if
        there is any.
        """
        header = " ".join([f"{'rank':>5}", *(f"{name:>11}" for name in (*PHASES, "sent")), f"{'rounds':>9}"])
        lines = [header, "-" * len(header)]
        lines += [_line(str(r.rank), r.totals) for r in self.ranks]
        totals = self.totals()
        lines += ["-" * len(header), _line("all", totals)]
        spent = sum(totals[f"{phase}_s"] for phase in PHASES)
        if spent > 0:
            share = (totals["wire_s"] + totals["wait_s"]) / spent
            lines.append(
                f"communication (wire + wait): {share:.1%} of {spent:.3g} rank-seconds; {self.elapsed_s:.3g} s elapsed"
            )
        if totals["control_messages"]:
            share = totals["control_s"] / spent if spent > 0 else 0.0
            sent = f"{_bytes_text(totals['control_bytes_sent'])} in {totals['control_messages']:.0f} messages"
            lines.append(f"control, beside the algorithm: {share:.1%} of the rank-seconds, {sent}")
        if self.dask_bytes:
            lines.append(f"Dask, beside the ranks: {_bytes_text(self.dask_bytes)} for plan, model and records")
        if self.workers:
            threads = Counter(self.workers).values()
            lines.append(
                f"{len(self.workers)} ranks on {len(threads)} workers ({' + '.join(map(str, threads))} threads)"
            )
        advice = self.advice()
        return "\n".join([*lines, *_stage_lines(self.stages), *(["", advice] if advice else [])])

    def advice(self) -> str:
        """Return in a line which other setting would clearly be faster; empty if none is known to be."""
        totals, spent = self.totals(), [sum(r.totals[f"{phase}_s"] for phase in PHASES) for r in self.ranks]
        longest = max(spent, default=0.0)
        if len(spent) < 2 or longest <= 0.0:
            return ""
        alone = totals["compute_s"]
        if alone < _CLEARLY * longest:
            return (
                f"advice: one rank would take about {alone:.3g} s for the steps of all, and these took {longest:.3g} s."
            )
        if self.record is not None:
            told: str = self.record(self).advice(_CLEARLY)
            return told
        share = sum(totals[f"{phase}_s"] for phase in ("encode", "wire", "wait")) / sum(spent)
        n_epochs = max(len(r.epochs) for r in self.ranks)
        if share <= _MUCH or totals["rounds"] <= n_epochs:
            return ""
        times = 2 ** math.ceil(math.log2(share / (1.0 - share) * (1.0 - _LITTLE) / _LITTLE))
        return (
            f"advice: exchange after {times} times as many rows (sync=...): about {_LITTLE:.0%} of the rank-seconds "
            f"would go to exchanges (encode + wire + wait), and {share:.0%} do."
        )

    def __str__(self) -> str:
        return self.summary()


def _stage_lines(stages: Sequence[Stage]) -> list[str]:
    """Return the lines of a summary that tell of stages."""
    found: dict[tuple[str, str], tuple[float, int]] = {}
    for stage in stages:
        key = stage.name, "client" if stage.where == "client" else "workers"
        seconds, nbytes = found.get(key, (0.0, 0))
        found[key] = max(seconds, stage.seconds), nbytes + stage.nbytes
    lines = [
        f"{name:>10} {where:>8} {seconds:>10.4f}s {_bytes_text(nbytes) if nbytes else '':>13}"
        for (name, where), (seconds, nbytes) in found.items()
    ]
    return ["", f"{'stage':>10} {'where':>8} {'seconds':>11} {'bytes handled':>13}", *lines] if lines else []


def _line(name: str, totals: dict[str, float]) -> str:
    seconds = " ".join(f"{totals[f'{phase}_s']:>10.4f}s" for phase in PHASES)
    return f"{name:>5} {seconds} {_bytes_text(totals['bytes_sent']):>11} {int(totals['rounds']):>9}"


def _bytes_text(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"
