"""The comparison of documented names with the simulator's, on stubs written for these tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.surface import documented
from benchmarks.surface.documented import ACCEPTED, REFUSED, UNKNOWN

STUBS = {
    "docs/nki/isa/__init__.py": """
from enum import Enum

class engine(Enum):
    vector = 5
    warp = 9

def tensor_copy(dst, src, engine=engine.vector, name=None, colour=None): ...
def range_select(dst, on_true_tile, comp_op0, comp_op1, bound0, bound1, name=None): ...
def warp_copy(dst): ...
def _helper(): ...
""",
    "docs/nki/language/__init__.py": """
uint64: str = ...
float8_e5m2_x4: str = ...
class NkiTensor:
    def reshape(self, shape): ...
    def frobnicate(self): ...
def ndarray(shape, dtype, buffer=None, name="", address=None): ...
""",
    "docs/nki/collectives.py": "def all_reduce(srcs, dsts, replica_group, op): ...\n",
    "elsewhere/readme.py": "def nothing(): ...\n",
}


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    for name, text in STUBS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def statuses(stubs: Path) -> dict[tuple[str, str], documented.NameStatus]:
    found = documented.compare_names(documented.read_stubs([stubs]))
    return {(one.name, one.target): one for one in found}


def test_stubs_are_read_with_arguments_and_members(stubs):
    names = {(one.module, one.name): one for one in documented.read_stubs([stubs])}
    assert {module for module, _ in names} == {"nki.isa", "nki.language", "nki.collectives"}
    assert names["nki.isa", "tensor_copy"].arguments == ("dst", "src", "engine", "name", "colour")
    assert names["nki.isa", "engine"].members == ("vector", "warp")
    assert names["nki.language", "NkiTensor"].members == ("reshape", "frobnicate")


def test_each_name_is_accepted_refused_or_a_gap_on_each_target(stubs):
    found = statuses(stubs)
    assert {target for _, target in found} == set(documented.TARGETS)
    for target in documented.TARGETS:
        assert found["nki.isa.warp_copy", target].status == UNKNOWN
        assert found["nki.collectives.all_reduce", target].status == REFUSED
        assert "one device" in found["nki.collectives.all_reduce", target].reason
        assert found["nki.language.uint64", target].status == REFUSED
        assert found["nki.isa.range_select", target].status == ACCEPTED
    packed = {target: found["nki.language.float8_e5m2_x4", target].status for target in documented.TARGETS}
    assert packed == {"trn2": REFUSED, "trn3": ACCEPTED}


def test_arguments_and_members_that_are_not_taken_are_named(stubs):
    found = statuses(stubs)
    assert found["nki.isa.tensor_copy", "trn3"].missing == {"colour": "not taken"}
    assert found["nki.isa.engine", "trn2"].missing == {"warp": "no such member"}
    assert found["nki.language.NkiTensor", "trn2"].missing == {"frobnicate": "no such member"}
    assert found["nki.language.ndarray", "trn2"].missing == {}


def test_a_later_folder_adds_to_an_earlier_one(stubs, tmp_path):
    newer = tmp_path / "newer" / "nki" / "isa.py"
    newer.parent.mkdir(parents=True)
    newer.write_text("def tensor_copy(dst, src): ...\ndef warp_copy(dst, src): ...\n")
    names = {one.name: one for one in documented.read_stubs([stubs / "docs", tmp_path / "newer"])}
    assert names["tensor_copy"].arguments == ("dst", "src")
    assert names["warp_copy"].arguments == ("dst", "src")
    assert "range_select" in names


def test_the_table_has_what_is_refused_and_gaps_fail(stubs, capsys):
    assert documented.main([str(stubs), "--table"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "| `nki.language.float8_e5m2_x4` | trn2 | only on trn3 |" in lines
    assert "| `nki.isa.tensor_copy(colour=)` | trn2 trn3 | not taken |" in lines
    assert not any("warp_copy" in line for line in lines)
    assert documented.main([str(stubs)]) == 1
    assert "gap on trn2: nki.isa.warp_copy" in capsys.readouterr().out
    (stubs / "docs/nki/isa/__init__.py").write_text("def tensor_copy(dst, src): ...\n")
    assert documented.main([str(stubs), "--json"]) == 0
    assert {row["status"] for row in json.loads(capsys.readouterr().out)} == {ACCEPTED, REFUSED}
