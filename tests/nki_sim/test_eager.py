"""Eager runs: values at hand while the kernel runs, and the results of tracing and running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nki_sim import eager
from nki_sim.errors import KernelError
from nki_sim.running import numerics

LOOKING = """
from nki_sim import read_values

seen = []

@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    print(t)
    nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=2.0)
    nl.device_print("twice", t[0:1])
    assert (read_values(t)[:, 0:2] == 2 * read_values(x)[:, 0:2]).all()
    nisa.dma_copy(dst=out, src=t)
    return out
"""

LEGACY = """
from nki_sim import read_values
import neuronxcc.nki as nki
import neuronxcc.nki.language as nl

@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.load(x)
    zeros = nl.zeros(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    y = nl.exp(t)
    assert (read_values(zeros) == 0).all()
    nl.device_print("y", y[0:1, 0:1])
    z = nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.sbuf)
    z[...] = nl.add(y, t)
    nl.store(out, z)
    return out
"""

COUNTING = """
from nki_sim import read_values

@nki.jit
def kernel(x, n):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=t, src=x)
    count = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=count, src=n)
    register = nisa.register_alloc()
    nisa.register_load(register, count)
    shown = []

    def body(i):
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=1.0)
        shown.append(repr(t))

    nl.fori_loop(0, register, body)
    assert "[" not in shown[0].partition(")")[2]
    print(read_values(t)[0, 0])
    nisa.dma_copy(dst=out, src=t)
    return out
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_values_show_while_the_kernel_runs(
    tmp_path: Path, texts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = eager(written(tmp_path / "k.py", texts.source_of(LOOKING)), [x])
    assert np.array_equal(found, 2 * x)
    assert capsys.readouterr().out == (
        "<tensor t (2, 3) float32 in sbuf>\n[[0. 1. 2.]\n [3. 4. 5.]]\ntwice [[0. 2. 4.]]\n"
    )


def test_while_tracing_there_are_no_values(tracing: Any) -> None:
    with pytest.raises(KernelError) as caught:
        tracing(LOOKING, np.ones((2, 3), np.float32))
    assert caught.value.code == "no_values"


def test_legacy_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.zeros((2, 3), np.float32)
    found = eager(written(tmp_path / "k.py", LEGACY), [x])
    assert np.array_equal(found, np.ones((2, 3), np.float32))
    assert capsys.readouterr().out == "y [[1.]]\n"


def test_loops_of_the_device_run_when_they_are_closed(
    tmp_path: Path, texts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    x, n = np.zeros((2, 3), np.float32), np.array([[4]], np.int32)
    found = eager(written(tmp_path / "k.py", texts.source_of(COUNTING)), [x, n])
    assert np.array_equal(found, np.full((2, 3), 4, np.float32))
    assert capsys.readouterr().out == "4.0\n"


def test_results_are_those_of_tracing_and_running(tmp_path: Path, tracing: Any, texts: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, dtype=np.float32) for shape in ((128, 256), (256, 512)))
    found = eager(written(tmp_path / "k.py", texts.source_of(texts.matmul)), [a, b])
    (wanted,) = numerics.run(tracing(texts.matmul, a, b), [a, b])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


def test_functions_of_this_process() -> None:
    def kernel(x: Any) -> Any:
        from nki_sim.frontend import isa, language

        out = language.ndarray(x.shape, dtype=x.dtype, buffer=language.shared_hbm)
        isa.dma_copy(dst=out, src=x)
        return [out]

    x = np.ones((2, 3), np.float32)
    (found,) = eager(kernel, [x])
    assert np.array_equal(found, x)


def test_broken_rules_are_errors_too(tmp_path: Path, texts: Any) -> None:
    text = """
    @nki.jit
    def kernel(x):
        return nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    """
    with pytest.raises(KernelError) as caught:
        eager(written(tmp_path / "k.py", texts.source_of(text)), [np.ones((2, 3), np.float32)])
    assert caught.value.code == "tensor_output_not_written_to"


def test_quitting_the_debugger_ends_the_command_quietly(tmp_path: Path, texts: Any) -> None:
    kernel = written(tmp_path / "k.py", texts.source_of("@nki.jit\ndef kernel(x):\n    breakpoint()\n"))
    argv = [sys.executable, "-m", "nki_sim.cli", "run", str(kernel), "--arg", "4x4", "--eager"]
    done = subprocess.run(argv, input="quit\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
