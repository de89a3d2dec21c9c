"""The study of the synchronisation frequency: rows that survive interruption, claims, figures, report, command."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier as ReferenceClassifier

from dsgd.__main__ import main
from dsgd.errors import ClusterUnreachableError, DsgdError, InvalidParameterError, ParseError
from dsgd.report import Bars
from dsgd.report.provenance import command_line, machine, versions
from dsgd.runtime import connect_client
from dsgd.study import (
    DataSource,
    RowFile,
    Study,
    check_claims,
    claims_table,
    data_table,
    demo_study,
    doubts,
    read_rows,
    results_table,
    run_study,
    study_page,
    summarise,
    target_table,
    verdict,
)
from dsgd.study.frame.measure import majority_accuracy, objective, score
from dsgd.study.msf import published
from dsgd.study.msf.plots import study_figures
from study_commands import study_asked
from web_page import check_page

STUDY = Study(data=(DataSource("ijcnn1", 1000),), every=(1, 16, 512), seeds=(0, 1))


def made_rows(study=STUDY, *, names=("ijcnn1",), accuracy=0.95, majority=0.6, balanced=0.9, after=0.01, **more):
    """Rows of a study in which a synchronisation costs 1 ms at every=1 and falls to `after` of that at every=512."""
    rows = []
    for name in names:
        for ranks in study.all_ranks():
            for spec in study.runs(name, 1000, 250, ranks):
                share = 0.0 if spec.every is None else {1: 1.0, 16: 0.2, 512: after}[spec.every]
                wait, wire, compute = 0.6 * share * ranks, 0.4 * share * ranks, 0.1
                seconds = (wait + wire + compute) / ranks * (1.0 + 0.01 * spec.seed)
                curve = [
                    {"epoch": n, "seconds": seconds * n / 5, "train_loss": 1.0 / n, "dispersion": None}
                    for n in range(1, 6)
                ]
                row = {
                    "key": spec.key, **spec.settings(), "source": "made up", "features": 22, "density": 0.5,
                    "majority_accuracy": majority, "bayes_accuracy": None, "test_accuracy": accuracy,
                    "train_accuracy": accuracy, "balanced_accuracy": balanced, "f1": 0.8, "objective": 0.2,
                    "train_s": seconds, "elapsed_s": seconds, "compute_s": compute, "encode_s": 0.0, "wire_s": wire,
                    "wait_s": wait, "bytes_sent": 1000, "messages": 10, "rounds": 10, "dispersion": 0.1 * ranks,
                    "peak_rss_bytes": 10**8, "curve": curve, "when": "2026-01-01T00:00:00+00:00",
                    "machine": {"cpu": "<one & only>", "cores": 2, "memory_gib": 8, "system": "Linux"},
                    "versions": {"dsgd": "0"}, "load_at_start": 0.1, "commit": None, "command": "dsgd study msf",
                    "cluster": "local",
                }  # fmt: skip
                rows.append(row | more)
    return rows


def claim_on(claims, start):
    return next(claim for claim in claims if claim.name.startswith(start))


# -- grid ----------------------------------------------------------------------------------------------------------


def test_grid_holds_one_sequential_run_per_seed_and_every_period_for_each_number_of_ranks():
    """One rank has no period to vary; more ranks run every period with every seed, and keys are distinct."""
    study = replace(STUDY, ranks=(2, 4))
    specs = [spec for ranks in study.all_ranks() for spec in study.runs("ijcnn1", 1000, 250, ranks)]
    assert study.all_ranks() == [1, 2, 4]
    assert sorted((spec.ranks, spec.every or 0, spec.seed) for spec in specs) == sorted(
        [(1, 0, seed) for seed in (0, 1)] + list(itertools.product((2, 4), (1, 16, 512), (0, 1)))
    )
    assert len({spec.key for spec in specs}) == len(specs) == study.count()


def test_a_setting_that_changes_the_run_changes_its_key():
    """A study resumes only runs with the same settings."""
    keys = {
        study.runs("ijcnn1", 1000, 250, 2)[0].key
        for study in (STUDY, replace(STUDY, alpha=1e-3), replace(STUDY, epochs=7), replace(STUDY, dtype="float64"))
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"every": ()}, "every"), ({"every": (0,)}, "every"), ({"ranks": (-1,)}, "ranks"), ({"seeds": (-1,)}, "seeds"),
        ({"schedule": "fast"}, "per_epoch"), ({"loss": "huber"}, "hinge"), ({"partition": "x"}, "label-skewed"),
        ({"alpha": 0.0}, "alpha"), ({"alpha": math.nan}, "alpha"), ({"epochs": 0}, "epochs"), ({"data": ()}, "data"),
        ({"dtype": "int8"}, "float32"), ({"target_excess": -1.0}, "target_excess"),
    ],
)  # fmt: skip
def test_a_bad_grid_is_refused_with_the_name_of_what_is_wrong(fields, named):
    """The error of a bad value names the parameter or the choices."""
    with pytest.raises(InvalidParameterError, match=named):
        replace(STUDY, **fields)


# -- rows ----------------------------------------------------------------------------------------------------------


def test_rows_are_there_again_in_the_next_process(tmp_path):
    """What was appended is read back, found by its key, and not run again."""
    rows = made_rows()
    file = RowFile(tmp_path / "new" / "rows.jsonl")
    for row in rows[:3]:
        file.append(row)
    again = RowFile(file.path)
    assert [row["key"] for row in rows if row["key"] in again] == [row["key"] for row in rows[:3]]
    assert again.select(row["key"] for row in reversed(rows)) == rows[:3][::-1]
    assert len(RowFile(file.path, force=True)) == 0
    assert read_rows(file.path) == []


@pytest.mark.parametrize("cut", [1, 20, 400])
def test_a_torn_last_line_is_dropped_and_the_others_kept(tmp_path, cut):
    """A run that was being written when the machine stopped is run again; the file is whole afterwards."""
    rows = made_rows()
    path = tmp_path / "rows.jsonl"
    text = "".join(json.dumps(row) + "\n" for row in rows[:3])
    path.write_text(text[:-cut], encoding="utf-8")
    assert read_rows(path) == rows[:2]
    file = RowFile(path)
    file.append(rows[2])
    assert read_rows(path) == rows[:3]


def test_damage_before_the_last_line_is_an_error_that_names_the_line(tmp_path):
    """Damage that an interruption cannot explain is not passed over."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"key": "a"}\n[1, 2]\n{"key": "b"}\n', encoding="utf-8")
    with pytest.raises(ParseError, match=r"rows\.jsonl, line 2"):
        RowFile(path)


def test_a_row_names_the_machine_and_no_folder_of_it():
    """Rows can be passed on: the command keeps no absolute path."""
    assert command_line(["/home/me/bin/dsgd", "study", "--out", "/home/me/x/study"]) == "dsgd study --out study"
    assert command_line(["/a/dsgd/__main__.py", "study"]) == "dsgd study"
    assert machine()["cores"] >= 1
    assert versions()["numpy"] == np.__version__


# -- measures ------------------------------------------------------------------------------------------------------


def test_scores_of_the_trivial_classifier_are_seen_through(rng):
    """A model that always says the commonest label has its accuracy, half balanced accuracy, and no F1."""
    X, y = rng.normal(size=(400, 3)), np.where(np.arange(400) % 10 == 0, 1.0, -1.0)
    model = ReferenceClassifier().fit(X, y)
    model.coef_[:], model.intercept_[:] = 0.0, -1.0
    assert score(model, X, y) == {"accuracy": 0.9, "balanced_accuracy": 0.5, "f1": 0.0}
    assert majority_accuracy(y, y) == 0.9
    assert objective(model, X, y, loss="hinge", alpha=1.0) == pytest.approx(0.1 * 2.0)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "log_loss"])
def test_objective_is_the_penalty_plus_the_mean_loss_of_all_outputs(loss, rng):
    """The full objective equals a loop over rows and classes."""
    X, y = rng.normal(size=(60, 4)), rng.integers(0, 3, 60)
    model = ReferenceClassifier(random_state=0).fit(X, y)
    plain = {
        "hinge": lambda m: max(0, 1 - m),
        "squared_hinge": lambda m: max(0, 1 - m) ** 2,
        "log_loss": lambda m: math.log1p(math.exp(-m)),
    }[loss]
    expected = 0.0
    for k, label in enumerate(model.classes_):
        expected += 0.25 * sum(w * w for w in model.coef_[k])
        for x, t in zip(X, y, strict=True):
            decision = x @ model.coef_[k] + model.intercept_[k]
            expected += plain(decision if t == label else -decision) / 60
    assert objective(model, X, y, loss=loss, alpha=0.5) == pytest.approx(expected)
    assert score(model, X, y)["f1"] is None


# -- claims --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("after", "said"), [(0.01, "exceeds"), (0.0201, "holds"), (0.024, "fails")])
def test_communication_claim_holds_within_the_published_range(after, said):
    """The claim compares every=1 with every=512 and nothing else; the data behind it range from 97.7 to 98.6 %."""
    claim = claim_on(check_claims(summarise(made_rows(after=after))), "Communication falls")
    assert claim.verdict == said
    assert claim.ours == f"{1 - after:.1%}"
    assert "98.6%" in claim.published


def test_speed_claim_over_sequential_says_why_two_processes_cannot_hold_it():
    """With fewer ranks than the claimed factor the note says that it cannot hold."""
    claim = claim_on(check_claims(summarise(made_rows())), "16x-24x faster than the sequential")
    assert claim.holds is False
    assert "cannot hold here" in claim.note


def test_speed_claim_over_frequent_synchronisation_takes_the_best_period():
    """Time at every=1 over the time of the fastest period, both of the median seed."""
    claim = claim_on(check_claims(summarise(made_rows())), "16x-24x faster than synchronising")
    assert claim.ours == f"{1.05 / 0.06:.1f}x"
    assert claim.holds is True
    assert claim_on(check_claims(summarise(made_rows(after=1e-3))), "16x-24x faster than sync").verdict == "holds"


def test_a_gain_far_beyond_what_was_published_does_not_hold():
    """Five hundred times as fast is no confirmation of 16 to 24 times: it exceeds the claim."""
    rows = made_rows()
    for row in rows:
        if row["every"] == 1:
            row["train_s"] *= 30
    claim = claim_on(check_claims(summarise(rows)), "16x-24x faster than synchronising")
    assert (claim.verdict, claim.holds) == ("exceeds", False)


def test_a_claim_is_undecided_by_one_seed_and_on_a_busy_machine():
    """One seed has no interval, and seconds of a busy machine decide nothing; accuracies do not depend on it."""
    single = check_claims(summarise(made_rows(replace(STUDY, seeds=(0,)))))
    assert {claim.verdict for claim in single} == {"undecided"}
    busy = check_claims(summarise(made_rows(load_at_start=9.0)))
    assert [claim.verdict for claim in busy] == ["undecided"] * 3 + ["holds"]
    assert "busy" in busy[0].note


def test_the_default_grid_asks_what_the_study_is_about():
    """The defaults, the demo and the commands of the documentation have the period of the claims."""
    assert {1, published.RARE} <= set(Study().every)
    assert {1, published.RARE} <= set(demo_study().every)
    root = Path(__file__).parents[2]
    for name in ("README.md", "docs/study.rst", "dsgd/cli/study_msf.py"):
        grids = re.findall(r"study msf .*--every ([0-9,]+)", (root / name).read_text(encoding="utf-8"))
        assert grids
        assert all({"1", "512"} <= set(grid.split(",")) for grid in grids)


def test_accuracy_claim_flags_a_model_no_better_than_trivial():
    """A model as accurate as the commonest label makes no claim, though it keeps the sequential run's level."""
    good = claim_on(check_claims(summarise(made_rows())), "Test accuracy")
    trivial = claim_on(check_claims(summarise(made_rows(accuracy=0.903, majority=0.901, balanced=0.52))), "Test acc")
    blind = claim_on(check_claims(summarise(made_rows(balanced=0.51))), "Test accuracy")
    assert (good.holds, good.trivial) == (True, False)
    assert (trivial.holds, trivial.trivial, trivial.verdict) == (None, True, "no claim")
    assert "No better than trivial" in trivial.note
    assert "90.10%" in trivial.note
    assert blind.trivial
    assert claims_table([trivial]).rows[0][-1] == "no claim"


def test_accuracy_claim_fails_beyond_half_a_point():
    """A model six tenths of a point below the sequential one does not keep its accuracy."""
    rows = made_rows()
    for row in rows:
        if row["every"] == 512:
            row["test_accuracy"] -= 0.006
    assert claim_on(check_claims(summarise(rows)), "Test accuracy").holds is False


def test_accuracy_claim_is_undecided_where_seeds_differ_by_more_than_the_margin():
    """Means over seeds whose 95 % interval holds the margin decide nothing, whichever side they are on."""
    verdicts = {}
    for shift in (0.004, -0.008, -0.1):
        rows = made_rows(replace(STUDY, seeds=(0, 1, 2)))
        for row in rows:
            if row["every"] == 512:
                row["test_accuracy"] += shift + (-0.02, 0.0, 0.02)[row["seed"]]
        claim = claim_on(check_claims(summarise(rows)), "Test accuracy")
        verdicts[shift] = claim.verdict
        half = 4.303 * 0.02 / 3**0.5  # Student's t for two degrees of freedom
        ends = [f"{100 * end:+.2f} points" for end in (shift, shift - half, shift + half)]
        assert claim.ours == "{} ({} to {})".format(*ends)
    assert verdicts == {0.004: "undecided", -0.008: "undecided", -0.1: "fails"}


def test_what_was_not_run_is_not_judged():
    """A study of the sequential run alone leaves every claim open, and its report can be written."""
    rows = [row for row in made_rows() if row["ranks"] == 1]
    claims = check_claims(summarise(rows))
    assert {claim.holds for claim in claims} == {None}
    assert "did not run" in verdict(summarise(rows), claims)


def test_published_figures_give_the_published_claims():
    """The stored data of the paper reproduce its 98.39 % and the ratios of its times."""
    assert published.communication_reduction("epsilon", 32) == pytest.approx(0.9839, abs=1e-4)
    assert published.period_speedup("ijcnn1", 32) == pytest.approx(17.6, abs=0.05)
    assert published.family("webspam-like") == "webspam"
    assert published.family("a9a") is None


# -- tables, figures, report ---------------------------------------------------------------------------------------


def test_summary_takes_the_median_over_seeds_and_gives_phases_per_rank():
    """Phases are divided by the ranks, the median is that of the seeds, and the range reaches over them."""
    cell = summarise(made_rows(replace(STUDY, seeds=(0, 1, 2)))).cell("ijcnn1", 2, 1)
    stat = cell.stat("train_s")
    assert (stat.low, stat.median, stat.high) == pytest.approx((1.05, 1.0605, 1.071))
    assert cell.median("communication_s") == pytest.approx(1.0)
    assert cell.median("other_s") == pytest.approx(0.0105)
    assert cell.stat("nothing") is None


def test_time_to_target_is_the_first_epoch_at_or_below_it():
    """Epochs and seconds to the sequential run's final loss; a run that never gets there says so."""
    rows = made_rows()
    for row in rows:
        if row["every"] == 512:
            row["curve"] = row["curve"][:2]
    table = {line[3]: line[4:] for line in target_table(summarise(rows), excess=0.3).rows}
    assert table["16"][0] == "4"
    assert table["512"] == ("not reached", "-")


def test_tables_have_as_many_cells_as_columns():
    """Every row of every table fits its heading."""
    summary = summarise(made_rows())
    for table in (
        data_table(summary), results_table(summary, "ijcnn1"), target_table(summary, excess=0.1),
        claims_table(check_claims(summary)),
    ):  # fmt: skip
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_every_figure_has_the_panels_of_all_datasets():
    """Three panels in a row for each set, or a row for each kind; what was not run on more than one rank has none."""
    one, three = summarise(made_rows()), summarise(made_rows(names=("ijcnn1", "webspam-like", "other")))
    panels = {figure.name: len(figure.panels) for figure in study_figures(one)}
    assert panels == {"msf": 3, "phases": 1, "communication": 2, "speedup": 2, "convergence": 2, "dispersion": 1}
    assert {figure.name: len(figure.panels) for figure in study_figures(three)} == {
        name: 3 * count for name, count in panels.items()
    }
    assert study_figures(summarise([row for row in made_rows() if row["ranks"] == 1])) == []


def test_shares_of_the_phases_add_up_and_stand_at_their_periods():
    """The bars of a period end at one, and no two periods overlap."""
    msf = study_figures(summarise(made_rows()))[0]
    bars = [mark for mark in msf.panels[1].marks if isinstance(mark, Bars)]
    assert bars[-1].top == pytest.approx([1.0, 1.0, 1.0])
    assert all(right < left for right, left in zip(bars[0].right, bars[0].left[1:], strict=False))


@pytest.mark.slow
def test_report_asks_the_network_for_nothing(tmp_path):
    """Every address in the report is inside it, its tags are balanced, and text of the rows is escaped."""
    path = study_page(STUDY, made_rows()).save(tmp_path)
    text = path.read_text(encoding="utf-8")
    tags = check_page(text)
    assert "&lt;one &amp; only&gt;" in text
    names = {figure.name for figure in study_figures(summarise(made_rows()))}
    assert tags.count("figure") == len(names)
    pictures = list((tmp_path / "figures").iterdir())
    assert {file.stem for file in pictures} == names
    assert all(file.stat().st_size < 150_000 for file in pictures)


def test_report_of_an_interrupted_study_shows_what_is_there():
    """Any first part of the rows gives a report; no rows at all give an error that says so."""
    rows = made_rows()
    for count in (1, 3):
        assert study_page(STUDY, rows[:count]).render()
    with pytest.raises(DsgdError, match="no finished run"):
        study_page(STUDY, [])


def test_report_warns_of_rows_that_do_not_compare():
    """Rows from two machines are named as such in the report."""
    rows = made_rows()
    rows[0] = rows[0] | {"machine": rows[0]["machine"] | {"cores": 64}}
    assert "2 different machines" in study_page(STUDY, rows).doubts[0]
    assert doubts(rows[1:]) == []
    assert "busy" in doubts([row | {"load_at_start": 3.0} for row in rows[1:]])[0]
    assert "took turns" in doubts([row | {"ranks": 4} for row in rows[1:]])[0]


def test_missing_extras_are_named_before_anything_is_run(monkeypatch, tmp_path, capsys):
    """Without bokeh the study does not start, and says what to install."""
    monkeypatch.setattr("dsgd.report.page.find_spec", lambda name: None if name == "bokeh" else object())
    assert main(["study", "msf", "--dataset", "ijcnn1", "--out", str(tmp_path)]) == 2
    assert "dsgd[study]" in capsys.readouterr().err
    assert not (tmp_path / "rows.jsonl").exists()


# -- command -------------------------------------------------------------------------------------------------------


def test_lists_of_numbers_are_read(monkeypatch, tmp_path):
    """Numbers stand between commas, with or without blanks."""
    command = ("msf", "--every", "1, 4,16", "--out", str(tmp_path))
    study = study_asked(monkeypatch, "dsgd.study.run_study", *command)
    assert (study.every, study.ranks) == ((1, 4, 16), Study().ranks)


@pytest.mark.parametrize("text", ["", "1,,2", "0", "-1", "1.5", "a", "1;2", "²"])
def test_a_bad_list_is_refused_with_its_option(text, tmp_path, capsys):
    """What is not a list of whole numbers above 0 is refused with the option and an example."""
    assert main(["study", "msf", "--every", text, "--out", str(tmp_path)]) == 2
    assert re.search(r"--every .*as 1,4,16", capsys.readouterr().err)


def test_options_change_the_preset_they_are_given_with(monkeypatch, tmp_path):
    """What is given replaces the demo's own, by the names of options or of fields; what is not stays."""
    out = ("--out", str(tmp_path))
    options = ("--epochs", "2", "--rows", "500", "--seeds", "2", "--no-intercept", "--target", "0", *out)
    study = study_asked(monkeypatch, "dsgd.study.run_study", "msf", "--demo", *options)
    data = tuple(DataSource(source.name, 500) for source in demo_study().data)
    assert study == replace(demo_study(), data=data, epochs=2, seeds=(0, 1), fit_intercept=False, target_excess=0.0)
    study = study_asked(monkeypatch, "dsgd.study.run_study", "msf", "-d", "a9a", "--schedule", "per-epoch", *out)
    assert study == Study(data=(DataSource("a9a"),), schedule="per_epoch")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--every", "1,x"], "--every"),
        (["--ranks", "two"], "--ranks"),
        (["--schedule", "fast"], "per_epoch"),
        (["--rows", "3"], "rows=3"),
        (["--dataset", "no-such-set"], "no-such-set"),
    ],
)
def test_a_bad_option_ends_the_command_in_one_line(options, named, tmp_path, capsys):
    """Exit status 2 and one line on the error stream that names what is wrong."""
    assert main(["study", "msf", "--out", str(tmp_path), *options]) == 2
    assert named in capsys.readouterr().err.splitlines()[-1]


def test_help_of_the_study_has_an_example(capsys):
    """The help names the options of the study and shows a command."""
    assert main(["study", "msf", "--help"]) == 0
    text = capsys.readouterr().out
    assert "dsgd study msf --demo" in text


# -- for real ------------------------------------------------------------------------------------------------------


def test_no_scheduler_at_the_address_is_an_error(tmp_path, monkeypatch):
    """An address where nothing answers ends the study before anything is trained."""
    monkeypatch.delenv("DSGD_DATA", raising=False)
    monkeypatch.setattr(connect_client, "__defaults__", (0.3,))  # longer would change nothing
    study = replace(STUDY, data=(DataSource("ijcnn1-like", 200),))
    with pytest.raises(ClusterUnreachableError):
        next(run_study(study, tmp_path, scheduler="tcp://127.0.0.1:9"))
    assert read_rows(tmp_path / "rows.jsonl") == []


@pytest.mark.slow
@pytest.mark.cluster
def test_a_small_study_runs_on_two_workers_and_resumes(tmp_path, capsys):
    """The command trains on worker processes, writes rows and report, and runs nothing the second time."""
    command = [
        "study", "msf", "--dataset", "ijcnn1-like", "--rows", "600", "--ranks", "2", "--every", "1,512",
        "--seeds", "1", "--epochs", "2", "--out", str(tmp_path), "--json",
    ]  # fmt: skip
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    rows = read_rows(tmp_path / "rows.jsonl")
    assert [(row["ranks"], row["every"]) for row in rows] == [(1, None), (2, 1), (2, 512)]
    # 600 rows on two ranks: 300 rounds of one sample, and one round where the period is longer than the shard.
    assert [row["rounds"] for row in rows[1:]] == [600, 2]
    assert rows[1]["bytes_sent"] > rows[2]["bytes_sent"] > 0
    for row in rows:
        assert row["train_s"] > 0
        assert row["test_accuracy"] >= row["majority_accuracy"] - 0.1
        assert len(row["curve"]) == 2
        assert str(tmp_path) not in json.dumps(row)
    assert Path(first["report"]).exists()
    assert {claim["verdict"] for claim in first["claims"]} <= {"holds", "exceeds", "fails", "undecided", "no claim"}
    assert main(command) == 0
    again = json.loads(capsys.readouterr().out)
    assert read_rows(tmp_path / "rows.jsonl") == rows
    assert again["cells"] == first["cells"]
