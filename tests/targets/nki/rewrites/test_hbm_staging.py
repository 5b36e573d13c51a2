"""What SBUF cannot hold for all iterations is made once, stored in HBM, and loaded in each iteration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from targets.nki.rewrites.explore import RewrittenKernel, explore_rewrites
from targets.nki.rewrites.reader import read_kernel
from targets.nki.rewrites.transforms.catalogue import TRANSFORMS
from tests.support.kernels import HEADER, TARGET, Sample, join_wrapped_calls, relative_error

SMALL = replace(TARGET, sbuf_partition_bytes=TARGET.sbuf_reserved_bytes + 30 * 1024)
"""Its SBUF holds the tiles of one iteration, but not those of all eight."""

KERNEL = """
@nki.jit
def kernel(a, b):
    rows, k = a.shape
    n = b.shape[1]
    out = nl.ndarray((rows, n), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in nl.affine_range(n // 256):
        right = nl.ndarray((128, k // 128, 256), dtype=nl.float32, buffer=nl.sbuf)
        for j in nl.affine_range(k // 128):
            nisa.dma_copy(dst=right[:, j, :], src=b[j * 128 : (j + 1) * 128, i * 256 : (i + 1) * 256])
        for j in nl.affine_range(rows // 128):
            # Rows of a, turned.
            left = {declared}
            for l in nl.affine_range(k // 128):
                tile = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(dst=tile, src=a[j * 128 : (j + 1) * 128, l * 128 : (l + 1) * 128])
                turned = nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum)
                nisa.nc_transpose(dst=turned, data=tile)
                nisa.tensor_copy(dst={part}, src=turned)
            acc = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.psum)
            for l in nl.affine_range(k // 128):
                nisa.nc_matmul(dst=acc, stationary={part}, moving=right[:, l, :])
            result = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=result, src=acc)
            nisa.dma_copy(dst=out[j * 128 : (j + 1) * 128, i * 256 : (i + 1) * 256], src=result)
    return out
"""
TILE = "nl.ndarray((128, k // 128, 128), dtype=nl.float32, buffer=nl.sbuf)"
LIST = "[nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.sbuf) for _ in range(k // 128)]"


def sample(declared: str, part: str) -> Sample:
    source = HEADER + KERNEL.format(declared=declared, part=part)
    return Sample(source, ((1024, 1024), (1024, 512)), lambda a, b: a @ b)


def hoist(made: Sample) -> tuple[dict[str, list[RewrittenKernel]], list[str]]:
    kernel = read_kernel(made.source, made.arguments, SMALL)
    children, refusals = explore_rewrites(kernel, made.arguments, SMALL, transforms=[TRANSFORMS["hoist"]])
    found: dict[str, list[RewrittenKernel]] = {}
    for child in children:
        found.setdefault(child.site, []).append(child)
    return found, refusals


@pytest.mark.parametrize(
    ("declared", "part", "store", "load"),
    [
        (TILE, "left[:, l, :]", "dst=left_stored[j], src=left", "dst=left_loaded, src=left_stored[j]"),
        (
            LIST,
            "left[l]",
            "dst=left_stored[j, left_0], src=left[left_0]",
            "dst=left_loaded[left_loaded_0], src=left_stored[j, left_loaded_0]",
        ),
    ],
    ids=["a tile", "a list"],
)
def test_tiles_of_all_iterations_are_stored(declared: str, part: str, store: str, load: str) -> None:
    made = sample(declared, part)
    found, _ = hoist(made)
    (child,) = found["left out of i"]
    before, _, inside = join_wrapped_calls(child.source).partition("for i in")
    assert before.count("nc_transpose") == 1
    assert "nc_transpose" not in inside
    assert "# Rows of a, turned." in before
    assert f"nisa.dma_copy({store})" in before
    assert f"nisa.dma_copy({load})" in inside
    assert relative_error(made, child.source) < 1e-6


def test_what_fits_stays_on_chip() -> None:
    made = sample(TILE, "left[:, l, :]")
    kernel = read_kernel(made.source, made.arguments, TARGET)
    children, _ = explore_rewrites(kernel, made.arguments, TARGET, transforms=[TRANSFORMS["hoist"]])
    choices = [dict(child.choice) for child in children if child.site == "left out of i"]
    assert choices
    assert {"through": "hbm"} not in choices


def test_what_is_loaded_is_not_stored_again() -> None:
    load = "nisa.dma_copy(dst={part}, src=a[l * 128 : (l + 1) * 128, j * 128 : (j + 1) * 128])"
    start, end = KERNEL.index("                tile ="), KERNEL.index("            acc =")
    loaded = f"{KERNEL[:start]}                {load}\n{KERNEL[end:]}"
    source = HEADER + loaded.format(declared=LIST, part="left[l]")
    made = Sample(source, ((1024, 1024), (1024, 512)), lambda a, b: a @ b)
    found, refusals = hoist(made)
    assert "left out of i" not in found
    assert "hoist left out of i: left is loaded, and HBM would hold it twice" in refusals
