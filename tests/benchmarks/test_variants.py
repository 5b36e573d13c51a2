"""The benchmark of variants, on a small product."""

from __future__ import annotations

import json

import pytest

from benchmarks import variants
from targets.nki.knobs.variants import IDENTITY

SMALL = (variants.softmax_matmul, {"x": ((128, 256), "float32"), "v": ((256, 64), "float32")})
LONG = (variants.softmax_matmul, {"x": ((128, 512), "float32"), "v": ((512, 64), "float32")})


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "WORKLOADS", {"small": SMALL, "long": LONG})


def test_every_variant_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert variants.main(["--workloads", "small", "--samples", "1"]) == 0
    head, _, identity, *others = capsys.readouterr().out.splitlines()
    assert "predicted" in head
    assert identity.startswith(f"| small | {IDENTITY} | ")
    assert any("| online |" in line for line in others)


def test_rows_are_data_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert variants.main(["--workloads", "small,long", "--samples", "0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["predicted"] is True
    assert {row["workload"] for row in told["rows"]} == {"small", "long"}
    assert [row["variant"] for row in told["rows"] if row["is_identity"]] == [IDENTITY] * 2
    assert all(row["default_ms"] == row["best_ms"] > 0 for row in told["rows"])


def test_the_best_is_no_worse_than_the_default() -> None:
    for row in variants.rows("small", 2, 0, "trn2"):
        assert row.best_ms is not None
        assert row.default_ms is not None
        assert row.best_ms <= row.default_ms


def test_a_variant_that_does_not_fit_says_so() -> None:
    row = variants.Row("small", "epilogue", None, None)
    assert row.text == "| small | epilogue | does not fit | does not fit |"


def test_unknown_workloads_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        variants.main(["--workloads", "nothing"])
    assert "'nothing' is no workload" in capsys.readouterr().err
