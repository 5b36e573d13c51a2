"""Float32 products as three products of bfloat16 parts: numerics, time, and what is left alone."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import nki_sim
import seeds
from nki_sim import ArraySpec
from nki_sim.checks import program as checks
from nki_sim.running import numerics
from nki_sim.timing.counters import profile_counters
from nki_sim.timing.forecast import forecast_program
from targets.nki.judge.precision import find_lost_precision
from targets.nki.rewrites import worker
from targets.nki.rewrites.explore import RewrittenKernel, explore_rewrites
from targets.nki.rewrites.kernel_ir import ArrayArgument
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.rounding import count_split_products, estimate_rounding
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS, list_transforms
from tests.support.kernels import HEADER, TARGET

SHAPES = ((256, 128), (256, 1024))
ARGUMENTS = [ArrayArgument(shape, "float32") for shape in SHAPES]
TOLD_ARGUMENTS = [[list(shape), "float32"] for shape in SHAPES]
ROUNDED = 1e-5
"""Two parts of 8 bits each are off by less, and one part alone by a hundred times as much."""

KERNEL = """
@nki.jit
def kernel(a, b):
    k, m = a.shape
    n = b.shape[1]
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    left = nl.ndarray((128, k // 128, m), dtype=nl.{left}, buffer=nl.sbuf)
    for i in nl.affine_range(k // 128):
        nisa.dma_copy(dst=left[:, i, :], src=a[i * 128 : (i + 1) * 128, :])
    {before}
    for j in nl.affine_range(n // 512):
        acc = nl.ndarray((m, 512), dtype=nl.float32, buffer=nl.psum)
        for i in nl.sequential_range(k // 128):
            right = nl.ndarray((128, 512), dtype=nl.{left}, buffer=nl.sbuf)
            nisa.dma_copy(dst=right, src=b[i * 128 : (i + 1) * 128, j * 512 : (j + 1) * 512])
            # The product of one step.
            nisa.nc_matmul(dst=acc, stationary={read}, moving=right{words})
        r = nl.ndarray((m, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=r, src=acc)
        nisa.dma_copy(dst=out[:, j * 512 : (j + 1) * 512], src=r)
    return out
"""


def kernel(
    *, left: str = "float32", before: str = "pass", read: str = "left[:, i, :]", words: str = ""
) -> str:
    return HEADER + KERNEL.format(left=left, before=before, read=read, words=words)


def explore(
    source: str, shapes: Sequence[tuple[int, ...]] = SHAPES
) -> tuple[list[RewrittenKernel], list[str]]:
    arguments = [ArrayArgument(tuple(shape), "float32") for shape in shapes]
    return explore_rewrites(
        read_kernel(source, arguments, TARGET), arguments, TARGET, transforms=[TRANSFORMS["split_products"]]
    )


def traced(source: str, shapes: Sequence[tuple[int, ...]] = SHAPES) -> Any:
    program = nki_sim.trace(
        source, args=[ArraySpec(tuple(shape), "float32") for shape in shapes], target=TARGET.name
    )
    assert not checks.check(program, TARGET)
    return program


def relative_error(source: str) -> float:
    random = np.random.default_rng(7)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in SHAPES)
    (found,) = numerics.run(traced(source), [a, b])
    expected = a.astype(np.float64).T @ b.astype(np.float64)
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def tensor_busy_s(source: str) -> float:
    counters = profile_counters(forecast_program(traced(source), TARGET))
    return float(counters["tensor_engine_active_time"])


def test_parts_hold_sixteen_bits_and_their_products_take_three_passes() -> None:
    source = kernel()
    children, refusals = explore(source)
    assert not refusals
    assert [child.choice for child in children] == [{"rounding": "scalar"}, {"rounding": "vector"}]
    for child in children:
        assert relative_error(child.source) < ROUNDED
        assert find_lost_precision(traced(child.source)) is None
        # Not three quarters, because what begins each product takes what it took.
        assert tensor_busy_s(child.source) < 0.9 * tensor_busy_s(source)
    narrow = children[0].source.replace("dst=acc, stationary=left_low", "dst=acc, stationary=left_high")
    assert relative_error(narrow) > 10 * ROUNDED


def test_a_tile_is_split_once_where_it_is_written() -> None:
    (child, _), _ = explore(kernel())
    before, _, inside = child.source.partition("for j in")
    assert before.count("left_piece = nl.ndarray((128, m), dtype=nl.float32, buffer=nl.sbuf)") == 1
    assert before.count("dma_copy(dst=left_piece, src=a[i * 128 : (i + 1) * 128, :])") == 1
    assert before.count("dst=left_low[:, i, :], data1=left_piece, data2=left_high[:, i, :]") == 1
    assert "left = " not in before
    assert "dst=left" not in inside
    assert inside.index("# The product of one step.") > inside.index("dst=right_low")


def test_a_tile_that_others_read_is_kept() -> None:
    spare = "spare = nl.ndarray((128, m), dtype=nl.float32, buffer=nl.sbuf)"
    (child, _), _ = explore(kernel(before=f"{spare}\n    nisa.tensor_copy(dst=spare, src=left[:, 0, :])"))
    assert "data1=left[:, i, :], data2=left_high[:, i, :]" in child.source
    assert "left_piece" not in child.source
    assert relative_error(child.source) < ROUNDED


def test_what_is_copied_out_of_psum_is_split_there() -> None:
    load = "        nisa.dma_copy(dst=left[:, i, :], src=a[i * 128 : (i + 1) * 128, :])\n"
    turned = """        rows = nl.ndarray((m, 128), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=a[i * 128 : (i + 1) * 128, :])
        turned = nl.ndarray((128, m), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=rows)
        back = nl.ndarray((m, 128), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=back, src=turned)
        again = nl.ndarray((128, m), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_transpose(dst=again, data=back)
        nisa.tensor_copy(dst=left[:, i, :], src=again)
"""
    source = kernel()
    assert load in source
    (child, _), _ = explore(source.replace(load, turned))
    assert "nisa.tensor_copy(dst=left_high[:, i, :], src=again, engine=nisa.engine.scalar)" in child.source
    assert re.search(r"dst=left_low\[:, i, :\],\s+data1=again,\s+data2=left_high\[:, i, :\]", child.source)
    assert "left = " not in child.source
    assert relative_error(child.source) < ROUNDED


def test_windows_of_numbers_get_a_tile_for_each() -> None:
    source = (
        kernel().replace("k // 128, m)", "2, 128)").replace("left[:, i, :], src", "left[:, i, 0:128], src")
    )
    (child, _), _ = explore(source)
    assert "left_piece = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)" in child.source
    generic, _ = explore(kernel().replace("left[:, i, :], src", "left[:, i, 0:m], src"))
    assert "left_piece" not in generic[0].source
    assert max(relative_error(child.source), relative_error(generic[0].source)) < ROUNDED


def test_tiles_of_a_list_have_lists_of_parts() -> None:
    one, tiles = "left = nl.ndarray((128, k // 128, m)", "left = [nl.ndarray((128, m)"
    source = kernel(read="left[i]").replace(one, tiles).replace("dst=left[:, i, :]", "dst=left[i]")
    words = 'dtype=nl.float32, name="left", buffer=nl.sbuf) for _ in range(k // 128)]'
    source = source.replace("dtype=nl.float32, buffer=nl.sbuf)", words, 1)
    child, _ = explore(source)[0]
    assert relative_error(child.source) < ROUNDED
    parts = "left_high = [nl.ndarray((128, m), dtype=nl.bfloat16, buffer=nl.sbuf) for _ in range(k // 128)]"
    assert parts in child.source
    assert "nisa.nc_matmul(dst=acc, stationary=left_low[i], moving=right_high)" in child.source
    # The tiles of a list would all live at once, beside their parts.
    assert "left_piece = nl.ndarray((128, m), dtype=nl.float32, buffer=nl.sbuf)" in child.source
    assert "left = [" not in child.source


def test_the_first_part_begins_the_sum_where_the_product_did() -> None:
    (child, _), _ = explore(kernel(words=", accumulate=False"), ((128, 128), (128, 1024)))
    assert re.findall(r"accumulate=(\w+)", child.source) == ["False", "True", "True"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"before": "again = left", "read": "again[:, i, :]"},
            "left has a second name, or its name a second tile",
        ),
        ({"words": ", is_moving_onezero=False"}, "the product says is_moving_onezero"),
    ],
)
def test_what_cannot_be_split_is_named(change: dict[str, str], reason: str) -> None:
    children, refusals = explore(kernel(**change))
    assert not children
    assert refusals == [f"split_products products to acc: {reason}"]


def test_products_of_narrow_types_have_no_site() -> None:
    found = read_kernel(kernel(left="bfloat16"), [ArrayArgument(s, "float32") for s in SHAPES], TARGET)
    assert TRANSFORMS["split_products"].find_sites(found, TARGET) == {}


def test_several_sums_are_split_together_or_one_by_one() -> None:
    problem = seeds.load_problem("swiglu")
    dims = problem.spec.dims("reduced")
    children, _ = explore(problem.kernel, [item.resolve_kernel_shape(dims) for item in problem.spec.inputs])
    sites = [child.site for child in children]
    assert sites[0] == "all products"
    assert {"products to gate", "products to up"} <= set(sites)
    counts = {child.site: count_split_products(child.kernel) for child in children}
    assert (counts["all products"], counts["products to gate"], counts["products to acc"]) == (3, 1, 1)


def test_a_kernel_of_split_products_says_what_they_round_off() -> None:
    (child, *_), _ = explore(kernel())
    assert count_split_products(read_kernel(kernel(), ARGUMENTS, TARGET)) == 0
    assert count_split_products(child.kernel) == 1
    job = {"job": "rounding", "sources": [kernel(), child.source], "target": TARGET.name}
    told = json.loads(worker.answer_request(json.dumps(job | {"arguments": TOLD_ARGUMENTS})))
    assert told["ok"]["rounding"] == [0.0, 2.0**-16]


def test_an_exponential_of_a_product_rounds_more_than_the_product() -> None:
    problem = seeds.load_problem("bmm_softmax")
    dims = problem.spec.dims("reduced")
    (child, *_), _ = explore(
        problem.kernel, [item.resolve_kernel_shape(dims) for item in problem.spec.inputs]
    )
    assert estimate_rounding(child.kernel) == pytest.approx(2.0**-16 * 2**0.5)
    assert estimate_rounding(child.kernel) > problem.spec.rel_l2


def test_it_is_for_problems_that_allow_what_it_rounds() -> None:
    transform = TRANSFORMS["split_products"]
    assert transform in list_transforms(mx=False, rel_l2=2e-5)
    assert transform not in list_transforms(mx=False, rel_l2=1e-5)
    job = {
        "job": "apply", "source": kernel(), "target": TARGET.name, "technique": transform.id,
        "site": "products to acc", "choice": {"rounding": "scalar"},
        "arguments": TOLD_ARGUMENTS,
    }  # fmt: skip
    taken = json.loads(worker.answer_request(json.dumps(job | {"rel_l2": 2e-5})))
    assert "right_low" in taken["ok"]["source"]
    refused = json.loads(worker.answer_request(json.dumps(job | {"rel_l2": 1e-5})))["error"]
    assert (refused["code"], "rel_l2" in refused["message"]) == ("does_not_apply", True)
