"""Sharing: an instruction for some columns here and for the others there, and when it stays whole."""

from __future__ import annotations

import re

import pytest

from targets.nki.rewrites.estimate import estimate_kernel
from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET, Sample, join_wrapped_calls, relative_error

KERNEL = """
@nki.jit
def kernel(x):
    m, n = x.shape
    out = nl.ndarray((m, n), dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.ndarray((128, 2, n // 2), dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=a, src=x.reshape_dim(1, (2, n // 2)))
    b = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)
    for i in range(2):
        # Half of the columns.
        {body}
    nisa.dma_copy(dst=out, src=b)
    return out
"""
HALF = "b[:, i * 256 : (i + 1) * 256]"
DOUBLE = f"nisa.tensor_scalar(dst={HALF}, data=a[:, i, :], op0=nl.multiply, operand0=2.0)"
SUM = f"nisa.tensor_tensor(dst={HALF}, data1=a[:, i, 0:256], data2=a[:, i], op=nl.add)"


def sample(body: str) -> Sample:
    return Sample(HEADER + KERNEL.format(body=body), ((128, 512),), lambda x: 2 * x)


def share_loads(made: Sample) -> tuple[list[tuple[dict, str]], list[str]]:
    """The even choice for each engine with its source, and reasons against."""
    found, refusals = share_in_steps(made)
    evenly = {choice["engine"]: (choice, source) for choice, source in reversed(found)}
    return list(evenly.values()), refusals


def share_in_steps(made: Sample) -> tuple[list[tuple[dict, str]], list[str]]:
    """All choices with sources, and reasons against."""
    kernel = read_kernel(made.source, made.arguments, TARGET)
    children, refusals = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS["share"]])
    return [(dict(child.choice), join_wrapped_calls(child.source)) for child in children], refusals


def test_the_other_engine_may_get_half_of_its_share():
    made = sample(DOUBLE)
    ((even, _), (fewer, source)), _ = share_in_steps(made)
    assert (even["columns"], fewer["columns"]) == (96, 32)
    assert relative_error(made, source) < 1e-6


NEUTRAL = f"nisa.scalar_tensor_tensor(dst={HALF}, data=a[:, i, 0:256], {{}}, operand1=a[:, i, :])"


@pytest.mark.parametrize(
    "steps",
    ["op0=nl.multiply, operand0=1.0, op1=nl.add", "op0=nl.add, operand0=0.0, op1=nl.add, reverse1=True"],
)
def test_a_first_step_that_changes_nothing_stays_with_vector_e(steps):
    made = sample(NEUTRAL.format(steps))
    found, _ = share_in_steps(made)
    assert {choice["engine"] for choice, _ in found} == {"gpsimd"}
    for choice, source in found:
        assert relative_error(made, source) < 1e-6
        middle = 256 - choice["columns"]
        moved = re.search(r"nisa\.tensor_tensor\((.*)\)", source)[1].rstrip(", ")
        assert moved.startswith(f"dst=b[:, i * 256 + {middle} : (i + 1) * 256]")
        assert "operand0" not in moved
        assert moved.endswith("op=nl.add, engine=nisa.engine.gpsimd")
        assert len(re.findall(r"nisa\.scalar_tensor_tensor\(", source)) == 1


def test_a_first_step_with_an_effect_is_not_left_out():
    found, refusals = share_in_steps(sample(NEUTRAL.format("op0=nl.multiply, operand0=2.0, op1=nl.add")))
    assert not found
    assert "no other engine has time" in refusals[0]


def test_engines_come_out_even_by_the_cost_table():
    made = sample(DOUBLE)
    (((choice, source),), _) = share_loads(made)
    assert choice == {"engine": "scalar", "columns": 96}
    busy = estimate_kernel(read_kernel(source, made.arguments, TARGET), TARGET).busy_ns
    assert abs(busy["vector"] - busy["scalar"]) < 0.1 * busy["vector"]
    assert relative_error(made, source) < 1e-6
    assert "# Half of the columns.\n" in source
    assert "dst=b[:, i * 256 : i * 256 + 160], data=a[:, i, 0 : a.shape[2] * 5 // 8]" in source
    assert "dst=b[:, i * 256 + 160 : (i + 1) * 256], data=a[:, i, a.shape[2] * 5 // 8 :]" in source
    assert source.count("engine=nisa.engine.scalar") == 1


@pytest.mark.parametrize("window", ["a[:, i, 0 : n // 2]", "a[:, i]", "a[:, i, n - n : n // 2]"])
def test_a_kernel_for_any_width_stays_one(window: str):
    generic = DOUBLE.replace("256", "(n // 2)").replace("a[:, i, :]", window)
    (((choice, source),), _) = share_loads(sample(generic))
    assert choice["columns"] == 96
    for columns in (384, 512, 1024):
        assert relative_error(Sample(source, ((128, columns),), lambda x: 2 * x), source) < 1e-6


def test_columns_of_whole_tiles_go_by_their_declarations():
    lines = ["c = nl.ndarray((128, n), dtype=nl.float32, buffer=nl.sbuf)", "nisa.dma_copy(dst=c, src=x)"]
    lines += ["d = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)"]
    lines += ["nisa.tensor_tensor(dst=d, data1=c, data2=c, op=nl.add)"]
    made = sample("\n        ".join([*lines, "nisa.dma_copy(dst=b, src=d)"]))
    (((_, source),), _) = share_loads(made)
    assert re.search(r"dst=d\[:, 0:\d+\], data1=c\[:, 0 : n \* \d+ // \d+\]", source), source
    assert relative_error(made, source) < 1e-6


def test_a_width_that_means_something_else_by_now_is_the_tiles_own():
    lines = ["w = n", "c = nl.ndarray((128, w), dtype=nl.float32, buffer=nl.sbuf)", "w -= n - 2"]
    lines += ["nisa.dma_copy(dst=c, src=x)", "nisa.tensor_tensor(dst=b, data1=c, data2=c, op=nl.add)"]
    lines += ["nisa.tensor_scalar(dst=b[:, 0:w], data=c[:, 0:w], op0=nl.multiply, operand0=2.0)"]
    made = sample("\n        ".join(lines))
    (((_, source),), _) = share_loads(made)
    assert re.search(r"data1=c\[:, 0 : c\.shape\[1\] \* \d+ // \d+\]", source), source
    assert relative_error(made, source) < 1e-6


def test_windows_of_all_spellings_are_shared():
    made = sample(SUM)
    (((choice, source),), _) = share_loads(made)
    assert choice["engine"] == "gpsimd"
    assert relative_error(made, source) < 1e-6


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            DOUBLE.replace("multiply", "subtract"),
            "no other engine has time for a part of this tensor_scalar",
        ),
        (
            f"{DOUBLE}\n        nisa.tensor_copy(dst=b[:, 128:384], src=b[:, 0:256])",
            "tensor_copy reads other parts of b than it writes",
        ),
        (
            DOUBLE.replace("a[:, i, :]", "a[:, i, -256:]"),
            "the columns of a[:, i, -256:] are counted from the end",
        ),
        (
            DOUBLE.replace("a[:, i, :]", "a[:, i, nl.ds(0, 256)]"),
            "the columns of a[:, i, nl.ds(0, 256)] are not written as a slice",
        ),
    ],
)  # fmt: skip
def test_sharing_says_why_not(body: str, reason: str):
    _, refusals = share_loads(sample(body))
    assert any(item.endswith(f": {reason}") for item in refusals), refusals
