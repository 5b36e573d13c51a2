"""Products in MX types: what becomes of a contraction, against the formats' tables and on random kernels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nki_sim
import seeds
from nki_sim import ArraySpec, targets
from nki_sim.checks import program as checks
from nki_sim.running import numerics
from nki_sim.timing.counters import profile_counters
from nki_sim.timing.forecast import forecast_program
from targets.nki.knobs.narrowing import default_ir
from targets.nki.knobs.render import render_kernel
from targets.nki.knobs.sampling import sample_ir
from targets.nki.knobs.workload_file import load_graph
from targets.nki.rewrites import worker
from targets.nki.rewrites.explore import RewrittenKernel, explore_rewrites
from targets.nki.rewrites.inlining import canonicalize_kernel
from targets.nki.rewrites.kernel_ir import ArrayArgument
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS, list_transforms
from tests.nki_sim import ocp_mx
from tests.support.kernels import HEADER, TARGET
from tests.support.sweeps import parametrize_sweep

TRN3 = targets.load("trn3")
OURS = "quantise_once"
ROUNDED = 0.06
"""More than MXFP8 with a common scale for 32 normal numbers is off."""
SAME = 2e-5


@dataclass(frozen=True)
class Written:
    """A kernel's source and the shapes of its float32 arguments."""

    source: str
    shapes: tuple[tuple[int, ...], ...]

    @property
    def arguments(self) -> list[ArrayArgument]:
        return [ArrayArgument(shape, "float32") for shape in self.shapes]


def explore(made: Written, target=TRN3, names: Sequence[str] = (OURS,)):
    kernel = read_kernel(made.source, made.arguments, target)
    transforms = [TRANSFORMS[name] for name in names]
    return explore_rewrites(kernel, made.arguments, target, transforms=transforms)


def traced(made: Written, source: str) -> Any:
    program = nki_sim.trace(
        source, args=[ArraySpec(shape, "float32") for shape in made.shapes], target="trn3"
    )
    refused = checks.check(program, TRN3)
    assert not refused, f"{refused[0].message}\n{source}"
    return program


def compute(made: Written, source: str) -> np.ndarray:
    random = np.random.default_rng(5)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in made.shapes]
    (found,) = numerics.run(traced(made, source), arrays)
    return np.asarray(found, np.float64)


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def problem(name: str) -> Written:
    found = seeds.load_problem(name)
    dims = found.spec.dims("reduced")
    return Written(found.kernel, tuple(item.resolve_kernel_shape(dims) for item in found.spec.inputs))


def only(children: Sequence[RewrittenKernel]) -> RewrittenKernel:
    (child,) = children
    return child


# -- one kernel ------------------------------------------------------------------------------------

KERNEL = """
@nki.jit
def kernel(a, b):
    k, m = a.shape
    n = b.shape[1]
    out = nl.ndarray((m, n), dtype=nl.float32, buffer=nl.shared_hbm)
    left = nl.ndarray((128, k // 128, m), dtype=nl.{left}, buffer=nl.sbuf)
    for i in nl.affine_range(k // 128):
        nisa.dma_copy(dst=left[:, i, :], src=a[i * 128 : (i + 1) * 128, :])
    for j in nl.affine_range(n // 512):
        acc = nl.ndarray((m, 512), dtype=nl.{sums}, buffer=nl.psum)
        for i in nl.affine_range(k // 128):
            right = nl.ndarray((128, 512), dtype=b.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=right, src=b[i * 128 : (i + 1) * 128, j * 512 : (j + 1) * 512])
            # The product of one step.
            {product}
            {more}
        r = nl.ndarray((m, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=r, src=acc)
        nisa.dma_copy(dst=out[:, j * 512 : (j + 1) * 512], src=r)
    return out
"""
PRODUCT = "nisa.nc_matmul(dst=acc, stationary=left[:, i, :], moving=right)"


def kernel(
    *,
    shapes=((512, 128), (512, 1024)),
    left: str = "float32",
    sums: str = "float32",
    product: str = PRODUCT,
    more: str = "pass",
) -> Written:
    return Written(HEADER + KERNEL.format(left=left, sums=sums, product=product, more=more), shapes)


def pack(matrix: np.ndarray) -> np.ndarray:
    """Four steps of 128 rows, side by side: [128, 4 columns], in bfloat16."""
    steps = matrix.reshape(4, 128, -1).transpose(1, 2, 0)
    return steps.reshape(128, -1).astype(ml_dtypes.bfloat16)


def test_the_product_is_that_of_the_formats() -> None:
    made = kernel(shapes=((512, 16), (512, 512)))
    child = only(explore(made)[0])
    random = np.random.default_rng(5)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in made.shapes)
    operands = [ocp_mx.quantise("float8_e4m3fn_x4", pack(matrix)) for matrix in (a, b)]
    unpacked = [
        (np.vectorize(lambda code: ocp_mx.decode("float8_e4m3fn_x4", int(code)))(codes), scales)
        for codes, scales in operands
    ]
    expected = ocp_mx.multiply(*unpacked)
    np.testing.assert_allclose(compute(made, child.source), expected, rtol=2.0**-20, atol=1e-4)


def test_what_is_ready_is_quantised_before_the_loop_and_what_the_loop_loads_is_packed_in_it() -> None:
    made = kernel()
    child = only(explore(made)[0])
    assert child.site == "products over i#2"
    assert "nc_matmul(" not in child.source
    before, behind = child.source.split("for j in")
    assert "left_mx" in before
    assert "quantize_mx(" in before
    assert "right_packed[:, :, i % 4]" in behind
    assert "# left is quantised once" in before
    assert "# The product of one step." in behind
    assert "k // 128 // 4" in child.source  # sizes stay as the kernel says them
    error = distance(compute(made, child.source), compute(made, made.source))
    assert 1e-3 < error < ROUNDED


@pytest.mark.parametrize(("steps", "together", "products"), [(2, 2, 1), (3, 3, 1), (6, 3, 2), (10, 2, 5)])
def test_steps_that_do_not_divide_by_four_leave_zeros(steps: int, together: int, products: int) -> None:
    made = kernel(shapes=((128 * steps, 128), (128 * steps, 512)))
    child = only(explore(made)[0])
    assert f"nisa.memset(dst=left_packed[:, :, {together}:4], value=0.0)" in child.source
    assert f"nisa.memset(dst=right_packed[:, :, {together}:4], value=0.0)" in child.source
    program = traced(made, child.source)
    ops = [program.forms[form].op for form in program.form_ids]
    assert ops.count("nc_matmul_mx") == products
    assert 1e-3 < distance(compute(made, child.source), compute(made, made.source)) < ROUNDED


def test_products_take_less_of_the_tensor_engine_and_are_predicted_faster_where_it_is_busiest() -> None:
    made = kernel(shapes=((2048, 128), (2048, 4096)))
    child = only(explore(made)[0])
    busy = {}
    for name, source in (("float32", made.source), ("mx", child.source)):
        found = profile_counters(forecast_program(traced(made, source), TRN3))
        busy[name] = found["tensor_engine_active_time"], found["total_time"]
    assert busy["mx"][0] < busy["float32"][0] / 4
    assert busy["mx"][1] < busy["float32"][1]


REFUSED = {
    "five steps": (kernel(shapes=((640, 128), (640, 512))), "in fours"),
    "an odd number of columns": (kernel(shapes=((512, 127), (512, 512))), "columns"),
    "its sum is read in the loop": (
        kernel(more="nisa.tensor_copy(dst=right, src=acc)"), "more than the products",
    ),
    "integers": (kernel(left="uint8"), "uint8"),
    "the first product of each": (
        kernel(product=PRODUCT.replace(")", ", accumulate=False)")), "does not add up",
    ),
    "a transpose": (kernel(product=PRODUCT.replace("right)", "right, is_transpose=False)")), "is_transpose"),
    "what cannot be read": (kernel(more="print(i)"), "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_where_it_does_not_apply_the_reason_is_said(case: str) -> None:
    made, reason = REFUSED[case]
    children, refusals = explore(made)
    assert children == []
    assert any(reason in refusal for refusal in refusals)


def test_it_is_for_problems_that_allow_it_and_targets_that_have_it() -> None:
    made = kernel()
    assert explore(made, TARGET) == ([], [])
    assert TRANSFORMS[OURS] not in list_transforms(mx=False)
    assert TRANSFORMS[OURS] in list_transforms(mx=True)
    job = {
        "job": "apply", "source": made.source, "target": "trn3", "technique": OURS,
        "site": "products over i#2", "choice": {},
        "arguments": [[list(shape), "float32"] for shape in made.shapes],
    }  # fmt: skip
    refused = json.loads(worker.answer_request(json.dumps(job)))
    assert refused["error"]["code"] == "does_not_apply"
    assert "mx = true" in refused["error"]["message"]
    taken = json.loads(worker.answer_request(json.dumps(job | {"mx": True})))
    assert "nc_matmul_mx" in taken["ok"]["source"]
    for allowed in (False, True):
        whole = job | {"job": "expand", "credits": {}, "mx": allowed}
        moves = json.loads(worker.answer_request(json.dumps(whole)))["ok"]["moves"]
        assert (OURS in {move["technique"] for move in moves}) is allowed


@parametrize_sweep("name", ["matmul", "swiglu", "lora", "gqa_full"], quick=("lora",))
def test_kernels_of_problems_keep_their_meaning_but_for_rounding(name: str) -> None:
    made = problem(name)
    expected = compute(made, made.source)
    children, _ = explore(made)
    assert children
    for child in children:
        assert distance(compute(made, child.source), expected) < 2 * ROUNDED, child.site


def test_what_several_loops_read_is_quantised_once() -> None:
    found = {child.site: child.source for child in explore(problem("lora"))[0]}
    apart = explore(Written(found["products over i_k#3"], problem("lora").shapes))[0]
    assert found["all products"].count("x_t_mx = ") == 1
    assert found["all products"].count("quantize_mx(") == 3
    assert only(apart).source.count("quantize_mx(") == 4


def points(name: str) -> list[Written]:
    """The default and seven other points of a problem's knob surface at reduced size."""
    found = seeds.load_problem(name)
    point, random = default_ir(load_graph(found.files["workload.json"], "reduced", "trn3")), Random(3)
    made = []
    for _ in range(8):
        made.append(Written(render_kernel(point), problem(name).shapes))
        point = sample_ir(point, random)
    return made


@parametrize_sweep("name", ["matmul", "swiglu", "lora", "rmsnorm_matmul"], quick=("rmsnorm_matmul",))
def test_most_points_of_the_knob_surface_can_be_quantised(name: str) -> None:
    quantised = [(one, found[0].source) for one in points(name) if (found := explore(one)[0])]
    assert len(quantised) >= 4
    made, source = quantised[0]
    assert "nc_matmul_mx(" in source
    assert distance(compute(made, source), compute(made, made.source)) < 2 * ROUNDED


# -- random kernels --------------------------------------------------------------------------------


def operand(name: str, shape: tuple[int, int], steps: int, source: str, random: Random) -> Operand:
    """A tile for all steps, filled at once or before each block, or a tile of one step."""
    rows, columns = shape
    tile, step = f"t_{name}", f"t_{name}_step"
    load = [
        f"{step} = nl.ndarray(({rows}, {columns}), dtype=nl.float32, buffer=nl.sbuf)",
        f"nisa.dma_copy(dst={step}, src={source})",
    ]
    if random.random() < 0.4:
        made = [f"{tile} = nl.ndarray(({rows}, {columns}), dtype=DTYPE, buffer=nl.sbuf)", *load]
        return Operand(tile, in_loop=(*made, f"nisa.tensor_copy(dst={tile}, src={step})"))
    last = random.random() < 0.4
    sizes = f"{columns}, {steps}" if last else f"{steps}, {columns}"
    text = f"{tile}[:, :, i]" if last else f"{tile}[:, i, :]"
    filled = (
        f"{tile} = nl.ndarray(({rows}, {sizes}), dtype=DTYPE, buffer=nl.sbuf)",
        f"for i in range({steps}):",
        *(f"    {line}" for line in (*load, f"nisa.tensor_copy(dst={text}, src={step})")),
    )
    if name == "a" and random.random() < 0.5:
        return Operand(text, at_first=filled)
    return Operand(text, in_block=filled)


@dataclass(frozen=True)
class Operand:
    """The source of an operand, and the lines that make it at three places."""

    text: str
    at_first: tuple[str, ...] = ()
    in_block: tuple[str, ...] = ()
    in_loop: tuple[str, ...] = ()


def draw(seed: int) -> Written:
    """Sums of one or two products in each step, of operands in several layouts."""
    random = Random(seed)
    rows, steps = random.choice((32, 64, 96, 128)), random.choice((2, 4, 6, 8))
    m, n, blocks = random.choice((16, 64, 128)), random.choice((128, 256)), random.choice((1, 2))
    a = operand("a", (rows, m), steps, f"a[i * {rows} : (i + 1) * {rows}, :]", random)
    part = f"b[i * {rows} : (i + 1) * {rows}, j * {n} : (j + 1) * {n}]"
    b = operand("b", (rows, n), steps, part, random)
    product = f"nisa.nc_matmul(dst=acc, stationary={a.text}, moving={b.text})"
    lines = [
        "@nki.jit", "def kernel(a, b):",
        f"    out = nl.ndarray(({m}, {n * blocks}), dtype=nl.float32, buffer=nl.shared_hbm)",
        *(f"    {line}" for line in (*a.at_first, f"for j in range({blocks}):")),
        *(f"        {line}" for line in (*a.in_block, *b.in_block)),
        f"        acc = nl.ndarray(({m}, {n}), dtype=nl.float32, buffer=nl.psum)",
        f"        for i in range({steps}):",
        *(f"            {line}" for line in (*a.in_loop, *b.in_loop)),
        *[f"            {product}"] * random.choice((1, 2)),
        f"        r = nl.ndarray(({m}, {n}), dtype=nl.float32, buffer=nl.sbuf)",
        "        nisa.tensor_copy(dst=r, src=acc)",
        f"        nisa.dma_copy(dst=out[:, j * {n} : (j + 1) * {n}], src=r)",
        "    return out\n",
    ]  # fmt: skip
    source = "\n".join(lines).replace("DTYPE", f"nl.{random.choice(('float32', 'bfloat16'))}")
    return Written(HEADER + source, ((rows * steps, m), (rows * steps, n * blocks)))


def walk(made: Written, random: Random) -> None:
    """Check this rewrite before and after others."""
    source, expected = made.source, compute(made, made.source)
    for _ in range(3):
        kernel = canonicalize_kernel(read_kernel(source, made.arguments, TRN3), TRN3)
        children, _ = explore_rewrites(kernel, made.arguments, TRN3, transforms=list_transforms(mx=True))
        ours = [child for child in children if child.transform.id == OURS]
        others = [child for child in children if child.transform.id != OURS]
        for child in [*ours, *random.sample(others, min(len(others), 4))]:
            error = distance(compute(made, child.source), expected)
            told = f"{child.transform.id} {child.site}: {error}\n{source}\n->\n{child.source}"
            assert error < (ROUNDED if child.transform.id == OURS else SAME), told
        source = random.choice([*ours, *children]).source
        expected = compute(made, source)


@parametrize_sweep("seed", range(12), quick=2)
def test_random_products_keep_their_meaning_but_for_rounding(seed: int) -> None:
    walk(draw(seed), Random(seed))


def test_most_random_products_can_be_quantised() -> None:
    assert sum(bool(explore(draw(seed))[0]) for seed in range(12)) >= 8
