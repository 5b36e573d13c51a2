"""The memory inside engines that outlives an instruction, and what instructions do to it.

ScalarE and VectorE have accumulation registers, `reduce_regs`: one float32 per lane, which a command
resets, adds to or loads. VectorE and GpSimd have a random number generator with a state per lane.
"""

from __future__ import annotations

from dataclasses import dataclass

from nki_sim import generator
from nki_sim.forms import Form
from nki_sim.operators.control import REGISTER
from nki_sim.operators.model import Argument, Effect


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

COMMANDS = ("idle", "reset", "reduce", "reset_reduce", "load_reduce")
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


def reduces(form: Form) -> bool:
    """Whether the instruction needs the registers: it changes them, or reads them out."""
    return form.param("reduce_cmd") != "idle" or form.operand("reduce_res") is not None
