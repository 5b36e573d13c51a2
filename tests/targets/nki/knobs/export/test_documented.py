"""The example of docs/tune.md, carried out as it stands there, by the simulator."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[5] / "docs" / "tune.md").read_text(encoding="utf-8")
QUICK = (
    "--set", "run.search.plans=2", "--set", "run.search.lookahead_predictions=6",
    "--set", "run.search.lookahead_depth=2", "--json",
)  # fmt: skip


@pytest.mark.slow
def test_the_example_leads_from_the_mathematics_to_a_kernel(ctl, tmp_path, monkeypatch):
    name = re.search(r"`(\w+\.py)`, RMSNorm", TEXT)
    workload = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    commands = re.findall(r"^    agentctl (tune [^#\n]+?) *(?:#.*)?$", TEXT, re.MULTILINE)
    assert name
    assert workload
    (tmp_path / name[1]).write_text(workload[1])
    monkeypatch.chdir(tmp_path)
    first = commands[0]
    again = next(one for one in commands if name[1] in one and "--export RUN" in one)
    called = ctl(*shlex.split(first), *QUICK)
    assert called.status == 0, called.err
    told = called.json
    assert told["best_level"] == "whole"
    assert told["predicted"] is True
    root = tmp_path / "normed_product"
    summary = json.loads((root / "summary.json").read_text())
    assert summary["function"] == "normed_product"
    best = summary["tuning"]["batch_0"]
    assert best["mfu"] >= summary["baseline"]["mfu"] > 0
    _check_documented(root)
    before = (root / "summary.json").read_bytes()
    (root / "summary.json").unlink()
    assert ctl(*shlex.split(again.replace("RUN", told["id"]))).status == 0
    assert (root / "summary.json").read_bytes() == before


def _check_documented(root: Path) -> None:
    """Every file and every key that is written is explained, and the other way round."""
    section = TEXT.split("## The files")[1]
    files = {path.name for path in root.rglob("*") if path.is_file()}
    assert files >= {"kernel.py", "ir.txt", "log.txt", "result.json", "summary.json"}
    assert all(f"`{name}`" in section for name in files)
    result = json.loads((root / "nkipy_baseline" / "result.json").read_text())
    keys = {"cpu_sim", "min_ms", "mfu", "mfu_max_achievable_estimated_percent", "roofline_efficiency"}
    keys |= {"mbu_estimated_percent", "hardware_output", "predicted"}
    assert keys <= set(result)
    assert all(f"`{key}`" in section for key in keys)
