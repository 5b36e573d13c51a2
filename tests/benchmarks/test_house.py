"""The measure of readability, on small made-up trees whose figures are known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import house


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def measure_tree(root: Path, files: Mapping[str, str]) -> dict[str, house.Figure]:
    modules, failures = house.load_modules(write_tree(root, files))
    assert failures == {}
    return {figure.name: figure for figure in house.measure_modules(modules)}


def function_of(lines: int, name: str = "do_work") -> str:
    return f"def {name}():\n" + "    pass\n" * (lines - 1)


def module_of(lines: int) -> str:
    return "VALUE = 1\n" * lines


# -- files -----------------------------------------------------------------------------------------


def test_only_product_code_is_measured(tmp_path: Path) -> None:
    files = {
        "state/__init__.py": "",
        "state/log.py": module_of(3),
        "nki_sim/deep/down.py": module_of(4),
        "nki_sim/shims/nki/__init__.py": module_of(100),
        "seeds/problems/silu/kernel.py": module_of(100),
        "seeds/template/kernel.py": module_of(100),
        "seeds/other/kernel.py": "import nki.language as nl\n" * 100,
        "targets/kernel.py": "def load():\n    import nki\n",
        "tests/state/test_log.py": module_of(100),
        "benchmarks/house.py": module_of(100),
        "setup.py": module_of(100),
        "state/notes.md": module_of(100),
    }
    figures = measure_tree(tmp_path, files)
    assert figures["modules"].value == 4
    assert figures["product_lines"].value == 3 + 4 + 2


def test_lines_are_counted_as_editors_count_them(tmp_path: Path) -> None:
    files = {"state/a.py": "# \x0c one, \u2028 still one\n\n\n", "state/b.py": "VALUE = 1"}
    assert measure_tree(tmp_path, files)["product_lines"].value == 4


def test_the_median_module(tmp_path: Path) -> None:
    files = {f"state/m{lines}.py": module_of(lines) for lines in (1, 100, 160, 900)}
    assert measure_tree(tmp_path, files)["module_median_lines"].value == 130


# -- functions -------------------------------------------------------------------------------------


NAMES = """
def run(): ...
async def load_problem():
    def told(): ...
class Log:
    def __init__(self): ...
    def _append_event(self): ...
    def __kept(self): ...
    def lambda_(self): ...
def _(): ...
def red(): ...
def was_asked(): ...
def asked(): ...
"""


def test_names_of_one_word(tmp_path: Path) -> None:
    # run, told, kept, lambda, red and asked, of these and load_problem, append_event and was_asked
    assert measure_tree(tmp_path, {"state/log.py": NAMES})["one_word_percent"].value == pytest.approx(600 / 9)


def test_bare_participles(tmp_path: Path) -> None:
    # told, kept and asked; in `red` too few letters come before the end
    assert measure_tree(tmp_path, {"state/log.py": NAMES})["participle_percent"].value == pytest.approx(
        300 / 9
    )


@pytest.mark.parametrize("name", ["told", "left", "built", "learnt", "asked", "indeed"])
def test_what_is_a_participle(name: str) -> None:
    assert house.is_participle(name)


@pytest.mark.parametrize("name", ["bed", "used", "toldest", "lefts", "asked_for", "askedly", "Asked", "find"])
def test_what_is_no_participle(name: str) -> None:
    assert not house.is_participle(name)


def test_names_in_tests_and_benchmarks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # told, write_log and answer count; a test's own name, product code and stand-ins do not
    files = {
        "tests/state/test_log.py": "def test_that_it_works(): ...\ndef told(): ...\ndef write_log(): ...\n",
        "benchmarks/speed.py": "def answer(): ...\n",
        "tests/support/neuron_sdk/sdk.py": "def kept(): ...\n",
        "state/log.py": "def kept(): ...\n",
    }
    assert house.main(["--root", str(write_tree(tmp_path, files)), "--tests", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["helpers"]["value"] == 3
    assert figures["one_word_percent"]["value"] == pytest.approx(200 / 3)
    assert figures["participle_percent"]["value"] == pytest.approx(100 / 3)


PARAMETERS = """
def three_positional(a, b, c): ...
def four_positional(a, b, c, d): ...
def four_with_keyword_only(a, b, c, *, d): ...
def only_keyword_only(*, a, b, c, d): ...
def four_with_defaults(a, b=1, /, c=2, d=3): ...
def three_and_the_rest(a, b, c, *args, **kwargs): ...
def half_keyword_only(a, b, c, d, *, e): ...
class Log:
    def __init__(self, a, b, c, *, d): ...
    def three_besides_self(self, a, b, c): ...
    @classmethod
    def three_besides_cls(cls, a, b, c): ...
    @classmethod
    def four_besides_cls(cls, a, b, c, d): ...
"""


def test_parameters_beyond_the_third(tmp_path: Path) -> None:
    # 3 of 7: those with 4 parameters or more, of which 4 take the fourth by position
    figure = measure_tree(tmp_path, {"state/log.py": PARAMETERS})["keyword_only_percent"]
    assert figure.value == pytest.approx(300 / 7)
    assert figure.is_met is None


def test_lengths_of_functions(tmp_path: Path) -> None:
    text = "".join(function_of(lines, f"work_{lines}") for lines in (2, 3, 4, 5, 6, 7, 8, 60, 61, 62))
    figures = measure_tree(tmp_path, {"state/log.py": text})
    assert figures["function_p50_lines"].value == 6
    assert figures["function_p90_lines"].value == 61
    assert figures["long_functions"].value == 2


def test_decorators_are_no_part_of_the_length(tmp_path: Path) -> None:
    text = "@decorate(\n    1,\n)\ndef work(\n    a,\n):\n    return a\n"
    assert measure_tree(tmp_path, {"state/log.py": text})["function_p50_lines"].value == 4


# -- imports ---------------------------------------------------------------------------------------


def test_short_modules_with_one_user(tmp_path: Path) -> None:
    importing = (
        "import state.lazily\n"
        "from state import plain\n"
        "from state.names import A\n"
        "from state.package import B\n"
        "from state.shared import C\n"
        "from state.long import D\n"
        "from state.verbs import run\n"
        "from state.knobs.rewrites import tile\n"
        "from state.rewrites import fuse\n"
    )
    files = {
        "state/__init__.py": "from state.shared import C\n",
        "state/user.py": importing,
        "state/plain.py": module_of(house.SHORT_MODULE_LINES - 1),
        "state/names.py": "A = 1\n",
        "state/package/__init__.py": "from .inner import B\n",
        "state/package/inner.py": "from ..names2 import B\n",
        "state/names2.py": "B = 1\n",
        "state/shared.py": "C = 1\n",
        "state/long.py": module_of(house.SHORT_MODULE_LINES),
        "state/verbs/run.py": "",
        "state/knobs/rewrites/tile.py": "",
        "state/rewrites/fuse.py": "",
        "state/lazily.py": "",
        "state/unused.py": "",
        "tests/state/test_unused.py": "import state.unused\n",
        "daemon/__init__.py": "def run():\n    from state import lazily, unused_too\n",
        "state/unused_too.py": "from state import unused_too\n",
    }
    figure = measure_tree(tmp_path, files)["single_user_modules"]
    assert sorted(figure.groups) == [
        ("state.names", "state.user"),
        ("state.names2", "state.package.inner"),
        ("state.package.inner", "state.package"),
        ("state.plain", "state.user"),
        ("state.rewrites.fuse", "state.user"),
        ("state.unused_too", "daemon"),
    ]
    assert figure.value == 6


CYCLES = {
    "state/__init__.py": "from state.a import A\n",
    "state/a.py": "from .b import B\nA = 1\n",
    "state/b.py": "try:\n    import state.c\nexcept ImportError:\n    pass\n",
    "state/c.py": "class Lazy:\n    from . import a\n",
    "state/d.py": "import daemon.e\nimport state.a\n",
    "daemon/e.py": "from state import d\n",
}


def test_import_cycles(tmp_path: Path) -> None:
    figure = measure_tree(tmp_path, CYCLES)["import_cycles"]
    assert figure.groups == (("daemon.e", "state.d"), ("state.a", "state.b", "state.c"))
    assert figure.value == 2
    assert figure.is_met is False


@pytest.mark.parametrize(
    "back",
    [
        "def load():\n    from state import a\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from state import a\n",
        "import typing\nif typing.TYPE_CHECKING:\n    from state import a\n",
        "from state.b import a\n",
        "from other.state import a\n",
    ],
)
def test_what_closes_no_cycle(tmp_path: Path, back: str) -> None:
    files = {
        "state/__init__.py": "from state import b\n",
        "state/a.py": "from state import b\n",
        "state/b.py": back,
    }
    assert measure_tree(tmp_path, files)["import_cycles"].value == 0


def test_what_runs_instead_of_a_type_checking_block_counts(tmp_path: Path) -> None:
    back = "if TYPE_CHECKING:\n    pass\nelse:\n    from state import a\n"
    files = {"state/a.py": "from state import b\n", "state/b.py": back}
    assert measure_tree(tmp_path, files)["import_cycles"].groups == (("state.a", "state.b"),)


# -- aims and output -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "met", "missed"),
    [
        ("one_word_percent", 50, 50.1),
        ("participle_percent", 3, 3.1),
        ("single_user_modules", 40, 41),
        ("module_median_lines", 150, 149.5),
        ("function_p50_lines", 10, 11),
        ("function_p90_lines", 30, 31),
        ("product_lines", 95_000, 95_001),
        ("import_cycles", 0, 1),
    ],
)
def test_aims(name: str, met: float, missed: float) -> None:
    assert house.Figure(name, met).is_met is True
    assert house.Figure(name, missed).is_met is False
    assert house.Figure(name, None).is_met is None


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {**CYCLES, "state/long.py": function_of(61, "run")}
    assert house.main(["--root", str(write_tree(tmp_path, files))]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["figure", "value", "aim", "met"]
    assert rows[0].split() == ["one-word", "function", "names,", "%", "100.0", "at", "most", "50", "no"]
    assert rows[2].split()[-3:] == ["-", "-", "-"]
    assert rows[9].split() == ["product", "lines", "73", "at", "most", "95,000", "yes"]
    assert rows[10].split() == ["import", "cycles", "2", "at", "most", "0", "no"]
    assert rows[11:] == [
        "import cycle: daemon.e, state.d",
        "import cycle: state.a, state.b, state.c",
    ]


def test_the_same_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main(["--root", str(write_tree(tmp_path, CYCLES)), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures) == [name for name in house.LABELS if name != "helpers"]
    assert figures["modules"] == {"value": 6, "aim": None, "met": None}
    assert figures["module_median_lines"] == {"value": 2, "aim": {"at_least": 150}, "met": False}
    assert figures["one_word_percent"] == {"value": None, "aim": {"at_most": 50}, "met": None}
    assert figures["import_cycles"] == {
        "value": 2,
        "aim": {"at_most": 0},
        "met": False,
        "modules": [["daemon.e", "state.d"], ["state.a", "state.b", "state.c"]],
    }


def test_a_file_that_does_not_parse_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"state/good.py": "", "state/half.py": "def load(:\n"}
    assert house.main(["--root", str(write_tree(tmp_path, files)), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["modules"]["value"] == 1
    assert printed.err.startswith("house: state/half.py is left out: ")


@pytest.mark.parametrize("arguments", [["--root", "nowhere"], ["--unknown"]])
def test_bad_usage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        house.main(arguments)
    assert stopped.value.code == 2
    assert arguments[-1] in capsys.readouterr().err
