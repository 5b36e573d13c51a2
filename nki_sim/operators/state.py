"""The memory inside engines that outlives an instruction, and what instructions do to it.

ScalarE and VectorE have accumulation registers, `reduce_regs`: one float32 per lane, which a command
resets, adds to or loads. VectorE and GpSimd have a random number generator with a state per lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nki_sim import generator
from nki_sim.forms import Form
from nki_sim.generator import LANES
from nki_sim.operators.control import REGISTER
from nki_sim.operators.model import Argument, Effect
from nki_sim.rules import Breach
from nki_sim.targets import Target


@dataclass(frozen=True, slots=True)
class Layout:
    """What one lane holds; `initial` is what all lanes hold when a kernel begins, None for anything."""

    width: int
    dtype: str
    initial: bytes | None = None


LAYOUTS = {
    "reduce_regs": Layout(1, "float32"),
    "rng_state": Layout(generator.WORDS, "uint32", generator.to_bytes(generator.seeded(0))),
}

_EFFECTS = {"idle": (False, True), "reduce": (True, True)}


def _by_command(form: Form) -> Effect:
    """What `reduce_cmd` does to the registers; reading them out alone changes nothing."""
    return _EFFECTS.get(str(form.param("reduce_cmd")), (True, False))


def reduce_regs() -> Argument:
    """The accumulation registers of the engine that the instruction runs on."""
    return Argument("reduce_regs", "state", required=False, buffers=REGISTER, effect=_by_command)


def rng_state(*, writes: bool, reads: bool, all_lanes: bool = False) -> Argument:
    """The state of the engine's generator."""
    return Argument(
        "rng_state", "state", required=False, buffers=REGISTER, effect=lambda _: (writes, reads),
        all_lanes=all_lanes,
    )  # fmt: skip


def has_state(form: Form, target: Target) -> Iterator[Breach]:
    """The memory of the engine is there, as wide as it is, in the lanes of the instruction.

    Front ends supply it, so that only a program that was tampered with breaks this.
    """
    del target
    role = next((name for name in LAYOUTS if form.operand(name)), None)
    if role is None:
        idle = form.param("reduce_cmd") == "idle" and form.operand("reduce_res") is None
        if not idle:
            yield Breach("engine_state", f"{form.op} lacks the memory of its engine", "", "one", "none", "")
        return
    item, layout = form[role], LAYOUTS[role]
    rows = {LANES} | {other.partitions for other in form.tiles}
    found = (item.free, item.row, item.dtype)
    if found != (layout.width, layout.width, layout.dtype) or item.partitions not in rows:
        yield Breach(
            "engine_state", f"{role} is {item.partitions}x{item.free} {item.dtype}", role,
            f"{layout.width} {layout.dtype}", f"{item.free} {item.dtype}", "",
        )  # fmt: skip
