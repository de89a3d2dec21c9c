"""The study of the period (model synchronisation frequency, MSF): what averages cost, and what rare ones lose.

Messages go over TCP, as in the published study: on one host rounds would otherwise run inside one compiled loop, where
a synchronisation costs almost nothing and there is little to save. The published figures are in ``published.toml``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from dsgd.estimators import SGDClassifier
from dsgd.ledger import PHASES
from dsgd.report import Claim, Table, figure_text, span_of
from dsgd.runtime.deployment import Gang
from dsgd.sim import SimulatedCluster
from dsgd.study.frame import options
from dsgd.study.frame.data import DataSource, classifier, objective, place, score, spent
from dsgd.study.frame.report import data_table, joined, tally, tally_sentence, time_text
from dsgd.study.frame.rows import Cell, Row, Run, any_busy, one_of
from dsgd.study.frame.study import Batch, Grid, Option, Study
from dsgd.study.msf_figures import COMMUNICATION_S, RARE, PeriodRows, figures_of, is_trivial, sets_of
from dsgd.study.published import FIGURES, SOURCES, STATEMENTS, Interval, Margin, Statement, as_times
from dsgd.sync import EpochAveraging, LocalSGD

__all__ = ["STUDY"]


def published(dataset: str) -> tuple[dict[int, float], dict[int, float]] | None:
    """Return the published falls of communication and gains in time from period 1 to 512, by processes.

    They are those of the set that a dataset is, or is shaped like; None if it is none of them.
    """
    name = next((name for name in COMMUNICATION_S if dataset.startswith(name)), None)
    if name is None:
        return None
    falls, gains = {}, {}
    for ranks, seconds in COMMUNICATION_S[name].items():
        frequent, rare = FIGURES["msf"]["compute_s"][name][str(ranks)]
        falls[ranks] = 1.0 - seconds[RARE] / seconds[1]
        gains[ranks] = float((frequent + seconds[1]) / (rare + seconds[RARE]))
    return falls, gains


# -- measuring -----------------------------------------------------------------------------------------------------


def _measure(batch: Batch, runs: Sequence[Run]) -> Iterator[Row]:
    """Train on one dataset and one number of ranks."""
    study, data, ranks = batch.study, batch.data, runs[0].ranks
    where = batch.client or SimulatedCluster(ranks, study.network or "InfiniBand")
    blocks, _ = place(where, (data.X, data.y), ranks, study.partition)
    _model(runs[0], where, max_iter=1).fit(blocks, None)  # loads compiled code
    for run in runs:
        model = _model(run, where, max_iter=study.epochs).fit(blocks, None)
        test, train = score(model, data.X_test, data.y_test), score(model, data.X, data.y)
        report: dict[str, Any] = model.fit_report_
        curve = [
            {name: record[name] for name in ("epoch", "seconds", "train_loss", "dispersion")}
            for record in report["epochs"]
        ]
        yield {
            **data.describe(),
            "test_accuracy": test["accuracy"],
            "balanced_accuracy": test["balanced_accuracy"],
            "f1": test["f1"],
            "train_accuracy": train["accuracy"],
            "objective": objective(model, data.X, data.y, loss=study.loss, alpha=study.alpha),
            # From the first sample to the last synchronisation, on the first rank; placing the data is in elapsed_s.
            "train_s": curve[-1]["seconds"],
            "elapsed_s": report["elapsed_s"],
            **spent(model),
            "dispersion": curve[-1]["dispersion"],
            "peak_rss_bytes": int(report["peak_rss_bytes"]),
            "curve": curve,
        }


def _model(run: Run, where: Any, *, max_iter: int) -> SGDClassifier:
    # One rank has no peers: its epochs are not cut into rounds.
    sync = EpochAveraging() if run.every is None else LocalSGD(every=run.every)
    gang = Gang(where, transport="auto" if isinstance(where, SimulatedCluster) else "tcp")
    return classifier(run, fit_intercept=run.fit_intercept, max_iter=max_iter, sync=sync, n_jobs=run.ranks, client=gang)


# -- claims --------------------------------------------------------------------------------------------------------


def _claims(sets: Sequence[PeriodRows]) -> list[Claim]:
    """Return the published claims, each with the result at the largest number of ranks on each dataset."""
    checks = (_less_communication, _faster_than_frequent, _faster_than_sequential, _higher_accuracy, _lower_objective)
    return [check(one) for check in checks for one in sets]


def _saved(
    statement: Statement, one: PeriodRows, found: Interval | None, note: str, cells: tuple[Cell, Cell], baseline: str
) -> Claim:
    """Judge what the second cell saves beside the first: it counts where the objective is kept, within 5 %."""
    before, after = cells
    kept = after.over(before, "objective")
    word = Margin(most=1.05).verdict(kept) if kept else "undecided"
    if kept:
        note += f" Objective {kept.text(as_times)} that of {before.every or 'the sequential run'}; up to 1.05x is kept."
    verdict = statement.margin.verdict(found) if found else ""
    if found and verdict != "fails" and word != "holds" and len(before.rows) > 1:
        verdict = word
    return statement.judged(one.name, found, note, busy=any_busy(before, after), baseline=baseline, verdict=verdict)


def _less_communication(one: PeriodRows) -> Claim:
    statement = STATEMENTS["msf/communication"]
    if said := published(one.name):
        falls, _ = said
        statement = replace(statement, figure=f"{falls[2]:.1%} (2 processes), {falls[32]:.1%} (32)")
    ends = one.ends()
    if ends is None:
        return statement.not_run(one.name, f"Needs every=1 and every={RARE} on 2 ranks or more.")
    before, after = (cell.median("communication_s") for cell in ends)
    share = ends[1].over(ends[0], "communication_s")
    if share is None:
        return statement.not_run(one.name, "Nothing was communicated.")
    note = (
        f"Wire plus waiting, per rank: {time_text(before)} -> {time_text(after)} over {ends[0].epochs} "
        f"epochs on {ends[0].ranks} processes; {ends[0].median('rounds'):,.0f} -> {ends[1].median('rounds'):,.0f} "
        "exchanges."
    )
    fall = share.mapped(lambda left: 1.0 - left)
    return _saved(statement, one, fall, note, ends, "0%: every=1")


def _faster_than_frequent(one: PeriodRows) -> Claim:
    statement = STATEMENTS["msf/frequent"]
    if said := published(one.name):
        _, gains = said
        figure = f"{statement.figure}; its data: {gains[2]:.1f}x (2), {gains[32]:.1f}x (32)"
        statement = replace(statement, figure=figure)
    cells = one.parallel()
    frequent = one_of(cells, every=1)
    if frequent is None or len(cells) < 2:
        return statement.not_run(one.name, "Needs every=1 and a larger period on 2 ranks or more.")
    base, best = frequent.median("train_s"), min(cells, key=lambda cell: cell.median("train_s"))
    found = frequent.over(best, "train_s")
    note = (
        f"Training time {time_text(base)} at every=1, {time_text(best.median('train_s'))} at every={best.every} "
        f"on {best.ranks} processes. The ratio is set by what a sample costs against what an exchange costs here."
    )
    alone = f"{base / one.sequential.median('train_s'):.1f}x: one process" if one.sequential else ""
    return _saved(statement, one, found, note, (frequent, best), alone)


def _faster_than_sequential(one: PeriodRows) -> Claim:
    statement, cells, sequential = STATEMENTS["msf/sequential"], one.parallel(), one.sequential
    if not cells or sequential is None:
        return statement.not_run(one.name, "Needs the sequential run and 2 ranks or more.")
    low, best = statement.margin.least, min(cells, key=lambda cell: cell.median("train_s"))
    note = (
        f"Sequential {time_text(sequential.median('train_s'))}, best parallel {time_text(best.median('train_s'))} "
        f"(every={best.every})."
    )
    if best.ranks < low:
        note += (
            f" {best.ranks} processes can be about {best.ranks}x as fast as one, not {low:.0f}x: "
            "this claim needs the published 32 processes and cannot hold here."
        )
    found = sequential.over(best, "train_s")
    return _saved(statement, one, found, note, (sequential, best), "1x: one process")


def _higher_accuracy(one: PeriodRows) -> Claim:
    statement, cells, sequential = STATEMENTS["msf/accuracy"], one.parallel(), one.sequential
    if not cells or sequential is None:
        return statement.not_run(one.name, "Needs the sequential run and 2 ranks or more.")
    chosen = one_of(cells, every=RARE) or cells[-1]
    accuracy, base = chosen.median("test_accuracy"), sequential.median("test_accuracy")
    # Accuracy saturates where one label is rare.
    changes = [chosen.minus(sequential, name) for name in ("test_accuracy", "balanced_accuracy")]
    change = min((one for one in changes if one), key=lambda one: one.estimate, default=None)
    if change is None:
        return statement.not_run(one.name, "Needs both with the same seed.")
    worst, majority = min(cells, key=lambda cell: cell.median("test_accuracy")), chosen.median("majority_accuracy")
    note = (
        f"every={chosen.every} {accuracy:.2%}, sequential {base:.2%}; always predicting the commonest label scores "
        f"{majority:.2%}. Balanced accuracy {chosen.median('balanced_accuracy'):.2%} "
        f"(sequential {sequential.median('balanced_accuracy'):.2%}). Lowest over all periods: "
        f"{worst.median('test_accuracy'):.2%} at every={worst.every}."
    )
    best = chosen.rows[0].get("bayes_accuracy")
    if best is not None:
        note += f" The best possible on this generated set is {best:.2%}."
    trivial = is_trivial(chosen)
    if trivial:
        note += " No better than trivial: this accuracy says almost nothing."
    commonest = f"{statement.form(majority - base)}: commonest label"
    return statement.judged(one.name, change, note, trivial=trivial, baseline=commonest)


def _lower_objective(one: PeriodRows) -> Claim:
    statement, cells, sequential = STATEMENTS["msf/convergence"], one.parallel(), one.sequential
    if not cells or sequential is None:
        return statement.not_run(one.name, "Needs the sequential run and 2 ranks or more.")
    chosen = one_of(cells, every=RARE) or cells[-1]
    note = (
        f"every={chosen.every} {chosen.median('objective'):.4f}, sequential {sequential.median('objective'):.4f}, "
        f"after {chosen.epochs} epochs."
    )
    return statement.judged(one.name, chosen.over(sequential, "objective"), note, baseline="1x: one process")


# -- tables --------------------------------------------------------------------------------------------------------

# Columns by heading; nothing is exchanged on one rank.
_COLUMNS: Final = {
    "ranks": "ranks", "every": "period", "time s": "train_s:3", "compute s": "compute_s:3", "encode s": "encode_s:3",
    "wire s": "wire_s:3", "wait s": "wait_s:3", "comm. share": "share", "comm. saved": "saved",
    "x sequential": "times", "accuracy": "accuracy", "lowest": "lowest", "highest": "highest",
    "balanced": "balanced_accuracy:.2%", "F1": "f1:.3f", "training accuracy": "train_accuracy:.2%",
    "objective": "objective:.4f", "dispersion": "dispersion:.2g", "exchanges": "rounds:,.0f", "sent": "bytes_sent:B",
    "peak memory": "peak_rss_bytes:B",
}  # fmt: skip
_EXCHANGED: Final = ("encode s", "wire s", "wait s", "comm. share", "dispersion", "exchanges", "sent")
_TIME: Final = (
    "ranks", "every", "time s", "compute s", "encode s", "wire s", "wait s", "comm. share", "comm. saved",
    "x sequential", "exchanges", "sent", "peak memory",
)  # fmt: skip
_WORTH: Final = (
    "ranks", "every", "accuracy", "lowest", "highest", "balanced", "F1", "training accuracy", "objective",
    "dispersion",
)  # fmt: skip


def _results(one: PeriodRows, columns: Sequence[str], title: str) -> Table:
    def share(cell: Cell) -> str:
        spent_s = sum(cell.median(f"{phase}_s") for phase in (*PHASES, "other"))
        return f"{_communicated(cell) / spent_s:.1%}" if spent_s else "-"

    def saved(cell: Cell) -> str:
        first = one_of(one.cells, ranks=cell.ranks, every=1)
        before = first.median("communication_s") if first and cell.every not in (None, 1) else 0.0
        return f"{1 - _communicated(cell) / before:.1%}" if before > 0 else "-"

    def times(cell: Cell) -> str:
        base = one.sequential.median("train_s") if one.sequential else 0.0
        return figure_text(base / cell.median("train_s")) if base else "-"

    def end(cell: Cell, name: str) -> str:
        accuracy = cell.stat("test_accuracy")
        return f"{getattr(accuracy, name):.2%}" if accuracy else "-"

    notes = ["Medians over seeds."]
    if "comm. saved" in columns:
        notes.append("Seconds and bytes per rank; comm. = wire + wait; saved: against every=1 on as many ranks.")
    if any(map(is_trivial, one.cells)):
        notes.append("* no better than always predicting the commonest label.")
    found = Table.of(
        f"{title} on {one.name}",
        one.cells,
        " | ".join(f"{name} = {_COLUMNS[name]}" for name in columns),
        " ".join(notes),
        0,
        period=_every,
        share=share,
        saved=saved,
        times=times,
        accuracy=lambda cell: f"{cell.median('test_accuracy'):.2%}" + "*" * is_trivial(cell),
        lowest=lambda cell: end(cell, "low"),
        highest=lambda cell: end(cell, "high"),
    )
    alone = [
        tuple("-" if cell.ranks == 1 and name in _EXCHANGED else text for name, text in zip(columns, row, strict=True))
        for cell, row in zip(one.cells, found.rows, strict=True)
    ]
    return replace(found, rows=alone)


def _communicated(cell: Cell) -> float:
    return cell.median("wire_s") + cell.median("wait_s")


def _every(cell: Cell) -> str:
    return "sequential" if cell.every is None else f"{cell.every:,}"


# -- the page ------------------------------------------------------------------------------------------------------


def _report(study: Study, rows: Sequence[Row]) -> dict[str, Any]:
    sets = sets_of(rows)
    claims = _claims(sets)
    answer, highlights = _answer(_gains(sets), claims)
    note = "commonest label: test accuracy of always predicting it; best possible: of a generated set, from its noise."
    return {
        "answer": answer,
        "ran": [
            (
                "Grid",
                f"ranks {joined(sorted({1, *study.ranks}))}; every {joined(study.every)}; seeds {joined(study.seeds)}",
            ),
            (
                "Model",
                f"{study.loss} loss, alpha {study.alpha:g}, {study.schedule} schedule, {study.epochs} epochs, "
                f"{'with' if study.fit_intercept else 'no'} intercept, {study.dtype}, {study.partition} partition",
            ),
        ],
        "highlights": highlights,
        "data": [data_table(rows, "features", "non-zero", "commonest label", "best possible", note=note)],
        "claims": claims,
        "source": (
            f"{SOURCES['msf'].reference}: linear SVM on 2 to 32 MPI processes. Each claim is recomputed at the "
            "largest number of processes run here."
        ),
        "figures": figures_of(sets),
        "tables": [
            _results(one, columns, title)
            for columns, title in ((_TIME, "Time"), (_WORTH, "Worth of the averaged model"))
            for one in sets
        ],
    }


def _gains(sets: Sequence[PeriodRows]) -> Mapping[str, Any] | None:
    """Return falls of communication, gains over every=1, best gains over the sequential run, accuracies, and ranks."""
    found: dict[str, Any] = {"falls": [], "gains": [], "best": [], "changes": []}
    for one in sets:
        ends, sequential = one.ends(), one.sequential
        if ends is None or sequential is None:
            continue
        first, rare = ends
        found["ranks"] = rare.ranks
        found["falls"].append(1 - rare.median("communication_s") / first.median("communication_s"))
        found["gains"].append(first.median("train_s") / rare.median("train_s"))
        found["best"].append(sequential.median("train_s") / min(cell.median("train_s") for cell in one.parallel()))
        # Means, because scores scatter to both sides.
        means = [statistics.fmean(float(row["test_accuracy"]) for row in cell.rows) for cell in (rare, sequential)]
        found["changes"].append(100 * (means[0] - means[1]))
    return found if "ranks" in found else None


def _answer(found: Mapping[str, Any] | None, claims: Sequence[Claim]) -> tuple[str, list[tuple[str, str]]]:
    """Return the answer of the study, and its highlights."""
    count, unknown = tally_sentence(claims, "published claims"), sum(claim.undecided for claim in claims)
    if unknown:
        count += f" {unknown} undecided."
    held = (tally(claims), "published claims hold here")
    if found is None:
        return f"This study did not run both every=1 and every={RARE} on two or more processes. {count}", [held]
    falls, gains = span_of(found["falls"], "{:.1%}"), span_of(found["gains"], "{:.0f}")
    best, changes = span_of(found["best"], "{:.2g}"), span_of(found["changes"], "{:+.2f}")
    answer = (
        f"On {found['ranks']} processes, synchronising every {RARE} samples instead of every sample cut communication "
        f"by {falls} and made training {gains} times as fast, with test accuracy {changes} points from the sequential "
        f"run. At its best period it was {best} times as fast as the sequential run. {count}"
    )
    return answer, [
        (falls, f"less communication at every={RARE} than at every=1"),
        (f"{gains}x", "as fast as synchronising every sample"),
        (f"{best}x", "as fast as the sequential run, at the best period"),
        (changes, "points of test accuracy against the sequential run"),
        held,
    ]


#: The study. It includes the run of one rank always, the baseline of the others.
STUDY: Final = Study(
    "msf",
    "How often must the ranks of a parallel SGD synchronise?",
    ("msf",),
    options={
        "data": options.data(
            [DataSource("ijcnn1")],
            # At every=1 a synchronisation between two processes costs 30 to 200 us per sample, by machine, so that rows
            # and seeds at that period decide how long it takes: some 225,000 such samples in all.
            demo=(
                DataSource("ijcnn1", 12_000, 90_000),
                DataSource("webspam-like", 10_000, 24_000),
                DataSource("epsilon-like", 8_000, 16_000),
            ),
        ),
        "ranks": Option((1, 2), "Worker processes, as 1,2,4.", least=1),
        "every": Option(
            (1, 4, 16, 64, 256, 512, 1024, 4096), "Samples between two synchronisations, as 1,16,256.",
            least=1,
        ),
        "seeds": options.seeds(),
        "epochs": options.epochs(5),
        "alpha": options.alpha(1e-4),
        # "per_epoch" is the step of the published study, 1 / (alpha epoch), constant inside an epoch.
        "schedule": Option(
            "optimal", "optimal, pegasos, or per-epoch as in the published study.", panel="The model",
            choices=("optimal", "pegasos", "per_epoch"),
        ),
        "loss": options.loss("hinge"),
        "partition": options.partition("contiguous"),
        "fit_intercept": Option(
            True, "Learn an intercept; the published study has none.", flags=("--intercept/--no-intercept",),
            panel="The model",
        ),
        "dtype": options.dtype(),
        "network": options.network(),
    },
    grids=[
        Grid(
            # Seeds come before periods, so that an interrupted study holds whole curves of its first seeds.
            lambda s: {
                "ranks": sorted({1, *s.ranks}), "dataset": s.data, "seed": s.seeds,
                "every": [None, *sorted(set(s.every))],
            },
            _measure,
            ("epochs", "alpha", "schedule", "loss", "partition", "fit_intercept", "dtype", "network"),
            where=lambda run: (run.ranks == 1) == (run.every is None),
            workers=lambda run: run.ranks if run.study.network is None else 0,
        )
    ],
    report=_report,
    about="Recomputes the claims of arXiv 1905.01219, on real worker processes.",
    examples=(
        "dsgd study msf --demo --out demo/",
        "dsgd study msf --dataset ijcnn1 --ranks 1,2 --every 1,4,16,64,256,512,1024,4096 --out study/",
        "dsgd study msf --dataset a9a --dataset w8a --ranks 1,2,4,8 --seeds 5 --scheduler tcp://10.0.0.5:8786 "
        "--out study/",
    ),
    on_cluster=True,
)  # fmt: skip
