"""Calls with arrays: arguments and outputs of every kind, in-place writes, declarations, modules around."""

from __future__ import annotations

import enum
import functools
import importlib.util
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import nki_sim
from nki_sim import ArraySpec
from nki_sim.errors import KernelError, TargetError
from nki_sim.frontend import api as nki
from nki_sim.frontend import isa as nisa
from nki_sim.frontend import language as nl
from nki_sim.frontend import types as nt
from nki_sim.frontend.entry import trace_function
from nki_sim.frontend.modules import MODULES, install_modules
from nki_sim.frontend.simulate import predict_latency_us
from nki_sim.program.ir import Program
from tests.support import torch_like

X = np.arange(32, dtype=np.float32).reshape(4, 8)


def copied(x: Any, factor: float = 1.0) -> Any:
    here, out = nl.load(x), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.multiply(here, factor))
    return out


def test_a_kernel_whose_loops_data_decide_has_no_latency() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        out = copied(x)
        rounds, last = nl.ndarray((1, 1), nl.int32, buffer=nl.sbuf), nisa.register_alloc()
        nisa.memset(rounds, 3)
        nisa.register_load(last, rounds)

        def body(_: Any) -> None:
            nisa.memset(rounds, 3)

        nl.fori_loop(0, last, body)
        return out

    assert predict_latency_us(nki.jit(copied), X) > 0.0
    with pytest.raises(KernelError, match=r"test_simulate\.py:\d+: latency_unknown") as caught:
        predict_latency_us(kernel, X)
    assert caught.value.code == "latency_unknown"
    assert caught.value.line == kernel.func.__code__.co_firstlineno + 10


# -- arguments and outputs -----------------------------------------------------------------------


class Mode(enum.Enum):
    fast = 1


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Weights:
    first: Any
    scale: float = 2.0


class Options(nl.NKIObject):
    bias: Any
    name: str = "plain"
    level = 3


def test_arguments_may_hold_arrays_anywhere() -> None:
    @nki.jit
    def kernel(x: Any, pair: Any, weights: Any, options: Any, *rest: Any, mode: Any, table: Any) -> Any:
        assert (mode, options.name, options.level, rest[1]) == (Mode.fast, "plain", 3, None)
        found = [x, pair.left, pair.right[0], weights.first, options.bias, rest[0], table["a"]]
        return [copied(tensor, weights.scale) for tensor in found]

    arrays = [X + at for at in range(7)]
    arguments = (arrays[0], Pair(arrays[1], [arrays[2]]), Weights(arrays[3]), Options(bias=arrays[4]))
    found = nki.simulate(kernel)(
        *arguments, arrays[5], None, mode=Mode.fast, table={"a": arrays[6], "b": "text"}
    )
    assert all(np.array_equal(have, 2 * array) for have, array in zip(found, arrays, strict=True))
    assert arguments[2].first is arrays[3]


def test_outputs_keep_the_structure_they_are_returned_in() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        return {"a": copied(x), "b": [Pair(copied(x, 2.0), None)], "c": copied(x).reshape((8, 4))}

    found = nki.simulate(kernel)(X)
    assert found["b"][0].right is None
    assert np.array_equal(found["b"][0].left, 2 * X)
    assert np.array_equal(found["c"], X.reshape(8, 4))


def test_arrays_that_a_kernel_writes_are_changed_in_place() -> None:
    @nki.jit
    def kernel(x: Any, y: Any) -> Any:
        nl.store(y, nl.add(nl.load(x), nl.load(y)))

    y = X.copy()
    assert nki.simulate(kernel)(X, y) is None
    assert np.array_equal(y, 2 * X)
    assert np.array_equal(nki.simulate(nki.jit(lambda x, y: (kernel(x, y), y)[1]))(X, y), 3 * X)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "int16", "uint8"])
def test_arrays_come_back_in_their_type(dtype: str) -> None:
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    found = nki.simulate(nki.jit(copied))(X.astype(kind))
    assert found.dtype == kind
    assert np.array_equal(found, X.astype(kind))


def test_torch_tensors_go_in_and_come_out(monkeypatch: Any) -> None:
    if importlib.util.find_spec("torch") is None:
        monkeypatch.setitem(sys.modules, "torch", torch_like.module())
    torch = importlib.import_module("torch")
    for kind in (torch.float32, torch.bfloat16, torch.int32):
        found = nki.simulate(nki.jit(copied))(torch.from_numpy(X).to(kind))
        assert found.dtype is kind
        assert torch.equal(found, torch.from_numpy(X).to(kind))


def test_a_call_with_arrays_needs_to_be_asked_for(monkeypatch: Any) -> None:
    kernel = nki.jit(copied)
    monkeypatch.delenv("NKI_SIMULATOR", raising=False)
    with pytest.raises(KernelError, match="there is no device"):
        kernel(X)
    monkeypatch.setenv("NKI_SIMULATOR", "1")
    assert np.array_equal(kernel(X), X)


def test_the_target_is_that_of_the_environment(monkeypatch: Any) -> None:
    found = []

    @nki.jit
    def kernel(x: Any) -> Any:
        found.append(nisa.get_nc_version())
        return copied(x)

    for name in ("trn1", "gen3"):
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", name)
        nki.simulate(kernel)(X)
    assert found == [nisa.nc_version.gen2, nisa.nc_version.gen3]
    assert nl.tile_size.pmax == 128
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn9")
    with pytest.raises(TargetError, match="trn9"):
        nki.simulate(kernel)(X)


def refused(kernel: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(KernelError) as caught:
        nki.simulate(kernel)(*args, **kwargs)
    return caught.value.code


def test_what_calls_refuse() -> None:
    @nki.jit
    def shaped(x: Any) -> Any:
        return copied(x)

    shaped.func.__annotations__["x"] = nt.tensor[4, "n"]
    assert np.array_equal(nki.simulate(shaped)(X), X)
    assert refused(shaped, X[:2]) == "annotation_shape_mismatch"
    assert refused(shaped, X, X) == "arguments"
    assert refused(shaped, y=X) == "arguments"
    assert refused(shaped, X.astype(np.float64)) == "dtype"
    assert refused(lambda x: 3, X) == "output_type"
    assert refused(lambda x: [], X) == "no_output"
    assert refused(lambda x: None, X) == "no_output"
    assert refused(lambda x: copied(x)[0:2], X) == "output_buffer"
    assert refused(lambda x: x, X) == "output_buffer"
    assert (
        refused(lambda x: nl.ndarray((4, 4), nl.float32, nl.shared_hbm), X) == "tensor_output_not_written_to"
    )
    assert refused(lambda x: nki.benchmark(x), X) == "unsupported"  # noqa: PLW0108  the name is refused in the call


# -- where errors point --------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Any]:
    """A kernel file that calls a helper of another file, imported with the namespace in place."""
    (tmp_path / "helper.py").write_text(
        "import nki.isa as nisa\n\n\ndef fill(tile):\n    nisa.memset(tile, 'x')\n"
    )
    (tmp_path / "kernel.py").write_text(
        textwrap.dedent("""
        import nki, helper
        import nki.language as nl
        import nki.isa.constants as constants
        from nki.collectives import ReplicaGroup

        WIDTH = nl.tile_size.pmax

        @nki.jit
        def kernel(x):
            assert constants.oob_mode.skip.name == "skip"
            scratch = nl.ndarray((4, WIDTH), nl.float32, buffer=nl.sbuf)
            helper.fill(scratch)
    """)
    )
    with pytest.MonkeyPatch.context() as patch, install_modules(MODULES):
        patch.syspath_prepend(str(tmp_path))
        spec = importlib.util.spec_from_file_location("kernel_file", tmp_path / "kernel.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module.kernel, tmp_path


def test_errors_name_the_kernels_line_and_the_place_in_another_file(files: Any) -> None:
    kernel, _ = files
    with pytest.raises(KernelError) as caught:
        trace_function(kernel, [X])
    assert (caught.value.code, caught.value.line) == ("argument_type", 13)
    assert caught.value.message.endswith("[helper, line 5]")


def test_tensors_have_the_names_that_the_file_gives_them() -> None:
    def kernel(x: Any) -> Any:
        named_here = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=named_here, src=x)
        return named_here

    traced = trace_function(nki.jit(kernel), [ArraySpec((4, 8), "float32")])
    program = Program.from_bytes(traced.program)
    assert [program.site(number).name for number in (*program.inputs, *program.outputs)] == [
        "x",
        "named_here",
    ]


# -- declarations --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (130, 40), (2, 3, 7), (7000,), (1, 5000)])
def test_tensors_in_hbm_are_filled_everywhere(shape: tuple[int, ...]) -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        one = nl.ones(shape, nl.float32, buffer=nl.shared_hbm)
        return one, nl.full(shape, 2.5, nl.bfloat16, buffer=nl.shared_hbm), nl.zeros_like(one)

    found = nki.simulate(kernel)(X)
    assert [array.shape for array in found] == [shape] * 3
    assert [np.unique(array.astype(np.float32)).tolist() for array in found] == [[1.0], [2.5], [0.0]]


def test_constants_are_part_of_the_program() -> None:
    table = np.arange(12, dtype=np.int16).reshape(3, 4)

    @nki.jit
    def kernel(x: Any) -> Any:
        constant, out = nl.shared_constant(table), nl.ndarray((3, 4), nl.int16, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=constant)
        identity, result = (
            nl.shared_identity_matrix(4, nl.bfloat16),
            nl.empty_like(x, nl.bfloat16, nl.shared_hbm),
        )
        nisa.dma_copy(dst=result[:, 0:4], src=identity)
        nisa.dma_copy(dst=result[:, 4:8], src=nl.shared_identity_matrix(4, dst=nl.ndarray((4, 4), nl.uint8)))
        return out, result

    found, identities = nki.simulate(kernel)(X)
    assert np.array_equal(found, table)
    assert np.array_equal(identities.astype(np.float32), np.concatenate([np.eye(4)] * 2, axis=1))


def test_tiles_may_be_placed_by_hand() -> None:
    @nki.jit
    def kernel(x: Any) -> Any:
        here = nl.ndarray(x.shape, x.dtype, buffer=nl.sbuf, address=(32, 64))
        nisa.dma_copy(dst=here, src=x)
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=out, src=here)
        return out

    program = Program.from_bytes(trace_function(kernel, [X]).program)
    assert [site.address for site in program.sites if site.buffer == "sbuf"] == [(32, 64)]
    assert np.array_equal(nki.simulate(kernel)(X), X)


def test_hints_are_taken_and_change_nothing() -> None:
    @nki.jit(mode="trace")
    def kernel(x: Any) -> Any:
        here, out = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        first = nisa.dma_copy(
            here, x, name="in", priority=2, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.sync
        )
        nisa.dma_copy(out, here, name="out").depends_on(first)
        nl.device_print("here", here)
        with nl.no_reorder():
            nl.static_range(3)
        return out

    assert np.array_equal(nki.simulate(kernel.with_schedule([("out", ["in"])]))(X), X)
    with pytest.raises(KernelError, match="schedule"):
        kernel.with_schedule([("out", 3)])
    assert refused(lambda x: nisa.memset(x, 0).depends_on(3), X) in {"argument_type", "unsupported_memory"}


def test_classes_of_kernels_take_their_fields_by_place_or_name() -> None:
    made = Options(1, name="other")
    assert (made.bias, made.name, made.level, Options().bias) == (1, "other", 3, None)
    with pytest.raises(TypeError, match="bias"):
        Options(colour=3)


NESTED = """
import nki
import nki.language as nl
import nki.isa as nisa
from nki.simulator import simulate_kernel

@nki.jit
def inner(x):
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(out, x)
    return out

@nki.jit
def kernel(x):
    return {call}
"""


@pytest.mark.parametrize("call", ["simulate_kernel(inner, [x])", "nki.simulate(inner)(x)"])
def test_a_kernels_own_tensors_cannot_be_simulated_inside_it(call: str) -> None:
    with pytest.raises(KernelError) as caught:
        nki_sim.trace(NESTED.format(call=call), args=[ArraySpec((128, 64), "float32")])
    assert (caught.value.code, caught.value.line) == ("nested_simulation", 15)
    assert "call the other kernel itself" in caught.value.hint


class Scaled:
    """A kernel that is an object."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return copied(x, self.factor)


@pytest.mark.parametrize(
    "kernel", [Scaled(2.0), functools.partial(copied, factor=2.0), functools.partial(Scaled(2.0))]
)
def test_whatever_can_be_called_is_a_kernel(kernel: Any) -> None:
    assert np.array_equal(nki.simulate(kernel)(X), 2 * X)
