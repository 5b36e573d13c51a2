"""What kernels can reach, in both namespaces, has the documented names and no others.

A kernel that finds another name knows that it is simulated, and may be another kernel on a device.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest

from nki_sim import ArraySpec, dtypes
from nki_sim.errors import KernelError
from nki_sim.frontend import compile_options, grids, isa, loops, registers, tensor, tile_size, types
from nki_sim.frontend.api import Kernel, jit
from nki_sim.frontend.argument_values import LanguageFunction
from nki_sim.frontend.entry import trace_bytes, trace_function
from nki_sim.frontend.kernel_values import KernelValue
from nki_sim.frontend.legacy import api as legacy_api
from nki_sim.frontend.legacy import (
    compiler,
    divided_index,
    grid,
    index,
    language,
    masks,
    tensors,
    tiles,
    typing,
)
from nki_sim.frontend.legacy import isa as legacy_isa
from nki_sim.frontend.legacy import loops as legacy_loops
from nki_sim.frontend.legacy.modules import MODULES as LEGACY_MODULES
from nki_sim.frontend.modules import MODULES, list_offered
from nki_sim.frontend.nki_tensor import NkiTensor

OF_TENSORS = "dtype itemsize ndim shape assert_shape astype broadcast_to expand_dims reshape view"
OF_GRIDS = (
    "data shape tile_shape element_shape index_step_elements is_remainder is_data_representable buffer dtype"
)


class Surface(NamedTuple):
    """The public names of a class beside those of Python's own types, and what documents them."""

    names: str
    source: str


SURFACES: dict[type, Surface] = {
    NkiTensor: Surface(
        "ap broadcast broadcast_to expand_dim flatten_dims get_pattern indirect is_contiguous is_indirect "
        "permute rearrange reshape reshape_dim select slice squeeze_dim vector_select view buffer dtype name "
        "ndim offset reinterpret_cast shape size strides data",
        "generated page nki.language.NkiTensor, SDK 2.32; data: SDK 2.33; broadcast_to: page nki.tensor",
    ),
    tiles.Tile: Surface(
        f"{OF_TENSORS} buffer name", "page nki.tensor; public kernels read what nl.ndarray was given"
    ),
    tensors.BlockTensor: Surface("dtype ndim shape buffer name", "page nki.tensor"),
    grids.NkiGrid: Surface(OF_GRIDS, "generated page nki.language.NkiGrid, SDK 2.33"),
    grids.NkiTileGrid: Surface(OF_GRIDS, "generated page nki.language.NkiTileGrid, SDK 2.33"),
    grids.NkiBlockGrid: Surface(
        f"{OF_GRIDS} block_shape", "generated page nki.language.NkiBlockGrid, SDK 2.33"
    ),
    registers.VirtualRegister: Surface("", "page nki.isa.register_alloc"),
    registers.NkiScalar: Surface("dtype", "generated page nki.isa.NkiScalar, SDK 2.33"),
    isa.NkiInstruction: Surface("depends_on", "release notes of NKI 0.3: order of instructions"),
    isa.NkiValidationError: Surface("", "page nki.isa"),
    LanguageFunction: Surface("", "functions of nki.language"),
    tile_size.TileSize: Surface(
        "pmax psum_fmax psum_fmax_bytes psum_bank_fmax psum_bank_fmax_bytes psum_num_banks psum_min_align "
        "gemm_stationary_fmax gemm_moving_fmax bn_stats_fmax sbuf_min_align sbuf_size_bytes sbuf_fmax "
        "sbuf_fmax_bytes total_available_sbuf_size",
        "page nki.language.tile_size",
    ),
    tensor.DynamicSlice: Surface("", "page nki.language.ds"),
    loops.no_reorder: Surface("", "page nki.language.no_reorder"),
    types.NKIObject: Surface("", "page nki.language.NKIObject"),
    types.TensorType: Surface("", "page nki.typing"),
    typing.tensor: Surface("", "page nki.typing"),
    typing.mutable_tensor: Surface("", "page nki.typing"),
    ArraySpec: Surface("shape dtype", "it stands in for an array"),
    dtypes.DType: Surface("dtype itemsize kind name", "as NumPy's types, which the language takes too"),
    Kernel: Surface("func with_schedule", "page nki.jit; release notes of NKI 0.3"),
    legacy_api.LegacyKernel: Surface("func with_schedule benchmark_result", "pages nki.jit, nki.benchmark"),
    index.Index: Surface("shape ndim", "page nki.language.arange: similar to numpy.arange"),
    index.IndexGrid: Surface("", "page nki.language.mgrid"),
    type(index.mgrid): Surface("", "page nki.language.mgrid"),
    index.ShiftedIndex: Surface("", "page of tensor indexing"),
    divided_index.DividedIndex: Surface("shape", "page nki.language.arange: similar to numpy.arange"),
    index.LoopIndex: Surface("", "page nki.language.affine_range"),
    masks.Mask: Surface("", "page of masks"),
    masks.Condition: Surface("", "page of masks"),
    type(masks.NEVER): Surface("", "page of masks"),
    legacy_loops.LoopReduction: Surface("", "page nki.language.loop_reduce"),
    compiler.Allocation: Surface("", "page nki.compiler"),
    type(compiler.sbuf): Surface("alloc mod_alloc auto_alloc", "page nki.compiler.sbuf"),
    type(compiler.psum): Surface("alloc mod_alloc auto_alloc", "page nki.compiler.psum"),
    grid.nc: Surface("", "page nki.language.nc"),
    grid.SpmdDim: Surface("", "page nki.language.spmd_dim"),
    tensors.par_dim: Surface("", "page nki.language.par_dim"),
    language.Function: Surface("", "functions of nki.language"),
    language.fp32: Surface("min", "page nki.language.fp32"),
    language.bfp16: Surface("min", "page nki.language.fp32"),
    legacy_isa.fp32: Surface("min", "page nki.language.fp32"),
    compile_options.CompileConfig: Surface(
        "address_rotation non_ssa_legalization dead_code_elim barrier_check nki_alloc_fallback prefetch_auto",
        "page nki.compiler.CompileConfig, SDK 2.33",
    ),
    compile_options.SpecializationConfig: Surface(
        "allow_nested_config_override", "page nki.compiler.SpecializationConfig, SDK 2.33"
    ),
}

BASES = frozenset({"View", "Tensor", "NkiGrid", "_MemorySpace"})
"""Classes that kernels meet as one of those derived from them."""


def list_public(value: Any) -> set[str]:
    """The public names of a class or a value, without those that Python's own bases have."""
    kind = value if isinstance(value, type) else type(value)
    inherited = {
        name for base in kind.__mro__ if not base.__module__.startswith("nki_sim") for name in dir(base)
    }
    return {name for name in dir(value) if not name.startswith("_")} - inherited


def surface_of(value: Any) -> Surface | None:
    return SURFACES.get(value if isinstance(value, type) else type(value))


def walk_modules(modules: dict[str, ModuleType]) -> Iterator[tuple[str, Any]]:
    """Every public name of the modules, with its value."""
    for name, module in modules.items():
        for member in dir(module):
            if not member.startswith("_"):
                yield f"{name}.{member}", getattr(module, member)


def all_subclasses(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from all_subclasses(one)


def make_current_values(x: Any) -> list[Any]:
    """One value of each kind that a kernel of `nki` can hold."""
    nl, nisa = MODULES["nki.language"], MODULES["nki.isa"]
    tile = nl.ndarray((128, 4), dtype=nl.int32, buffer=nl.sbuf)
    register = nisa.register_alloc(0)
    return [
        x, tile, tile[0:2], nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.psum), register,
        nl.ds(register, 2), nisa.scalar_load(tile[0:1, 0:1]), nisa.memset(dst=tile, value=0),
        nl.tiles(tile, tile_shape=(64, 2)), nl.blocks(tile, tile_shape=(64, 2), block_shape=(1, 2)),
        nl.no_reorder(), nl.float32, nl.add, nl.tile_size, MODULES["nki.typing"].tensor[2, 2],
    ]  # fmt: skip


def make_legacy_values(x: Any) -> list[Any]:
    """One value of each kind that a kernel of `neuronxcc.nki` can hold."""
    nl, nt = LEGACY_MODULES["neuronxcc.nki.language"], LEGACY_MODULES["neuronxcc.nki.typing"]
    rows = nl.arange(128)[:, None]
    tile = nl.load(x)
    blocks = nl.ndarray((2, nl.par_dim(128), 4), dtype=nl.float32, buffer=nl.sbuf)
    number = nl.load(x[0:1, 0:1], dtype=nl.int32)
    loop = next(nl.affine_range(2))
    return [
        x, tile, tile[0:2], blocks, blocks[0], rows, rows // 2, rows < 5, (rows < 5) & (rows > 1),
        (rows < 5) & False, nl.mgrid, nl.mgrid[0:2, 0:2], number[0, 0] + rows, loop, nl.par_dim(2),
        nl.loop_reduce(tile, op=nl.add, loop_indices=[loop]), nl.sbuf, nl.psum, nl.nc(2),
        nl.spmd_dim(2, nl.nc(2)), nl.sbuf.mod_alloc(base_addr=0), nl.add, nl.float32,
        nt.tensor[2, 2], nt.tensor[[2, 2], nl.float32],
    ]  # fmt: skip


def collect_values(decorate: Any, make_values: Any) -> list[Any]:
    """The values that a kernel holds while it is traced."""
    found: list[Any] = []

    def kernel(x: Any) -> Any:
        found.extend(make_values(x))
        return x

    with pytest.raises(KernelError):  # it returns its argument
        trace_function(decorate(kernel), [ArraySpec((128, 4), "float32")], target="trn2")
    return found


@pytest.fixture(scope="module")
def held() -> list[Any]:
    return [
        *collect_values(jit, make_current_values),
        *collect_values(legacy_api.jit, make_legacy_values),
        jit(len),
        legacy_api.jit(len),
    ]


def test_values_have_the_documented_names(held: list[Any]) -> None:
    for value in held:
        surface = surface_of(value)
        assert surface is not None, type(value)
        assert list_public(value) == set(surface.names.split()), type(value)


def test_no_kind_of_value_is_left_out(held: list[Any]) -> None:
    reached = {kind.__qualname__ for kind in all_subclasses(KernelValue)} - BASES
    assert reached <= {type(value).__qualname__ for value in held}
    assert reached <= {kind.__qualname__ for kind in SURFACES}


@pytest.mark.parametrize("modules", [MODULES, LEGACY_MODULES], ids=["nki", "neuronxcc"])
def test_modules_lead_to_the_documented_names(modules: dict[str, ModuleType]) -> None:
    """A module has other modules, functions, enumerations, and values of the classes in the table."""
    for name, value in walk_modules(modules):
        if isinstance(value, ModuleType):
            assert value in modules.values(), name
        elif isinstance(value, enum.Enum | enum.EnumType):
            kind = value if isinstance(value, enum.EnumType) else type(value)
            assert list_public(value) <= {*kind.__members__, "name", "value"}, name
        elif isinstance(value, FunctionType) or (callable(value) and not surface_of(value)):
            assert not [item for item in vars(value) if not item.startswith("_")], name
        else:
            surface = surface_of(value)
            assert surface is not None, name
            assert list_public(value) <= set(surface.names.split()), name


def test_modules_hold_what_they_offer_and_no_imports() -> None:
    for name, module in {**MODULES, **LEGACY_MODULES}.items():
        hidden = {"os", "sys", "inspect", "functools", "context", "Any", "annotations", "fail", "Recorder"}
        assert not hidden & vars(module).keys(), name
        assert all(not isinstance(vars(module)[item], ModuleType) for item in list_offered(module)), name


HEAD = """
from collections import namedtuple
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial, wraps

import nki
import nki.isa as nisa
import nki.language as nl


class Swallow:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return True

    def write(self, text):
        self.text = text


@contextmanager
def swallow():
    try:
        yield
    except Exception:
        pass


@dataclass
class Held:
    tile: object


def look(self):
    self._storage = self._refused
    return self._storage


class Own(nl.NKIObject):
    def __init__(self):
        self._count = 0

    def count(self):
        self._count += 1
        return self._count

    def describe(self):
        return self._fields_of()


class Teller:
    look = look

    def __init__(self, tile):
        self.tile = tile

    def __str__(self):
        self.text = str(self.tile)
        return self.text


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
"""

END = "    nisa.dma_copy(dst=out, src=tile)\n    return out\n"

LOOKS = [
    ("try:\n        tile.storage\n    except AttributeError:\n        pass", "unknown_name"),
    ("with Swallow():\n        tile.dims", "unknown_name"),
    ("match tile:\n        case nl.NkiTensor(lookup=_):\n            pass", "unknown_name"),
    ("try:\n        nl.context\n    except AttributeError:\n        pass", "unknown_name"),
    ("try:\n        nki.simulate_kernel\n    except AttributeError:\n        pass", "unsupported"),
    (
        "try:\n        tile[200]\n    except Exception as error:\n        str(error)",
        "tensor_access_out_of_bound",
    ),
    ("repr(tile)", "undefined_text"),
    ("str(nl.tile_size)", "undefined_text"),
    ("f'{tile!s}'", "undefined_text"),
    ("print(tile, file=Swallow())", "undefined_text"),
    ("print(tile, **{'file': Swallow()})", "undefined_text"),
    ("print(Teller(tile))", "undefined_text"),
    ("found: list[nisa.memset.cost] = 1", "unknown_name"),
    ("(lambda print: print(tile))(str)", "undefined_text"),
    ("Held(tile).__repr__()", "undefined_text"),
    ("try:\n        look(tile)\n    except AttributeError:\n        pass", "unknown_name"),
    ("try:\n        Teller.look(nl)\n    except AttributeError:\n        pass", "unknown_name"),
    ("with Swallow():\n        look(nl.NkiTensor)", "unknown_name"),
    ("with Swallow():\n        Own().describe()", "unknown_name"),
    ("try:\n        x.dtype.char\n    except AttributeError:\n        pass", "unknown_name"),
    (
        "for _ in range(1):\n        try:\n            nl.sbuf.device\n        finally:\n            break",
        "unknown_name",
    ),
    ("with Swallow():\n        nisa.memset.cost", "unknown_name"),
    ("match x.dtype:\n        case object(char=_):\n            pass", "unknown_name"),
    ("match nl.sbuf:\n        case object(device=_):\n            pass", "unknown_name"),
    ("match nl.add:\n        case object(device=_):\n            pass", "unknown_name"),
    ("with swallow():\n        nisa.engine.dsp", "unknown_name"),
    ("'%s' % tile", "undefined_text"),
    ("hasattr(tile, 'storage')", "unknown_name"),
    ("getattr(tile, 'numpy', None)", "unknown_name"),
]


@pytest.mark.parametrize(("look", "code"), LOOKS)
def test_a_judged_kernel_that_looks_further_is_refused_even_if_it_catches_that(look: str, code: str) -> None:
    source = f"{HEAD}    {look}\n{END}"
    args = [ArraySpec((128, 4), "float32")]
    assert trace_bytes(source, args=args)
    with pytest.raises(KernelError) as caught:
        trace_bytes(source, args=args, repeat=True)
    assert (caught.value.code, caught.value.line > 0) == (code, True)


def test_a_look_while_the_file_is_loaded_counts() -> None:
    attempt = "try:\n        nl.context\n    except Exception:\n        pass"
    look = f"def find_out(function):\n    {attempt}\n    return function\n"
    source = f"{HEAD}{END}".replace("@nki.jit", f"{look}\n@nki.jit\n@find_out")
    with pytest.raises(KernelError, match="unknown_name"):
        trace_bytes(source, args=[ArraySpec((128, 4), "float32")], repeat=True)


@pytest.mark.parametrize(
    "look",
    [
        "print(f'{tile.shape} {tile.dtype} {tile.buffer} {tile.name}')",
        "print(tile)",
        "print([tile, x], Held(tile), sep='; ')",
        "print(*[tile, tile[0:2]])",
        "print(f'{tile=} {tile!r} {tile!s:>90} {0.5:.2f} {x}')",
        "try:\n        {}['a']\n    except KeyError:\n        pass",
        "nl.add(tile, nl.add(tile, 1.0))",
        "assert Own().count() == 1",
    ],
)
def test_a_kernel_that_shows_or_catches_what_is_its_own_is_not_refused(look: str, capsys: Any) -> None:
    source = f"{HEAD}    {look}\n{END}"
    assert trace_bytes(source, args=[ArraySpec((128, 4), "float32")], repeat=True)
    assert ("print" in look) == ("(128, 4)" in capsys.readouterr().out)


CHANGES = [
    "nl.hbm = 0",
    "del nl.hbm",
    "nl.hbm += ''",
    "for nl.hbm in range(1):\n        pass",
    "with Swallow() as nl.hbm:\n        pass",
    "[0 for nl.hbm in range(1)]",
    "language = nki.language\n    language.hbm = 0",
    "nl.ndarray.count = 0",
    "held = nl.NkiTensor\n    held.reshape = None",
    "held = nl.MemoryRegion\n    held.count = 0",
    "held = nl.hbm\n    held.count = 0",
    "held = nl.tile_size\n    held.count = 0",
    "try:\n        nl.hbm = 0\n    except Exception:\n        pass",
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_kernel_imports_stays_as_it_is(change: str) -> None:
    """A change would reach the kernels that this process traces next."""
    args, before = [ArraySpec((128, 4), "float32")], {name: dict(vars(MODULES[name])) for name in MODULES}
    with pytest.raises(KernelError) as caught:
        trace_bytes(f"{HEAD}    {change}\n{END}", args=args, repeat=True)
    assert (caught.value.code, caught.value.line > 0) == ("forbidden_statement", True)
    assert {name: dict(vars(MODULES[name])) for name in MODULES} == before
    assert not hasattr(MODULES["nki.language"].ndarray, "count")


@pytest.mark.parametrize(
    "change",
    [
        "own = Own()\n    own.size = 1\n    own.size += 1\n    del own.size",
        "Own.size = 1",
        "look.size = 1",
        "swallow.size = 1",
        "kernel.size = 1",
        "@wraps(nl.add)\n    def own():\n        pass\n    own.size = 1",
        "own = namedtuple('own', 'size')\n    own.size = 1",
        "own = lru_cache(lambda: 1)\n    own.size = 1",
        "own = partial(min, 1)\n    own.size = 1",
    ],
)
def test_what_a_file_defines_it_may_change(change: str) -> None:
    assert trace_bytes(f"{HEAD}    {change}\n{END}", args=[ArraySpec((128, 4), "float32")], repeat=True)
