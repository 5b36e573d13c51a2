"""`nki-sim trace` and `nki-sim profile`: provenance, predictions, rules first."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest


def test_provenance_says_where_tiles_come_from(tiled_file: Path, cli: Any) -> None:
    argv = ["trace", tiled_file, "--arg", "256x8"]
    argv = [*argv, "--provenance"]
    tiles = json.loads(cli(*argv, "tiles", "--json")[1])["provenance"]["tiles"]
    assert [tile["output"]["rows"] for tile in tiles] == [[0, 128], [128, 256]]
    text = cli(*argv, "tiles")[1]
    assert "line 13: out[128:256, 0:8] <- x[128:256, 0:8] (float32)" in text
    found = json.loads(cli(*argv, "0[3,5]", "--json")[1])["provenance"]
    one = {"tensor": "x", "shape": [256, 8], "count": 1, "boxes": [[[3, 4], [5, 6]]]}
    assert found == {"element": "0[3,5]", "elements": [one]}
    assert "\n    x[3, 5]\n" in cli(*argv, "0[3,5]")[1]
    for wrong in ("0[300,5]", "1[0,0]", "0"):
        assert cli(*argv, wrong)[0] == 2


def test_profile_calls_latency_predicted(kernel_file: Path, cli: Any) -> None:
    status, out, _ = cli("profile", kernel_file, "--arg", "256x1024", "--target", "trn1", "--json")
    report = json.loads(out)
    assert status == 0
    assert report["predicted"]["lo_ms"] <= report["predicted"]["latency_ms"] <= report["predicted"]["hi_ms"]
    assert report["explanation"]["bottleneck"]
    text = cli("profile", kernel_file, "--arg", "256x1024")[1]
    assert re.match(r"kernel on trn2: \S+ \S+ predicted \(", text)


def test_profile_applies_the_checks_first(kernel_file: Path, cli: Any) -> None:
    status, out, _ = cli("profile", kernel_file, "--arg", "128x600", "--json")
    report = json.loads(out)
    assert status == 1
    assert [item["code"] for item in report["checks"]] == ["tensor_output_not_written_to"]
    assert report["predicted"] is None


PRODUCT = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, w):
    out = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.shared_hbm)
    a = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    b = nl.ndarray(w.shape, dtype=w.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x)
    nisa.dma_copy(dst=b, src=w)
    product = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=b, moving=a)
    result = nl.ndarray((64, 32), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=product)
    nisa.dma_copy(dst=out, src=result)
    return out
"""


def test_elements_are_named_with_all_their_indices(tmp_path: Path, cli: Any) -> None:
    kernel = tmp_path / "product.py"
    kernel.write_text(PRODUCT)
    argv = ("trace", kernel, "--arg", "128x32", "--arg", "128x64", "--provenance", "0[3,5]")
    found = json.loads(cli(*argv, "--json")[1])["provenance"]["elements"]
    assert found == [
        {"tensor": "x", "shape": [128, 32], "count": 128, "boxes": [[[0, 128], [5, 6]]]},
        {"tensor": "w", "shape": [128, 64], "count": 128, "boxes": [[[0, 128], [3, 4]]]},
    ]
    text = cli(*argv)[1]
    assert "  x: 128 of 4096 elements of shape 128x32\n    x[0:128, 5]\n" in text
    assert "    w[0:128, 3]\n" in text


def test_provenance_does_not_swallow_the_kernel(tiled_file: Path, cli: Any) -> None:
    status, out, err = cli("trace", "--provenance", tiled_file, "--arg", "256x8")
    assert (status, out) == (2, "")
    assert err.endswith(f"argument --provenance: '{tiled_file}' is neither tiles nor an element: 0[3,5]\n")
    for asked in (("--provenance", "tiles"), ("--provenance=tiles",), ("--provenance=0[3,5]",)):
        assert cli("trace", *asked, tiled_file, "--arg", "256x8")[0] == 0


@pytest.mark.parametrize("verb", ["trace", "profile"])
def test_a_reference_may_say_what_to_trace_with(verb: str, pair: Any, cli: Any) -> None:
    _, kernel, *reference = pair()
    assert cli(verb, kernel, *reference)[0] == 0
