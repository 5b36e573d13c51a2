"""Register and loop instructions, which the engines' sequencers execute.

A register is a tensor of one integer in the buffer `register`. The front end unrolls loops whose bounds are
known while tracing; other loops are a `loop_begin` and a `loop_end` around their body.
"""

from __future__ import annotations

from nki_sim.forms import HBM_BUFFERS
from nki_sim.operators import costs
from nki_sim.operators.model import Argument, Operator, out, tensor
from nki_sim.operators.rules import shapes as rules

REGISTER = frozenset({"register"})
MEMORY = HBM_BUFFERS | {"sbuf"}


# If the cores of a launch synchronise in a loop, the loop has one condition per core.
_CONDITIONS = tensor("condition", REGISTER), Argument("other", "tensor", required=False, buffers=REGISTER)


def _int_or_register(name: str) -> Argument:
    return Argument(name, "tensor_or_int", buffers=REGISTER)


ENTRIES = (
    Operator(
        "register_move", ("sync",), (out(buffers=REGISTER), _int_or_register("src")), costs.sync, (),
        "put an integer or the value of another register into a register",
    ),
    Operator(
        "register_load", ("sync",), (out(buffers=REGISTER), tensor("src", MEMORY)),
        costs.register_access, (rules.one_element,), "read one element of memory into a register",
    ),
    Operator(
        "register_store", ("sync",), (out(buffers=MEMORY), tensor("src", REGISTER)),
        costs.register_access, (rules.one_element,), "write a register to one element of memory",
    ),
    Operator(
        "register_alu", ("sync",),
        (
            out(buffers=REGISTER), _int_or_register("left"), _int_or_register("right"),
            Argument("op", "register_alu"),
        ),
        costs.sync, (rules.register_widths,), "left op right, wrapping at the width of dst", internal=True,
    ),
    Operator(
        "loop_begin", ("sync",), _CONDITIONS, costs.sync, (),
        "go on behind the matching loop_end when the register is 0", internal=True,
    ),
    Operator(
        "loop_end", ("sync",), _CONDITIONS, costs.sync, (),
        "go back behind the matching loop_begin when the register is not 0", internal=True,
    ),
)  # fmt: skip
