"""The verbs that list: instructions and names, rules, the folder of the imports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nki_sim import cli as command_line
from nki_sim import constants, targets
from nki_sim.operators import OPERATORS

SHIMS = Path(command_line.__file__).parents[1] / "shims"


def test_path_is_the_folder_of_the_shims(cli: Any) -> None:
    assert cli("path")[1].strip() == str(SHIMS)


def test_ops_lists_what_the_tables_hold(cli: Any) -> None:
    report = json.loads(cli("ops", "--json")[1])
    wanted = {name for name, operator in OPERATORS.items() if not operator.internal}
    assert report["supported"].keys() == wanted
    assert not set(report["supported"]) & set(report["unsupported"])
    assert report["supported"]["nc_matmul"]["targets"] == ["trn1", "trn2", "trn3"]
    assert report["supported"]["range_select"]["targets"] == ["trn2", "trn3"]
    for module in ("nki", "neuronxcc.nki"):
        assert "jit" in report["namespaces"][module]
        assert {"nc_matmul", "activation"} <= set(report["namespaces"][f"{module}.isa"])
        assert {"ndarray", "exp", "float32"} <= set(report["namespaces"][f"{module}.language"])
    assert {"sbuf", "psum", "shared_hbm"} <= set(report["namespaces"]["nki.language"])
    assert {"NkiScalar", "register_alloc", "core_barrier"} <= set(report["namespaces"]["nki.isa"])
    assert {"sequential_range", "mgrid", "par_dim"} <= set(report["namespaces"]["neuronxcc.nki.language"])
    assert "nki.collectives" not in report["namespaces"]


def test_ops_lists_no_name_that_only_the_simulator_uses(cli: Any) -> None:
    spaces = json.loads(cli("ops", "--json")[1])["namespaces"]
    tools = {"annotations", "Any", "fail", "current", "issue", "masked", "op_value", "promote", "value_of",
             "as_tile", "boxes_of", "LegacyRecorder", "LegacyKernel", "Kernel", "Operator", "spelled",
             "infer_accumulate", "tile", "Decorated", "check_mutations", "copied"}  # fmt: skip
    assert not {name: found for name, names in spaces.items() if (found := tools & set(names))}


def test_ops_for_people_names_every_instruction(cli: Any) -> None:
    out = cli("ops")[1]
    for name, operator in OPERATORS.items():
        assert (f"  {name}(" in out) is not operator.internal


def test_rules_lists_every_code_with_text_and_advice(cli: Any) -> None:
    found = {rule["code"]: rule for rule in json.loads(cli("rules", "--json")[1])["rules"]}
    assert "nothing says which comes first" in found["write_write_race"]["says"]
    assert "core_barrier" in found["write_write_race"]["fix"]
    assert found["uninitialised_read"]["says"] == "{name} is read before it is written"
    assert found["{memory_name}_capacity"]["fix"].startswith("use smaller tiles")
    assert {"kernel_exception", "limit_work", "1d_arange_not_supported", "start_partition"} <= found.keys()
    assert [code for code, rule in found.items() if not rule["says"]] == []
    assert "| `uninitialised_read` | {name} is read" in cli("rules")[1]


def test_constants_lists_every_constant_of_every_target(cli: Any) -> None:
    found = json.loads(cli("constants", "--json")[1])["constants"]
    for target in targets.names():
        table = targets.load(target)
        mine = {one["name"]: one for one in found if one["target"] == target}
        assert mine.keys() == table.sources.keys()
        for name, one in mine.items():
            assert (one["value"], one["source"]) == (getattr(table, name), table.sources[name])
            assert one["note"]
            assert (one["low"] is None) == (one["high"] is None)
            assert one["low"] is not None or one["source"] in {"D", "M"} or isinstance(one["value"], bool)
    lines = cli("constants")[1]
    assert "| `psum_banks` | trn1 trn2 | 8 | D |  |" in lines
    assert "| `semaphore_ns` | trn1 trn2 | 100 | I | 80 to 120 |" in lines


def test_the_page_has_the_constants_as_they_are() -> None:
    page = (Path(__file__).parents[3] / "docs/performance-model.md").read_text(encoding="utf-8")
    assert page == constants.update_page(page), "run: nki-sim constants --into docs/performance-model.md"


def test_a_page_is_renewed_and_one_without_a_table_is_left_alone(cli: Any, tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    page.write_text(f"before\n{constants.BEGIN}\nold\n{constants.END}\nafter\n")
    assert cli("constants", "--into", page)[0] == 0
    first, *_, last = page.read_text().splitlines()
    assert (first, last) == ("before", "after")
    assert "| `psum_banks` |" in page.read_text()
    assert "old" not in page.read_text()
    other.write_text("nothing\n")
    assert cli("constants", "--into", other)[0] == 2
    assert other.read_text() == "nothing\n"
