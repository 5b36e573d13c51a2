"""Instructions for counting patterns, and for selection by affine predicates, index ranges and masks."""

from __future__ import annotations

from nki_sim.dtypes import DTYPES
from nki_sim.functions import COMPARE
from nki_sim.operators import costs, costs_search
from nki_sim.operators.model import SBUF, Argument, Operator, choice, fixed_roles, flag, out, scalar, tensor
from nki_sim.operators.rules import search as rules_search
from nki_sim.operators.rules import shapes as rules
from nki_sim.operators.state import reduce_regs

REDUCE_COMMANDS = ("idle", "reset", "reduce", "reset_reduce")


def int_arg(name: str, default: int | None = None, *, required: bool = False) -> Argument:
    return Argument(name, "int", required=required, default=default)


def _compare_argument(name: str, *names: str) -> Argument:
    return Argument(name, "choice", choices=tuple(sorted(names)))


_SELECTED = tuple(sorted(DTYPES.keys() - {"tfloat32", "int32", "uint32"}))
_ORDERED = COMPARE - {"not_equal"}
_MAXIMUM = Argument("reduce_op", "reduce", required=False, default="maximum")

ENTRIES = (
    Operator(
        "iota", ("gpsimd",),
        (
            out(buffers=SBUF), Argument("pattern", "pattern"), int_arg("offset", 0),
            int_arg("channel_multiplier", 0),
        ),
        costs.elementwise,
        (rules_search.affine_pattern, rules_search.fits_int32("offset", "channel_multiplier")),
        "offset + channel * channel_multiplier + the steps of the pattern",
    ),
    Operator(
        "affine_select", ("gpsimd",),
        (
            out(buffers=SBUF), Argument("pattern", "pattern"), int_arg("channel_multiplier", required=True),
            tensor("on_true_tile", SBUF), Argument("on_false_value", "float"),
            choice("cmp_op", *sorted(COMPARE), default="equal"), int_arg("offset", 0),
        ),
        costs.elementwise,
        (
            rules.same_shape, rules_search.affine_pattern,
            rules_search.fits_int32("offset", "channel_multiplier"),
        ),
        "on_true_tile where iota's value compares true with 0, else on_false_value",
    ),
    Operator(
        "range_select", ("vector",),
        (
            out(), tensor("on_true_tile"), _compare_argument("comp_op0", *_ORDERED),
            _compare_argument("comp_op1", *_ORDERED),
            tensor("bound0"), tensor("bound1"),
            choice("reduce_cmd", *REDUCE_COMMANDS, default="reset_reduce"),
            out("reduce_res", required=False), _MAXIMUM, int_arg("range_start", 0),
            Argument("on_false_value", "float", required=False, default=rules_search.FP32_MIN), reduce_regs(),
        ),
        costs.elementwise,
        (
            rules_search.since_generation(3), rules.same_shape, rules_search.float_dtype("on_true_tile"),
            rules_search.dtype_in("bound0", "float32"), rules_search.dtype_in("bound1", "float32"),
            rules_search.fill_is_fp32_min, rules_search.indices_are_exact, rules_search.reduces_by_maximum,
        ),
        "elements whose index compares true with both bounds, else the least float32; and their maximum",
    ),
    Operator(
        "select_reduce", ("vector",),
        (
            out(), tensor("predicate"), tensor("on_true"), scalar("on_false"),
            out("reduce_res", required=False), choice("reduce_cmd", *REDUCE_COMMANDS, default="idle"),
            _MAXIMUM, flag("reverse_pred"), reduce_regs(),
        ),
        costs.scan,
        (
            rules.same_shape, rules.not_both_psum("on_true", "predicate"),
            rules_search.dtype_in("predicate", "bool_", "int8", "uint8", "int16", "uint16"),
            rules_search.dtype_in("on_true", *_SELECTED),
            rules_search.float_dtype("reduce_res"), rules_search.reduces_by_maximum,
        ),
        "on_true where the predicate is not 0, else on_false; and their maximum",
    ),
    Operator(
        "tensor_copy_predicated", ("vector",),
        (out(), scalar("src"), tensor("predicate"), flag("reverse_pred")), costs_search.copy_predicated,
        (
            rules.same_shape, rules.not_both_psum("src", "predicate"),
            rules_search.equal_dtypes("src", "dst"),
            rules_search.dtype_in("predicate", "bool_", "uint8", "uint16", "uint32"),
        ),
        "copy src where the predicate is not 0, leave dst elsewhere", partial=fixed_roles("dst"),
    ),
)  # fmt: skip
