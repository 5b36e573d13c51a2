"""Kernels, references and the command that the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nki_sim.cli import main

KERNEL = """
import nki
import nki.language as nl
import nki.isa as nisa

@nki.jit
def {name}(x, scale):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=scale)
    nisa.dma_copy(dst=out, src=tile)
    return out
"""

TILED = """
import nki
import nki.language as nl
import nki.isa as nisa


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for row in range(0, x.shape[0], 128):
        tile = nl.ndarray((128, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[row : row + 128, :])
        nisa.dma_copy(dst=out[row : row + 128, :], src=tile)
    return out
"""

REFERENCE = """
import numpy as np

def get_inputs():
    return [np.random.normal(size=(2, 64, 32)).astype(np.float32), 3.0]

def forward(x, scale):
    return x * scale * {factor}

def transform_to_nki_inputs(inputs):
    return [np.reshape(inputs[0], (128, 32)), inputs[1]]

def transform_nki_outputs(k_res, ref):
    return [np.reshape(k_res, ref.shape)]
"""


@pytest.fixture
def cli(capsys: Any) -> Callable[..., tuple[int, str, str]]:
    """The command: exit status, standard output, standard error."""

    def command(*argv: Any) -> tuple[int, str, str]:
        status = main([str(item) for item in argv])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return command


@pytest.fixture
def kernel_file(tmp_path: Path, texts: Any) -> Path:
    path = tmp_path / "stream.py"
    path.write_text(texts.source_of(texts.stream()))
    return path


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    def write(name: str = "kernel", factor: float = 1.0, reference: str = REFERENCE) -> list[Any]:
        kernel, other = tmp_path / "scaled.py", tmp_path / "scaled_numpy.py"
        kernel.write_text(KERNEL.format(name=name))
        other.write_text(reference.replace("{factor}", str(factor)))
        return ["run", kernel, "--reference", other, "--json"]

    return write


@pytest.fixture
def tiled_file(tmp_path: Path) -> Path:
    """A kernel that copies tile by tile."""
    path = tmp_path / "tiled.py"
    path.write_text(TILED)
    return path
