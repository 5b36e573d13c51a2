"""Engine memory that outlives an instruction, and what instructions do to it.

ScalarE and VectorE have accumulation registers, `reduce_regs`: one float32 per lane, which a command resets,
adds to or loads. VectorE and GpSimd have a random number generator with a state per lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from nki_sim import xorwow
from nki_sim.dtypes import V4
from nki_sim.forms import Form
from nki_sim.operators.control import REGISTER
from nki_sim.operators.model import Argument, Effect, Operator
from nki_sim.operators.rules.shapes import Breach
from nki_sim.targets import Target
from nki_sim.xorwow import LANES


@dataclass(frozen=True, slots=True)
class StateLayout:
    """What one lane holds; `initial` is the content when a kernel begins, None if undefined."""

    width: int
    dtype: str
    initial: bytes | None = None


_ROLES = frozenset({"reduce_regs", "rng_state"})


@cache
def state_layout(role: str, engine: str, generation: int) -> StateLayout:
    """The memory of that name in an engine; from NeuronCore-v4 on VectorE has four generators in a lane."""
    if role == "reduce_regs":
        return StateLayout(1, "float32")
    states = xorwow.VECTOR_STATES if engine == "vector" and generation >= V4 else 1
    return StateLayout(states * xorwow.WORDS, "uint32", xorwow.pack_words(xorwow.seed_state(0, states)))


_EFFECTS = {"idle": (False, True), "reduce": (True, True)}


def _command_effect(form: Form) -> Effect:
    """What `reduce_cmd` does to the registers; reading them out does not change them."""
    return _EFFECTS.get(str(form.param("reduce_cmd")), (True, False))


def reduce_regs() -> Argument:
    """The accumulation registers of the engine that the instruction runs on."""
    return Argument("reduce_regs", "state", required=False, buffers=REGISTER, effect=_command_effect)


def rng_state(*, writes: bool, reads: bool, all_lanes: bool = False) -> Argument:
    """The state of the engine's generator."""
    return Argument(
        "rng_state", "state", required=False, buffers=REGISTER, effect=lambda _: (writes, reads),
        all_lanes=all_lanes,
    )  # fmt: skip


def lacks_state(operator: Operator, form: Form) -> bool:
    """Whether the engine memory that an instruction uses is missing; front ends add it when they record."""
    idle = form.param("reduce_cmd") == "idle" and form.operand("reduce_res") is None
    return operator.state is not None and form.operand(operator.state.name) is None and not idle


def fits_state(form: Form, target: Target) -> Iterator[Breach]:
    """The engine memory has its full width and the lanes of the instruction."""
    for item in form.operands:
        if item.role not in _ROLES:
            continue
        layout = state_layout(item.role, form.engine, target.generation)
        found, wanted = (item.free, item.row, item.dtype), (layout.width, layout.width, layout.dtype)
        if found != wanted or item.partitions not in {LANES, *(tile.partitions for tile in form.tiles)}:
            yield Breach(
                "engine_state", f"{item.role} is {item.partitions}x{item.free} {item.dtype}", item.role,
                f"{layout.width} {layout.dtype}", f"{item.free} {item.dtype}",
                "only a program that was tampered with has this",
            )  # fmt: skip
