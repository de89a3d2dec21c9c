"""The registry of claims: its laws, what is measured of them, verdicts on made rows, the page and the command."""

from __future__ import annotations

import ast
import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsgd import SGDClassifier, compress, kernel_approximation, local, sync
from dsgd.__main__ import main
from dsgd.errors import InvalidParameterError
from dsgd.study import claims as api
from dsgd.study.claims import contests
from dsgd.study.claims.contests import Found, Outcome, Outcomes
from dsgd.study.claims.registry import _answer, verdict_of
from dsgd.study.published import SOURCES, STATEMENTS, Interval, Margin, exact
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


WEIGHTS = np.array([0.5, 0.5, 2.0, 1.0])


def outcomes(objective: float = 0.3, seconds: float = 1.0, n_bytes: float = 8.0, hits: Any = (1, 1, 1, 0)) -> Outcomes:
    """Return those of four seeds, which differ by a little."""
    return {
        seed: Outcome(
            {"objective": objective + 1e-4 * seed, "test_loss": objective, "seconds": seconds, "bytes": n_bytes},
            np.array(hits, float),
        )
        for seed in range(4)
    }


def found(*, control: float = 0.6, problems: tuple[str, ...] = ("p", "q", "r"), **more: Outcomes) -> Found:
    """Return the outcomes of methods that are the same on all problems, and of the controls."""
    methods = {"one average": outcomes(control, 0.5, 0.0, (1, 0, 0, 0)), "zeros": outcomes(0.7, hits=(1, 1, 0, 0))}
    all_of = {(problem, 1.0, name): one for problem in problems for name, one in (methods | more).items()}
    return Found(all_of, dict.fromkeys(problems, WEIGHTS), 4, "here")


def test_contests_decide_by_what_both_methods_reach() -> None:
    """Objectives as ratios, accuracies as differences, bytes as times what the other needs, beside their controls."""
    lower = contests.Versus("slowmo/objective", "objective", "ours", "other")
    said = [lower.claim(found(ours=outcomes(value), other=outcomes(0.3))) for value in (0.29, 0.31)]
    assert [claim.verdict for claim in said] == ["holds", "fails"]
    assert said[0].control == "one average: 1.9995x, fails; zeros: 2.3327x, fails"
    assert (said[0].seeds, said[0].tuned) == (4, "yes")
    kept = contests.Versus("gtopk/accuracy", "score", "ours", "other", "test_loss")
    same, worse = outcomes(), outcomes(hits=(1, 1, 0, 0))
    assert [kept.claim(found(ours=one, other=same)).verdict for one in (same, worse)] == ["holds", "undecided"]
    saves = contests.Versus("choco/bytes", "bytes", "ours", "other", "objective")
    said = [saves.claim(found(ours=outcomes(n_bytes=value), other=outcomes(n_bytes=1000.0))) for value in (2.0, 20.0)]
    assert [(claim.ours, claim.verdict) for claim in said] == [("500x", "holds"), ("50x", "fails")]


def test_a_claim_that_its_control_passes_is_no_claim() -> None:
    """Where one average in all of training comes as low, or a model of zeros beside what blew up, nothing is shown."""
    equal = contests.Versus("local/rounds", "objective", "ours", "other")
    methods = {"ours": outcomes(), "other": outcomes()}
    claim = equal.claim(found(control=0.305, **methods))
    assert claim.verdict == "no claim"
    assert "one average, passes too" in claim.note
    assert equal.claim(found(**methods)).verdict == "holds"
    assert equal.claim(found(ours=outcomes(1.0), other=outcomes(8.0))).verdict == "no claim"
    saves = contests.Versus("choco/bytes", "bytes", "ours", "other", "objective")
    methods = {"ours": outcomes(n_bytes=1.0), "other": outcomes(n_bytes=1000.0)}
    assert saves.claim(found(control=0.305, **methods)).verdict == "no claim"


def test_what_saves_must_keep_the_objective() -> None:
    """A hundredth of the bytes at an objective that is a tenth higher is no saving."""
    saves = contests.Versus("choco/bytes", "bytes", "ours", "other", "objective")
    methods = {"ours": outcomes(0.33, n_bytes=1.0), "other": outcomes(n_bytes=1000.0)}
    assert saves.claim(found(**methods)).verdict == "fails"


def test_a_claim_holds_on_all_problems_or_not() -> None:
    """On one of three it fails: undecided; on two of three: fails."""
    lower = contests.Versus("slowmo/objective", "objective", "ours", "other")
    for low, verdict in ((3, "holds"), (2, "undecided"), (1, "fails")):
        of_all = found(ours=outcomes(0.31), other=outcomes())
        better = {(problem, 1.0, "ours"): outcomes(0.29) for problem in of_all.problems[:low]}
        assert lower.claim(replace(of_all, outcomes={**of_all.outcomes, **better})).verdict == verdict


def test_seconds_that_an_assumption_decides_are_an_assumption() -> None:
    """A method that is fast enough at one pace of computing and not at another confirms nothing."""
    sooner = contests.Versus("ssp/time", "seconds", "ours", "other", "objective", paces=(1.0, 2.0))
    for at_two, verdict in ((0.6, "holds"), (1.4, "assumption")):
        of_all = found(ours=outcomes(seconds=0.5), other=outcomes())
        names = {"ours": at_two, "other": 1.0, "one average": 0.5, "zeros": 1.0}
        slow = {(one, 2.0, name): outcomes(seconds=s) for one in of_all.problems for name, s in names.items()}
        assert sooner.claim(replace(of_all, outcomes={**of_all.outcomes, **slow})).verdict == verdict


def test_a_method_that_diverges_confirms_nothing() -> None:
    """Ours fails, and nothing is decided beside another that diverges with one seed."""
    versus = contests.Versus("slowmo/objective", "objective", "ours", "other")
    assert versus.claim(found(ours={}, other=outcomes())).verdict == "fails"
    some = {seed: one for seed, one in outcomes().items() if seed}
    assert versus.claim(found(ours=outcomes(), other=some)).verdict == "undecided"


def test_a_search_goes_on_where_the_best_is_the_last_that_was_tried() -> None:
    """All have as many trials, and more where the best rate is at the edge; parameters stay on their ladders."""
    tried = contests.search(lambda at: abs(at[0] - 3.0) + abs(at[1] - 2), (0.0, 0.0), [4], 12)
    assert len(tried) == 12
    assert min(tried, key=lambda at: tried[at]) == (3.0, 2.0)
    assert {at[1] for at in tried} <= {0.0, 1.0, 2.0, 3.0}
    far = contests.search(lambda at: abs(at[0] - 20.0), (0.0,), [], 4)
    best = min(far, key=lambda at: far[at])
    assert len(far) > 4
    assert min(at[0] for at in far) < best[0] < max(at[0] for at in far)
    for least in (7, 5.2):  # of a parameter: at the end of its ladder, and before it
        wide = contests.search(lambda at, least=least: abs(at[0]) + abs(at[1] - least), (0.0, 2.0), [8], 5)
        assert min(wide, key=lambda at: wide[at])[1] == round(least)
        assert max(at[1] for at in wide) == min(7, round(least) + 1)


def test_every_claim_of_a_contest_has_controls_that_are_trained() -> None:
    """Controls are named in the table of claims; what is arithmetic needs none."""
    for contest in contests.CONTESTS:
        names = {*contest.methods, "one average", "zeros"}
        for versus in contest.verdicts:
            assert {versus.ours, versus.other, *versus.controls} <= names
            assert versus.controls or versus.statement.kind == "arithmetic"
            assert versus.keeps or versus.measure in ("objective", "score") or not versus.controls


def test_a_small_contest_tunes_and_judges() -> None:
    """Methods have their own rates and parameters, and the quick measure is another one."""
    problem = contests.Problem(contests.DataSource("ijcnn1-like", 200, 100), "shuffled", 1.0)
    slow = contests.Tuned(sync.SlowMo(8, slow_momentum=0.2), {"slow_momentum": (0.0, 0.2, 0.4)})
    versus = contests.Versus("slowmo/objective", "objective", "SlowMo", "local")
    contest = contests.Contest(
        "c", {"local": sync.LocalSGD(8), "SlowMo": slow}, (versus,), "W.", ranks=2, epochs=1, problems=(problem,),
        seeds=2, trials=3,
    )  # fmt: skip
    told: list[str] = []
    (claim,) = contest.run(Path(), told.append)
    assert claim.key == "slowmo/objective"
    assert "one average" in claim.control
    assert "Rates of SlowMo" in claim.note
    assert told[0] == "1 of 3: one average, ijcnn1-like shuffled"
    quick = contests.CONTESTS[0].measure().quick
    assert quick is not None
    assert api.key_of(quick) != api.key_of(api.MEASURES[quick.name])


def test_arithmetic_is_listed_apart_and_of_up_to_the_largest_counts() -> None:
    """A count that is as it must be is no claim that holds; one that is not fails."""
    identity = STATEMENTS["ring/bytes"]
    assert [identity.judged("d", exact(value)).verdict for value in (1.0, 2.0)] == ["arithmetic", "fails"]
    claims = [identity.judged("d", exact(1.0)), STATEMENTS["blink/trees"].judged("d", exact(6.0))]
    tables = [api.overview_table(claims, api.chosen(["ring", "trees"]), arithmetic=apart) for apart in (True, False)]
    assert [[row[0] for row in table.rows] for table in tables] == [["arithmetic"], ["holds"]]
    assert "1 of 1 decided" in _answer(claims, api.chosen(["ring", "trees"]))
    most = STATEMENTS["shrinking/sequential"]
    two = [most.judged("d", Interval(value, value - 1, value + 1, 3)) for value in (2.0, 20.0)]
    assert [claim.verdict for claim in two] == ["fails", "holds"]
    assert verdict_of(two) == "holds"


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
    assert [(cells[0], cells[4], cells[5]) for cells in table.rows] == [
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
    assert [(claim.ours, claim.verdict, claim.system) for claim in claims] == [("136x", "arithmetic", "PowerSGD")]
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
