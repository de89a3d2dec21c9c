"""The registry of claims: its laws, what is measured of them, verdicts on made rows, the page and the command."""

from __future__ import annotations

import ast
import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsgd import SGDClassifier, compress, kernel_approximation, local, sync
from dsgd.__main__ import main
from dsgd.errors import InvalidParameterError
from dsgd.study import claims as api
from dsgd.study.claims.contests import Versus, judge_accuracy, judge_objective, judge_over
from dsgd.study.claims.registry import verdict_of
from dsgd.study.comparison.result import Comparison
from dsgd.study.comparison.runs import SEQUENTIAL
from dsgd.study.published import SOURCES, STATEMENTS, Margin
from dsgd.sync import adaptive, resolve
from web_page import check_page

ROOT = Path(__file__).parents[2]
#: Of an estimator, beside `sync`.
PARAMETERS = ("optimizer", "sampling", "features", "learning_rate")


def test_every_statement_says_who_published_what_where() -> None:
    """Keys begin with that of the source, nothing is empty, and nothing is said twice."""
    assert len(STATEMENTS) >= 30
    for key, one in STATEMENTS.items():
        assert key == one.key
        assert key.startswith(f"{one.source.key}/")
        said = {**vars(one.source), "publications": one.source.reference}
        assert all([one.text, one.figure, one.where, *said.values()])
        assert one.form(1.0)
    texts = [(one.source.key, one.text, one.figure) for one in STATEMENTS.values()]
    assert len(set(texts)) == len(texts)
    assert len({source.system for source in SOURCES.values()}) == len(SOURCES)


def test_every_statement_has_a_measure_and_every_measure_a_statement() -> None:
    """What is written down is measured by one function, and nothing is measured that is written down elsewhere."""
    assert set(api.MEASURE_OF) == set(STATEMENTS)
    measured = [one for measure in api.MEASURES.values() for one in measure.statements]
    assert len(measured) == len(STATEMENTS)
    assert all(STATEMENTS[one.key] == one for one in measured)
    for name, measure in api.MEASURES.items():
        assert name == measure.name
        assert callable(measure.run)
        assert measure.what.endswith(".")


def test_every_source_names_a_class_and_what_switches_it_on() -> None:
    """The class can be imported, and the argument is one that Python takes, or a call of it."""
    names: dict[str, Any] = {}
    for module in (sync, adaptive, compress):
        names |= {name: getattr(module, name) for name in module.__all__}
    for source in SOURCES.values():
        where, _, name = source.implemented_by.rpartition(".")
        assert hasattr(importlib.import_module(where), name), source
        if source.switched_on.startswith("sync="):
            resolve(eval(source.switched_on.removeprefix("sync="), names))
        elif (parameter := source.switched_on.partition("=")[0]) in PARAMETERS:
            value = eval(source.switched_on.removeprefix(f"{parameter}="), vars(local) | vars(kernel_approximation))
            assert getattr(SGDClassifier(**{parameter: value}), parameter) is value
            assert type(value).__name__ == name
        else:
            call = ast.parse(source.switched_on, mode="eval").body
            assert isinstance(call, ast.Call)
            assert ast.unparse(call.func) == name


def test_what_is_chosen_is_a_source_a_claim_or_a_measure() -> None:
    """Words choose statements in the order of the registry; a word that chooses none is refused with those that do."""
    assert [one.key for one in api.chosen(["diloco"])] == ["diloco/bytes", "diloco/objective"]
    assert [one.key for one in api.chosen(["gtopk/topk", "msf/accuracy"])] == ["msf/accuracy", "gtopk/topk"]
    assert api.chosen(["trees"]) == [STATEMENTS["blink/trees"]]
    assert len(api.chosen()) == len(STATEMENTS)
    with pytest.raises(InvalidParameterError, match=r"'gtop'.*gtopk, "):
        api.chosen(["gtop"])


def row(strategy: str, seed: int, **found: Any) -> dict[str, Any]:
    """Return a row of a comparison."""
    common = {"dataset": "d", "ranks": 4, "where": "4 ranks", "majority_accuracy": 0.6, "train_s": 1.0}
    return {
        "strategy": strategy,
        "seed": seed,
        **common,
        "test_accuracy": 0.9,
        "objective": 0.3,
        "bytes_sent": 8,
        **found,
    }


def comparison(*, objective: float = 0.3, accuracy: float = 0.9, n_bytes: int = 8, **more: Any) -> Comparison:
    """Return three seeds of one rank and two methods, the first of which may differ."""
    rows = [row(SEQUENTIAL, seed) for seed in range(3)] + [row("other", seed, **more) for seed in range(3)]
    own = {"objective": objective, "test_accuracy": accuracy, "bytes_sent": n_bytes}
    return Comparison([*rows, *(row("ours", seed, **own) for seed in range(3))], [], 0.02)


def test_comparisons_decide_by_what_both_methods_reach() -> None:
    """Objectives as ratios, accuracies as differences, bytes as times what the other needs, each with its baseline."""
    lower = Versus(STATEMENTS["slowmo/objective"], judge_objective, "ours", "other")
    said = [lower.claim(comparison(objective=value)) for value in (0.29, 0.31)]
    assert [claim.verdict for claim in said] == ["holds", "fails"]
    assert said[0].baseline == "2.31x: a model of zeros"
    kept = Versus(STATEMENTS["gtopk/accuracy"], judge_accuracy, "ours", "other")
    said = [kept.claim(comparison(accuracy=value)) for value in (0.897, 0.89)]
    assert [claim.verdict for claim in said] == ["holds", "fails"]
    assert said[0].baseline == "-30.00 points: commonest label"
    assert kept.claim(comparison(test_accuracy=0.6)).verdict == "no claim"

    def fewer(*args: Any) -> Any:
        return judge_over("bytes_sent", *args)

    saves = Versus(STATEMENTS["diloco/bytes"], fewer, "ours", "other")
    said = [saves.claim(comparison(n_bytes=2, bytes_sent=value)) for value in (1000, 100)]
    assert [(claim.ours, claim.verdict) for claim in said] == [("500x", "holds"), ("50x", "fails")]
    assert said[0].key == "diloco/bytes"


def test_a_method_that_diverges_confirms_nothing() -> None:
    """Ours fails, and nothing is decided beside another that diverges."""
    versus = Versus(STATEMENTS["slowmo/objective"], judge_objective, "ours", "other")
    diverged = comparison(diverged=True)
    assert versus.claim(diverged).verdict == "undecided"
    assert replace(versus, ours="other", other="ours").claim(diverged).verdict == "fails"


def test_a_statement_that_nothing_was_measured_for_says_what_it_needs() -> None:
    """A measure returns a claim or more for each statement, and those without one are not run."""
    measured = STATEMENTS["blink/trees"].not_run("d", "first"), STATEMENTS["blink/trees"].not_run("e", "second")
    measure = api.Measure(
        "m",
        (STATEMENTS["gtopk/growth"], STATEMENTS["blink/trees"]),
        "W.",
        lambda out, say: list(measured),
        "Needs torch.",
    )
    claims = measure.claims(Path(), print)
    assert [(claim.key, claim.note) for claim in claims] == [
        ("gtopk/growth", "Needs torch."), ("blink/trees", "first"), ("blink/trees", "second"),
    ]  # fmt: skip
    assert {claim.verdict for claim in claims} == {"not run"}


def test_the_overview_has_a_row_for_each_statement() -> None:
    """One verdict where all data agree, else how many hold or are exceeded; the first figure stands for all."""
    claims = [
        STATEMENTS["gtopk/topk"].said(name, "2x", verdict, "") for name, verdict in (("a", "holds"), ("b", "fails"))
    ]
    claims.append(STATEMENTS["blink/trees"].said("c", "6", "holds", "", baseline="4: rings"))
    assert [verdict_of(claims[:2]), verdict_of(claims[2:])] == ["1/2 hold", "holds"]
    table = api.overview_table(claims, api.chosen(["gtopk/topk", "trees"]))
    assert [(cells[0], cells[-2], cells[-1]) for cells in table.rows] == [
        ("1/2 hold", "2x, +1", "-"),
        ("holds", "6", "4: rings"),
    ]


def test_measures_are_resumed_and_say_how_far_they_are(tmp_path: Path) -> None:
    """Two measures leave two rows; a second call makes none, and claims come back as they were."""
    statements, told = api.chosen(["sums", "low-rank"]), []
    first = list(api.run_claims(statements, tmp_path, on_progress=told.append))
    assert told == ["1 of 2: low-rank", "2 of 2: sums"]
    assert list(api.run_claims(statements, tmp_path)) == first
    claims = api.claims_of(first, api.chosen(["powersgd/ratio"]))
    assert [(claim.ours, claim.verdict, claim.system) for claim in claims] == [("136x", "holds", "PowerSGD")]
    assert claims[0].interval is not None
    assert len(api.claims_of(first, api.chosen(["gtopk"]))) == 1


def test_a_statement_that_changes_is_judged_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A row does not stand for another margin: the measure is made again, and judges by the new one."""
    asked = [STATEMENTS["blink/trees"]]
    assert next(api.run_claims(asked, tmp_path))["claims"][0]["holds"] is True
    harder = replace(STATEMENTS["blink/trees"], margin=Margin(7.0))
    measure = replace(api.MEASURES["trees"], statements=(harder,))
    monkeypatch.setattr(api.codes, "STATEMENTS", {**STATEMENTS, "blink/trees": harder})
    monkeypatch.setattr(api.registry, "MEASURES", {"trees": measure})
    assert next(api.run_claims(asked, tmp_path))["claims"][0]["holds"] is False


def test_the_command_leaves_a_page_and_a_file_of_claims(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page opens with the statements and needs no network; JSON has source, place, interval, verdict and reason."""
    options = ["claims", "--only", "trees", "--only", "gtopk/growth", "--out", str(tmp_path)]
    assert main([*options, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))
    assert {claim["key"] for claim in facts["claims"]} == {"blink/trees", "gtopk/growth"}
    for claim in facts["claims"]:
        assert all(
            claim[name] for name in ("reference", "where", "ran", "figure", "ours", "baseline", "verdict", "why")
        )
        assert len(claim["interval"]) == 3
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    check_page(page)
    assert page.index("Every statement") < page.index("<h2>Claims</h2>")
    assert page.count("<summary>why</summary>") == len(facts["claims"])
    assert main(options) == 0
    assert "Every statement" in capsys.readouterr().out
    assert main(["claims", "--only", "trees", "--list", "--json"]) == 0
    assert [one["key"] for one in json.loads(capsys.readouterr().out)] == ["blink/trees"]
