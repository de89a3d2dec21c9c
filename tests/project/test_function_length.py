"""Functions are short enough to be read at once, and ask for no more than a reader can keep in mind."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("dsgd", "svm", "datasets")

# Lines from `def` to the end of the body, comments and blank lines as well; without decorators and the docstring, of
# which the more is better. What is defined inside a function counts as a part of it, and once more by itself.
MOST_LINES: Final = 60
# Without self and cls.
MOST_PARAMETERS: Final = 8

# Compiled functions: machine code is made of one loop over rows, and calls that are not inlined cost as much as a row;
# Numba passes no records between Python and a loop without boxing them. (`njit` is for those outside dsgd.kernels.)
_COMPILED: Final = frozenset({"kernel", "leaf_kernel", "part", "scalar", "compiled", "njit"})


@dataclass(frozen=True)
class Function:
    """A function or method, where it is, and how long."""

    module: str
    owner: ast.ClassDef | None
    node: ast.FunctionDef | ast.AsyncFunctionDef
    public: frozenset[str]

    @property
    def name(self) -> str:
        """What a failure calls it."""
        owner = f"{self.owner.name}." if self.owner else ""
        return f"{self.module}: {owner}{self.node.name}"

    @property
    def is_compiled(self) -> bool:
        """Whether Numba compiles it."""
        return bool(_COMPILED & {_called(decorator) for decorator in self.node.decorator_list})

    @property
    def is_signature_of_an_estimator(self) -> bool:
        """Whether it is a constructor that scikit-learn wants: a parameter for each of the estimator, stored as it is.

        `BaseEstimator` reads their names off the signature. Nothing else happens there, so it takes two lines each; one
        call may follow for what comes as `**options`.
        """
        if self.owner is None or self.node.name != "__init__":
            return False
        names = [argument.arg for argument in _arguments(self.node)]
        stored = [ast.unparse(statement) for statement in self.node.body if not _is_text(statement)]
        as_is = [f"self.{name} = {name}" for name in names]
        return stored[: len(names)] == as_is and len(stored) <= len(names) + (self.node.args.kwarg is not None)

    @property
    def is_command(self) -> bool:
        """Whether it is a command: typer makes an option of every parameter, which the user gives by name."""
        return self.module.startswith("dsgd/cli/") and Path(self.module).stem.removeprefix("study_") == self.node.name

    @property
    def n_lines(self) -> int:
        """Lines from `def` to the end, less the docstring; of a command those of its body, as its options are many."""
        first = self.node.body[0]
        text = _length(first) if _is_text(first) else 0
        start = first.lineno if self.is_command else self.node.lineno
        return _length(self.node) - text - (start - self.node.lineno)

    @property
    def n_parameters(self) -> int:
        """Parameters that a reader of a call has to know.

        Keyword-only parameters with a default are no such where the function or class is public (in `__all__`): a call
        names the few that it needs. Our own functions have no such excuse: what is handed down from one to the next is
        a record.
        """
        # To call a class is to call its constructor.
        called = self.node.name if self.owner is None else self.owner.name if self.node.name == "__init__" else ""
        n_options = sum(default is not None for default in self.node.args.kw_defaults)
        return len(_arguments(self.node)) - (n_options if called in self.public else 0)


def _called(decorator: ast.expr) -> str:
    """Return the last name of a decorator, without what it is called with."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(function).rpartition(".")[2]


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _length(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    """Return all parameters but self and cls."""
    found = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [argument for argument in found if argument.arg not in ("self", "cls")]


def _functions(source: str, module: str) -> Iterator[Function]:
    tree = ast.parse(source)
    public = frozenset[str]()
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if ast.unparse(targets[0]) == "__all__":
                public = frozenset(ast.literal_eval(statement.value))
    waiting: list[tuple[ast.AST, ast.ClassDef | None]] = [(tree, None)]
    while waiting:
        node, owner = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(module, owner, node, public)
        inside = node if isinstance(node, ast.ClassDef) else None
        # No expression holds a definition, and most nodes are expressions.
        waiting += [(child, inside) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


@pytest.fixture(scope="module")
def functions() -> list[Function]:
    """Return all functions of the package."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [found for path in paths for found in _functions(path.read_text(), path.relative_to(ROOT).as_posix())]


def test_functions_are_short(functions: list[Function]) -> None:
    """No function that Python runs is longer than a screen, its docstring aside."""
    long = {
        found.name: found.n_lines
        for found in functions
        if found.n_lines > MOST_LINES and not found.is_compiled and not found.is_signature_of_an_estimator
    }
    assert not long, f"longer than {MOST_LINES} lines: find the step that has a name of its own"


def test_functions_take_few_parameters(functions: list[Function]) -> None:
    """What travels together is a record: no function takes more parameters than can be kept in mind."""
    wide = {
        found.name: found.n_parameters
        for found in functions
        if found.n_parameters > MOST_PARAMETERS
        and not (found.is_compiled or found.is_signature_of_an_estimator or found.is_command)
    }
    assert not wide, f"more than {MOST_PARAMETERS} parameters: find the record that they make"


_BODY = "".join(f"    x{k} = 0\n" for k in range(MOST_LINES))
_MANY = ", ".join(f"a{k}" for k in range(MOST_PARAMETERS + 1))


@pytest.mark.parametrize(
    ("source", "n_lines", "n_parameters"),
    [
        (f"def f():\n{_BODY}", MOST_LINES + 1, 0),
        (f'def f():\n    """One.\n\n    Two.\n    """\n{_BODY}', MOST_LINES + 1, 0),
        (f"@other\ndef f({_MANY}):\n    pass\n", 2, MOST_PARAMETERS + 1),
        ("__all__ = ['f']\ndef f(a, *, b, c=1):\n    pass\n", 2, 2),
        ("__all__ = ['g']\ndef f(a, *, b, c=1):\n    pass\n", 2, 3),
        ("__all__ = ['f']\nclass A:\n    def f(self, a, *, b, c=1):\n        pass\n", 2, 3),
        ("__all__ = ['A']\nclass A:\n    def __init__(self, a, *, b, c=1):\n        pass\n", 2, 2),
    ],
)
def test_lines_and_parameters_are_counted_as_said(source: str, n_lines: int, n_parameters: int) -> None:
    """The docstring, the decorators, self and a public function's options are left out; all else is counted."""
    (found,) = _functions(source, "dsgd/a.py")
    assert (found.n_lines, found.n_parameters) == (n_lines, n_parameters)
    assert not any((found.is_compiled, found.is_command, found.is_signature_of_an_estimator))


@pytest.mark.parametrize(
    ("source", "module", "kind"),
    [
        ("@kernel\ndef f(): pass", "dsgd/a.py", "is_compiled"),
        ("@numba.njit(cache=True)\ndef f(): pass", "dsgd/a.py", "is_compiled"),
        ("def tuning(): pass", "dsgd/cli/study_tuning.py", "is_command"),
        (
            "class A:\n    def __init__(self, a, *, b=1):\n        self.a = a\n        self.b = b\n",
            "dsgd/a.py",
            "is_signature_of_an_estimator",
        ),
    ],
)
def test_exceptions_are_what_they_say(source: str, module: str, kind: str) -> None:
    """A function is excused for what it is, and not for its name or its folder alone."""
    (found,) = _functions(source, module)
    assert getattr(found, kind)
    (other,) = _functions(source.replace("@kernel", "@cache").replace("@numba.njit", "@lru").replace("self.b = b", "b"),
                          module.replace("/cli/", "/study/"))  # fmt: skip
    assert not getattr(other, kind)
