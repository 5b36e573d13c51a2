"""Halo: shifted windows that a kernel loads one by one become parts of one load."""

from __future__ import annotations

from dataclasses import replace

import pytest

from targets.nki.rewrites.explore import explore_rewrites
from targets.nki.rewrites.inlining import canonicalize_kernel
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET, Sample, relative_error

KERNEL = """
@nki.jit
def kernel(x):
    m, n = x.shape
    k = n - 2
    out = nl.ndarray((m, k), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // 128):
        # Taps.
        {loads}
        first = nl.ndarray((128, k), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=first, data1=left, data2=middle, op=nl.add)
        result = nl.ndarray((128, k), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=result, data1=first, data2=right[:, 0:k], op=nl.add)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=result)
    return out
"""
LOAD = """{name} = nl.ndarray((128, k), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst={name}, src=x[i * 128 : (i + 1) * 128, {part}])
        """
PARTS = {"left": "0:k", "middle": "1 : k + 1", "right": "2:n"}


def sample(parts=None, extra=""):
    loads = "".join(LOAD.format(name=name, part=part) for name, part in {**PARTS, **(parts or {})}.items())
    source = HEADER + KERNEL.format(loads=loads + extra)
    return Sample(source, ((256, 402),), lambda x: x[:, :-2] + x[:, 1:-1] + x[:, 2:])


def rewritten(made):
    """Sources, and reasons against."""
    kernel = read_kernel(made.source, made.arguments, TARGET)
    children, refusals = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS["halo"]])
    return [child.source for child in children], refusals


def test_three_taps_are_parts_of_one_load():
    made = sample()
    ((source,), _) = rewritten(made)
    assert relative_error(made, source) < 1e-6
    assert source.count("src=x[") == 1
    assert "windows = nl.ndarray((128, k + 2), dtype=nl.float32, buffer=nl.sbuf)" in source
    assert "middle = windows[:, 1 : 1 + k]" in source
    assert "# Taps." in source


def test_the_order_of_the_taps_does_not_matter():
    made = sample(dict(zip(PARTS, reversed(PARTS.values()), strict=True)))
    ((source,), _) = rewritten(made)
    assert relative_error(made, source) < 1e-6
    assert "src=x[i * 128 : (i + 1) * 128, 0:n]" in source


@pytest.mark.parametrize("parts", [{"right": "0:k"}, {"middle": "0:k", "right": "0:k"}])
def test_windows_that_are_the_same_stay(parts):
    assert rewritten(sample(parts))[0] == []


def test_a_window_that_is_written_to_is_loaded_by_itself():
    def with_edge(x):
        middle = x[:, 1:-1].copy()
        middle[:, 0] = 0.0
        return x[:, :-2] + middle + x[:, 2:]

    made = replace(sample(extra="nisa.memset(dst=middle[:, 0:1], value=0.0)"), meaning=with_edge)
    ((source,), _) = rewritten(made)
    assert relative_error(made, source) < 1e-6
    assert source.count("src=x[") == 2


LOOP = """
@nki.jit
def kernel(x):
    m, n = x.shape
    k = n - 4
    out = nl.ndarray((m, k), dtype=x.dtype, buffer=nl.shared_hbm)
    for i in nl.affine_range(m // 128):
        total = nl.ndarray((128, k), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=total, value=0.0)
        for tap in range(3):
            t = nl.ndarray((128, k), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x[i * 128 : (i + 1) * 128, 2 * tap : 2 * tap + k])
            nisa.tensor_tensor(dst=total, data1=total, data2=t, op=nl.add)
        nisa.dma_copy(dst=out[i * 128 : (i + 1) * 128, :], src=total)
    return out
"""


def loop_sample(old="", new=""):
    assert old in LOOP
    return Sample(HEADER + LOOP.replace(old, new), ((256, 404),), lambda x: x[:, :-4] + x[:, 2:-2] + x[:, 4:])


def test_taps_of_a_loop_are_parts_of_one_load_before_it():
    made = loop_sample()
    ((source,), _) = rewritten(made)
    assert relative_error(made, source) < 1e-6
    assert source.index("dma_copy(dst=windows") < source.index("for tap in")
    assert source.count("src=x[") == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2 * tap : 2 * tap + k", "0 : k"),
        ("op=nl.add)\n        nisa", "op=nl.add)\n        nisa.tensor_copy(dst=total, src=t)\n        nisa"),
        ("op=nl.add)\n", "op=nl.add)\n            nisa.dma_copy(dst=x[0:128, 0:k], src=t)\n"),
    ],
)
def test_windows_that_do_not_move_or_are_used_otherwise_are_loaded_in_the_loop(old, new):
    assert rewritten(loop_sample(old, new))[0] == []


POOL = """
@nki.jit
def kernel(x):
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(2):
        even = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
        # Even columns.
        nisa.dma_copy(dst=even, src=x[:, {even}])
        odd = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=odd, src=x[:, {odd}])
        best = nl.ndarray((128, 32), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_tensor(dst=best, data1=even, data2=odd, op=nl.maximum)
        nisa.dma_copy(dst=out[:, i * 32 : (i + 1) * 32], src=best)
    return out
"""


def pool(even: str = "64 * i : 64 * i + 64 : 2", odd: str = "64 * i + 1 : (i + 1) * 64 : 2") -> Sample:
    def meaning(x):
        return x.reshape(128, 64, 2).max(axis=2)

    return Sample(HEADER + POOL.format(even=even, odd=odd), ((128, 128),), meaning)


def test_what_lies_between_the_elements_of_a_window_is_loaded_with_them():
    made = pool()
    (source,) = [one for one in rewritten(made)[0] if "even = windows" in one]
    assert relative_error(made, made.source) == 0
    assert relative_error(made, source) == 0
    assert "windows = nl.ndarray((128, 63), dtype=nl.float32, buffer=nl.sbuf)" in source
    assert "# Even columns." in source
    assert "src=x[:, 64 * i:64 * i + 63])" in source
    assert "even = windows[:, 0 : 63 : 2]" in source


def test_both_windows_of_an_interleaved_pair_become_one_load():
    made = pool()
    for _ in ("even columns", "odd columns", "both"):
        kernel = canonicalize_kernel(read_kernel(made.source, made.arguments, TARGET), TARGET)
        children, _ = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS["halo"]])
        made = replace(made, source=children[0].source)
    assert relative_error(made, made.source) == 0
    assert made.source.count("src=x[") == 1
    assert "windows_3 = nl.ndarray((128, 63 + 1), dtype=nl.float32, buffer=nl.sbuf)" in made.source


def test_a_strided_tile_that_is_written_to_is_loaded_by_itself():
    made = pool()
    written = made.source.replace("best = nl", "even[:, 0:1]\n        best = nl").replace(
        "even[:, 0:1]", "nisa.memset(dst=even[:, 0:1], value=0.0)"
    )
    assert not any("even = windows" in one for one in rewritten(replace(made, source=written))[0])


def test_whole_rows_are_no_window_with_gaps():
    assert rewritten(pool(even="32 * i : 32 * i + 32", odd="32 * i : 32 * i + 32"))[0] == []
