"""The operator table: one entry per `nki.isa` instruction that the simulator supports.

An entry gives the engines (the first is the default), the arguments in the order of the documented
signature, the rules and the cost. The front end builds `nisa.*` from it, the IR validates against it, and
`semantics` holds the arithmetic under the same name. To add an operator, add an entry here and its
arithmetic there. What is documented but absent here is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from nki_sim import arguments, costs, rules
from nki_sim.forms import HBM_BUFFERS, Form, Params, ParamValue
from nki_sim.rules import Breach, Rule
from nki_sim.targets import Target

Kind = Literal["out", "tensor", "tensor_or_float", "float", "bool", "alu", "activation", "reduce", "axes"]

COMMON_RULES: tuple[Rule, ...] = (
    rules.on_chip_operands, rules.gpsimd_sees_no_psum, arguments.scalar_dtypes, arguments.power,
)  # fmt: skip

_CHIP = frozenset({"sbuf", "psum"})
_DMA = HBM_BUFFERS | {"sbuf"}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: what it may be, where its tensor may live, and its default (None: may be left out)."""

    name: str
    kind: Kind
    required: bool = True
    default: ParamValue | None = None
    buffers: frozenset[str] = _CHIP

    @property
    def is_tensor(self) -> bool:
        return self.kind in {"out", "tensor", "tensor_or_float"}


@dataclass(frozen=True)
class Operator:
    """An instruction of the machine."""

    name: str
    engines: tuple[str, ...]
    arguments: tuple[Argument, ...]
    cost: Callable[[Form, Target], costs.Cost]
    rules: tuple[Rule, ...] = ()
    doc: str = ""

    @cached_property
    def by_name(self) -> dict[str, Argument]:
        return {argument.name: argument for argument in self.arguments}

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Roles that the instruction writes."""
        return frozenset(argument.name for argument in self.arguments if argument.kind == "out")

    def default_engine(self, params: Params) -> str:
        """Where it runs when the kernel does not say: the first engine, GpSimd for powers of tensors."""
        return "gpsimd" if "gpsimd" in self.engines and ("op", "power") in params else self.engines[0]

    def breaches(self, form: Form, target: Target) -> list[Breach]:
        """Every rule that a form of this operator breaks on a target; shape rules first."""
        return [breach for rule in (*COMMON_RULES, *self.rules) for breach in rule(form, target)]


def _out(name: str = "dst", buffers: frozenset[str] = _CHIP, *, required: bool = True) -> Argument:
    return Argument(name, "out", required=required, buffers=buffers)


def _in(name: str, buffers: frozenset[str] = _CHIP) -> Argument:
    return Argument(name, "tensor", buffers=buffers)


def _either(name: str, default: float | None = None, *, required: bool = True) -> Argument:
    return Argument(name, "tensor_or_float", required=required, default=default)


def _flag(name: str) -> Argument:
    return Argument(name, "bool", required=False, default=False)


def _op(name: str, kind: Kind = "alu", *, required: bool = True) -> Argument:
    return Argument(name, kind, required=required)


_SBUF = frozenset({"sbuf"})
_PSUM = frozenset({"psum"})

_ALL = (
    Operator(
        "dma_copy", ("dma",), (_out(buffers=_DMA), _in("src", _DMA)), costs.dma, (rules.same_elements,),
        "move between HBM and SBUF, converting types",
    ),
    Operator(
        "dma_transpose", ("dma",),
        (_out(buffers=_DMA), _in("src", _DMA), Argument("axes", "axes", required=False)),
        costs.dma_transpose, (rules.dma_transpose_axes, rules.same_dtype),
        "two-dimensional transpose on the way",
    ),
    Operator(
        "tensor_copy", ("vector", "scalar", "gpsimd"), (_out(), _in("src")), costs.copy_like,
        (rules.same_shape, arguments.scalar_engine_copy), "copy on chip, converting types",
    ),
    Operator(
        "memset", ("vector", "gpsimd"), (_out(), Argument("value", "float")), costs.memset,
        (arguments.memset_value,),
        "fill with a constant",
    ),
    Operator(
        "nc_matmul", ("tensor",),
        (
            _out(buffers=_PSUM), _in("stationary", _SBUF), _in("moving", _SBUF),
            _flag("is_stationary_onezero"), _flag("is_moving_onezero"), _flag("is_transpose"),
            _flag("accumulate"),
        ),
        costs.matmul, (rules.matmul_shapes, rules.matmul_dtypes, rules.one_bank),
        "dst[M, N] (+)= stationary[K, M].T @ moving[K, N]",
    ),
    Operator(
        "nc_transpose", ("tensor", "vector"), (_out(), _in("data")), costs.transpose,
        (rules.transpose_shapes, rules.same_dtype, rules.one_bank), "transpose partitions and free elements",
    ),
    Operator(
        "tensor_tensor", ("vector", "gpsimd"), (_out(), _in("data1"), _in("data2"), _op("op")),
        costs.tensor_tensor, (rules.same_shape, rules.not_both_psum),
        "data1 op data2",
    ),
    Operator(
        "tensor_scalar", ("vector", "scalar"),
        (
            _out(), _in("data"), _op("op0"), _either("operand0"), _flag("reverse0"),
            _op("op1", required=False), _either("operand1", required=False), _flag("reverse1"),
        ),
        costs.copy_like, (rules.same_shape, arguments.pairs, arguments.scalar_engine_ops),
        "(data op0 operand0) op1 operand1",
    ),
    Operator(
        "scalar_tensor_tensor", ("vector",),
        (
            _out(), _in("data"), _op("op0"), _either("operand0"), _op("op1"), _in("operand1"),
            _flag("reverse0"), _flag("reverse1"),
        ),
        costs.scalar_tensor_tensor, (rules.same_shape,),
        "(data op0 operand0) op1 operand1, operand1 a tensor",
    ),
    Operator(
        "tensor_scalar_reduce", ("vector",),
        (
            _out(), _in("data"), _op("op0"), _either("operand0"), _op("reduce_op", "reduce"),
            _out("reduce_res"), _flag("reverse0"),
        ),
        costs.reducing, (rules.same_shape,),
        "tensor_scalar and its sum (or max...) over the free axis",
    ),
    Operator(
        "tensor_reduce", ("vector",),
        (_out(), _op("op", "reduce"), _in("data"), Argument("axis", "axes"), _flag("negate")),
        costs.reduce, (rules.reduce_axes,),
        "reduce the innermost free axes",
    ),
    Operator(
        "tensor_tensor_scan", ("vector",),
        (
            _out(), _in("data0"), _in("data1"), _either("initial"), _op("op0"), _op("op1"),
            _flag("reverse0"), _flag("reverse1"),
        ),
        costs.scan, (rules.same_shape, rules.not_both_psum),
        "res[i] = (data0[i] op0 res[i-1]) op1 data1[i]",
    ),
    Operator(
        "activation", ("scalar",),
        (
            _out(), _op("op", "activation"), _in("data"), _either("bias", required=False),
            _either("scale", 1.0, required=False), _op("reduce_op", "reduce", required=False),
            _out("reduce_res", required=False),
        ),
        costs.activation, (rules.same_shape, arguments.pairs, arguments.activation_operands),
        "op(data * scale + bias), optionally with its sum",
    ),
    Operator(
        "activation_reduce", ("scalar",),
        (
            _out(), _op("op", "activation"), _in("data"), _op("reduce_op", "reduce"), _out("reduce_res"),
            _either("bias", required=False), _either("scale", 1.0, required=False),
        ),
        costs.activation, (rules.same_shape, arguments.pairs, arguments.activation_operands),
        "activation and its sum over the free axis",
    ),
    Operator(
        "reciprocal", ("vector",), (_out(), _in("data")), costs.reciprocal, (rules.same_shape,), "1 / data",
    ),
)  # fmt: skip

OPERATORS: dict[str, Operator] = {operator.name: operator for operator in _ALL}

# Documented for trn1 and trn2, not supported yet; the front end refuses them by name.
UNSUPPORTED = frozenset({
    "activate2", "affine_select", "bn_aggr", "bn_stats", "core_barrier", "dma_compute", "dropout",
    "exponential", "iota", "local_gather", "max8", "nc_find_index8", "nc_match_replace8", "nc_matmul_mx",
    "nc_n_gather", "nc_stream_shuffle", "nonzero_with_count", "quantize_mx", "rand2", "rand_get_state",
    "rand_set_state", "range_select", "register_alloc", "register_load", "register_move", "register_store",
    "rng", "scalar_load", "scalar_store", "select_reduce", "sendrecv", "sequence_bounds", "set_rng_seed",
    "tensor_copy_predicated", "tensor_partition_reduce", "tensor_scalar_cumulative", "topk",
})  # fmt: skip
