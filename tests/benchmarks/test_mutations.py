"""Seeded faults: which there are, what is left out, which tests are near, and what is counted as caught."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from benchmarks import house, mutations
from benchmarks.mutants import Mutant, changes_program, draw_mutants, list_mutants, share_out
from benchmarks.mutations import Result, SuiteIndex, Workplace

SOURCE = '''"""A module."""

LIMIT = 7


def pick(left, right, strict=True):
    """Say so."""
    if not left and right >= 2:
        raise ValueError("no")
    print(left, right)
    return left + right
'''


def describe(source: str) -> set[tuple[str, str, str]]:
    return {(one.kind, one.before, one.after) for one in list_mutants("state/a.py", source)}


def test_each_kind_of_fault():
    assert describe(SOURCE) == {
        ("changed_default", "True", "False"),
        ("dropped_not", "not left", "(left)"),
        ("and_or", "not left and right >= 2", "((not left) or (right >= 2))"),
        ("comparison", "right >= 2", "right > 2"),
        ("off_by_one", "2", "3"),
        ("removed_raise", 'raise ValueError("no")', "pass"),
        ("removed_statement", "print(left, right)", "pass"),
        ("swapped_arguments", "left, right", "right, left"),
        ("returned_none", "return left + right", "return None"),
        ("arithmetic", "left + right", "(left - right)"),
    }


@pytest.mark.parametrize(
    "source",
    [
        '"""Only words: 1 < 2."""\n',
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    store(1, 2)\n",
        "def f(x: 'a < b') -> None:\n    x: 'c < d'\n",
        "class Reads(Protocol):\n    def read(self, at=1):\n        return at + 1\n",
        "assert 1 < 2\n",
        "log.warning('it is', 1)\n",
        "class A:\n    b: int = field(default=1, repr=False)\n",
        "MAX_BYTES = 3\nMAX: int = 2 * 8\n",
        "x = 4096\n",
        "x = f'{1 + 1}'\n",
    ],
)
def test_what_is_left_out(source: str):
    assert describe(source) == set()


def test_a_fault_is_put_where_it_belongs():
    for mutant in list_mutants("state/a.py", SOURCE):
        changed = mutant.apply(SOURCE.encode())
        assert changes_program(mutant, SOURCE.encode())
        ast.parse(changed)
        assert changed.splitlines()[: mutant.line - 1] == SOURCE.encode().splitlines()[: mutant.line - 1]


def test_a_file_that_changed_since_is_refused():
    mutant = list_mutants("state/a.py", SOURCE)[0]
    with pytest.raises(ValueError, match=r"state/a\.py:6 has changed"):
        mutant.apply(b"\n" + SOURCE.encode())


def test_columns_are_those_of_bytes():
    source = "x = 'äöü', 1 < y\n"
    (mutant,) = [one for one in list_mutants("state/a.py", source) if one.kind == "comparison"]
    assert mutant.apply(source.encode()).decode() == "x = 'äöü', 1 <= y\n"


@pytest.mark.parametrize(
    ("lines", "count", "shares"),
    [
        ({"a": 10, "b": 10}, 4, {"a": 2, "b": 2}),
        ({"a": 90, "b": 10}, 10, {"a": 9, "b": 1}),
        ({"a": 1, "b": 1, "c": 1}, 2, {"a": 1, "b": 1, "c": 0}),
    ],
)
def test_rooms_have_their_share(lines, count, shares):
    assert share_out(lines, count) == shares


def module_of(path: str, source: str) -> house.Module:
    return house.Module(PurePosixPath(path), len(source.splitlines()), ast.parse(source))


def test_the_same_seed_draws_the_same():
    sources = {"state/a.py": SOURCE, "daemon/b.py": SOURCE, "daemon/c.py": "x = 1 < y\n"}
    modules = [module_of(path, source) for path, source in sources.items()]
    first, again, other = (draw_mutants(modules, sources, 8, seed) for seed in (29, 29, 30))
    assert first == again != other
    assert len({one.name for one in first}) == 8
    assert {one.path.partition("/")[0] for one in first} == {"state", "daemon"}


# -- which tests ---------------------------------------------------------------------------------------------

TREE = {
    "state/a.py": SOURCE,
    "state/b.py": "from state.a import pick\n",
    "state/far.py": "",
    "tests/__init__.py": "",
    "tests/conftest.py": "def pytest_addoption(parser):\n    parser.addoption('--all')\n",
    "pytest.ini": "[pytest]\n",
    "tests/state/test_a.py": "from state.a import pick\n\n\ndef test_it():\n    assert pick(1, 2) == 3\n",
    "tests/state/test_b.py": "import state.b\n\n\ndef test_nothing():\n    assert state.b\n",
    "tests/daemon/test_other.py": "from state import a\n\n\ndef test_it():\n    assert a.LIMIT == 7\n",
    "tests/daemon/test_far.py": "import state.far\n\n\ndef test_it():\n    assert state.far\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, text in TREE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def read_tests(root: Path) -> SuiteIndex:
    modules, failures = house.load_modules(root)
    assert failures == {}
    return SuiteIndex.read(root, modules)


def mutant_of(kind: str) -> Mutant:
    return next(one for one in list_mutants("state/a.py", SOURCE) if one.kind == kind)


def test_tests_near_the_fault_come_first_and_those_far_away_not_at_all(tree: Path):
    near = read_tests(tree).rank_near(mutant_of("arithmetic"))
    assert near == ["tests/state/test_a.py", "tests/daemon/test_other.py", "tests/state/test_b.py"]


def test_batches_grow():
    assert list(mutations.make_batches(list("abcdefghi"))) == [["a", "b"], list("cdef"), list("ghi")]


# -- what counts ---------------------------------------------------------------------------------------------


@pytest.fixture
def place(tree: Path, tmp_path: Path) -> Workplace:
    return Workplace(tree, tmp_path / "copy")


@pytest.mark.slow
def test_a_fault_is_caught_where_a_test_fails_with_it_alone(tree: Path, place: Workplace):
    caught = place.try_mutant(mutant_of("arithmetic"), read_tests(tree), deadline=300)
    assert (caught.caught_by, caught.test) == ("quick", "tests/state/test_a.py::test_it")
    missed = place.try_mutant(mutant_of("comparison"), read_tests(tree), deadline=300)
    assert (missed.caught_by, missed.test, missed.files) == ("none", "", 3)
    assert (place.folder / "state/a.py").read_text() == SOURCE


@pytest.mark.slow
@pytest.mark.parametrize("text", ["def test_it():\n    assert False\n", "import nowhere\n"])
def test_a_test_that_always_fails_catches_nothing(tree: Path, place: Workplace, text: str):
    (place.folder / "tests/state/test_a.py").write_text(text)
    result = place.try_mutant(mutant_of("arithmetic"), read_tests(tree), deadline=300)
    assert (result.caught_by, result.test) == ("none", "")


def test_without_time_a_mutant_is_undecided(tree: Path, place: Workplace):
    assert place.try_mutant(mutant_of("arithmetic"), read_tests(tree), deadline=0).caught_by == "undecided"


def result_of(name: str, caught_by: mutations.CaughtBy) -> Result:
    return Result(name, "arithmetic", "a + b", "a - b", caught_by, test="", files=3, seconds=1.0)


def test_the_report():
    results = [
        result_of("a", "quick"),
        result_of("b", "quick"),
        result_of("c", "full"),
        result_of("d", "none"),
    ]
    assert mutations.format_report([*results, result_of("e", "undecided")], 10) == [
        "5 of 10 mutants tried",
        "caught by the quick lane         2  40 %",
        "caught by the full lane only     1  20 %",
        "caught by none near it           1  20 %",
        "undecided at the deadline        1  20 %",
        "quick of all that were caught       67 %",
        "none: d: 'a + b' -> 'a - b' (3 test files)",
        "undecided: e: 'a + b' -> 'a - b' (3 test files)",
    ]


def test_the_last_result_of_a_mutant_counts(tmp_path: Path):
    file = tmp_path / "results.jsonl"
    lines = [result_of("a", "undecided"), result_of("b", "none"), result_of("a", "quick")]
    file.write_text("".join(f"{mutations.encode_result(one)}\n" for one in lines))
    assert {one.mutant: one.caught_by for one in mutations.read_results(file)} == {"a": "quick", "b": "none"}


def test_results_need_a_file(capsys):
    with pytest.raises(SystemExit) as ended:
        mutations.main([])
    assert ended.value.code == 2
    assert "--out" in capsys.readouterr().err
