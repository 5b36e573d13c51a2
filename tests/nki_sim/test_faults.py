"""Errors where a person runs a kernel: they name its file, and their traceback ends at its line."""

from __future__ import annotations

import bdb
import importlib.util
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nki_sim import eager
from nki_sim.errors import KernelError
from nki_sim.frontend import api as nki
from nki_sim.frontend import simulate
from nki_sim.frontend.modules import MODULES, install_modules

X = np.arange(32, dtype=np.float32).reshape(4, 8)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, bdb.BdbQuit])
def test_an_interrupt_from_the_keyboard_stays_one(raised: type[BaseException]) -> None:
    def kernel(x: Any) -> Any:
        raise raised

    for run in (nki.simulate(kernel), lambda x: eager(kernel, [x])):
        with pytest.raises(KeyboardInterrupt):
            run(X)


def test_a_test_may_be_skipped_inside_a_kernel() -> None:
    def kernel(x: Any) -> Any:
        pytest.skip("not here")

    with pytest.raises(pytest.skip.Exception, match="not here"):
        nki.simulate(kernel)(X)


POINTING = """
import nki, nki.isa as nisa, nki.language as nl

@nki.jit
def called(x):
    nisa.memset(nl.ndarray((4, 8), nl.float32), "x")  # called

def divided(n):
    return 1 // (n - 4)  # raised

@nki.jit
def raised(x):
    return divided(x.shape[0])

@nki.jit
def checked(x):
    return nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)  # checked

@nki.jit
def ran(x):
    index = nl.load(x[0:1, 1:2], dtype=nl.int32)
    out = nl.ndarray((4, 8), nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x.ap([[8, 4], [1, 8]], 0, scalar_offset=index))  # ran
    return out

@nki.jit  # bound
def bound(x, y):
    return x

@nki.jit
def kept(x):
    return x
"""


@pytest.fixture
def pointing(tmp_path: Path) -> Iterator[Any]:
    """The kernels of a file in which the line of each error carries the kernel's name."""
    file = tmp_path / "pointing.py"
    file.write_text(POINTING)
    with install_modules(MODULES):
        spec = importlib.util.spec_from_file_location("pointing", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


@pytest.mark.parametrize("name", ["called", "raised", "checked", "ran", "bound"])
@pytest.mark.parametrize("eagerly", [False, True])
def test_errors_point_at_the_line_of_the_kernels_file(pointing: Any, name: str, eagerly: bool) -> None:
    kernel = getattr(pointing, name)
    wanted = next(at for at, text in enumerate(POINTING.splitlines(), 1) if text.endswith(f"# {name}"))
    with pytest.raises(KernelError) as caught:
        eager(kernel, [X]) if eagerly else nki.simulate(kernel)(X)
    assert str(caught.value).startswith(f"{pointing.__file__}:{wanted}: {caught.value.code}: ")
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert (frames[-1].filename, frames[-1].lineno) == (pointing.__file__, wanted)
    assert str(frames[-1].line).endswith(f"# {name}")
    inside = [frame.name for frame in frames if frame.filename == pointing.__file__]
    assert inside == (["raised", "divided"] if name == "raised" else [name])
    package = str(Path(simulate.__file__).parents[1])
    assert eagerly or not any(frame.filename.startswith(package) for frame in frames)


def test_a_returned_argument_is_named_as_one(pointing: Any) -> None:
    with pytest.raises(KernelError, match="returns its argument x, which it does not write"):
        nki.simulate(pointing.kept)(X)
