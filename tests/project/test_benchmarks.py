"""The suite of benchmarks: all are found and say what they are, and the small ones run."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path

import pytest

from benchmarks.common import measuring, suite

ROOT = Path(__file__).parents[2]
ALL = suite.benchmarks()


def names(args):
    """Return the name of a benchmark, for the ids of tests."""
    return args.name


def test_every_module_is_a_benchmark_and_no_other_file_is_there():
    """Every module in a folder of the suite is in the list, except those that benchmarks share."""
    files = {path.relative_to(ROOT / "benchmarks") for path in (ROOT / "benchmarks").rglob("*.py")}
    modules = {str(path.with_suffix("")) for path in files if path.stem not in ("__init__", "__main__")}
    assert {benchmark.name for benchmark in ALL} == {name for name in modules if not name.startswith("common/")}


@pytest.mark.parametrize("benchmark", ALL, ids=names)
def test_a_benchmark_says_what_it_compares_and_feeds_a_page_that_names_it(benchmark):
    """Each has a summary of one sentence, a quick form, and a page of the documentation that says how to run it."""
    assert benchmark.summary.endswith((".", ":")) or len(benchmark.summary) > 60
    assert benchmark.quick
    assert 0 < benchmark.quick_s <= 300
    assert (ROOT / "docs" / f"{benchmark.page}.rst").is_file()


def loaded(benchmark):
    """Import a benchmark, unless it needs a library that is not here."""
    if benchmark.name.startswith("dnn/") or benchmark.name == "communication/compressors":
        pytest.importorskip("torch")
    return importlib.import_module(benchmark.module)


@pytest.mark.parametrize("benchmark", ALL, ids=names)
def test_every_option_that_a_benchmark_reads_is_one_that_it_has(benchmark):
    """What a benchmark takes from its options is there, in the quick form and in the whole one; its cases are known."""
    module = loaded(benchmark)
    read = set()
    for function in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
        if isinstance(function, ast.FunctionDef):
            parsed = {a.arg for a in function.args.args if a.annotation and "Options" in ast.unparse(a.annotation)}
            attributes = [node for node in ast.walk(function) if isinstance(node, ast.Attribute)]
            read |= {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id in parsed}
    for argv in ([], ["--quick"]):
        options = suite.options_of(benchmark, module, argv)
        assert {name for name in read if not hasattr(options, name)} == set()
        assert set(getattr(options, "only", ())) <= set(getattr(module, "CASES", ()))


@pytest.mark.parametrize("name", ["ledger", "leaders"])
@pytest.mark.slow
def test_small_benchmarks_run_and_write_rows(name, tmp_path, capsys):
    """The quick form of a small benchmark prints a table, and its rows say where they were measured."""
    out = tmp_path / "folder" / "rows.jsonl"
    assert suite.main(["run", name, "--quick", "--repeats", "1", "--out", str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert rows
    assert all(row["benchmark"] == suite.find(name).name and row["cores"] and row["commit"] for row in rows)
    assert "──" in capsys.readouterr().out


def test_the_quick_runs_leave_none_out_and_tell_failures(monkeypatch, tmp_path, capsys):
    """`quick`, which make bench calls, runs each with --quick and --out, continues after a failure, and then fails."""
    called = []

    class Done:
        def __init__(self, command, **options):
            called.append(command)
            self.returncode = {"dnn/ddp": 1, "dnn/link": suite.SKIPPED}.get(command[4], 0)

    monkeypatch.setattr(suite.subprocess, "run", Done)
    assert suite.main(["quick", "--out", str(tmp_path)]) == 1
    assert [command[4] for command in called] == [benchmark.name for benchmark in ALL]
    assert all(command[5:7] == ["--quick", "--out"] and command[7].endswith(".jsonl") for command in called)
    shown = capsys.readouterr().out
    assert shown.count("FAILED") == 1
    assert shown.count("cannot run here") == 1
    assert "-m benchmarks quick" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_a_benchmark_that_cannot_run_says_why(monkeypatch, capsys):
    """What is missing on a machine is named, and the exit status is that of a skipped test."""
    hosts = importlib.import_module("benchmarks.communication.hosts")
    monkeypatch.setattr(hosts.shutil, "which", lambda command: None)
    assert suite.main(["run", "hosts"]) == suite.SKIPPED
    assert "communication/hosts: needs the commands ip, tc" in capsys.readouterr().err


def test_a_name_without_its_folder_is_enough_where_no_other_has_it():
    """A benchmark is found by its file alone, and the names are listed where none has the name."""
    assert suite.find("peers").name == suite.find("svm/peers").name == "svm/peers"
    with pytest.raises(SystemExit, match=r"no benchmark is called 'nothing': .*training/ledger"):
        suite.find("nothing")


def test_turns_go_round_and_warm_up_does_not_count():
    """Methods are called in turn, every other turn the other way round if so asked; the first turns are left out."""
    calls = []
    methods = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    found = measuring.in_turns(methods, 3, warm_up=1, alternate=True)
    assert "".join(calls) == "ba" + "ab" + "ba" + "ab"
    assert [turn.value for turn in found["a"]] == [3, 6, 7]
    assert all(turn.seconds >= 0 and turn.cpu_s >= 0 for turns in found.values() for turn in turns)
    assert measuring.ratio([1.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == 2.0
    assert measuring.spread([1.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == "2.00 (1.00 to 3.00)"
