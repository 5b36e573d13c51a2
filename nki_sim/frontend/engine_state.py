"""Gives instructions the memory inside their engine: accumulation registers, random number generators.

Kernels do not name this memory. It is declared at first use, once per engine and core. An instruction gets
the rows of its lanes, so dependences, initialisation and slices treat it like any tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nki_sim.forms import Site
from nki_sim.frontend.tensor import Tensor, fail
from nki_sim.operators import Argument, Operator
from nki_sim.operators.state import StateLayout, state_layout
from nki_sim.targets import Target
from nki_sim.xorwow import LANES

DeclareState = Callable[[Site, bytes | None], Tensor]


class EngineStates:
    """The memory of all engines; `declare` makes a tensor of a site with its initial contents."""

    def __init__(self, declare: DeclareState, target: Target) -> None:
        self._declare = declare
        self._target = target
        self._found: dict[tuple[str, str, int], Tensor] = {}

    def state_view(
        self, operator: Operator, given: Mapping[str, Any], *, engine: str, core: int, line: int
    ) -> Tensor | None:
        """Return the engine memory that the instruction reads or changes, or None."""
        argument = operator.state
        if argument is None or not _uses_state(operator, given):
            return None
        state = self._found.get((argument.name, engine, core))
        if state is None:
            _refuse_idle(operator, given)
            layout = state_layout(argument.name, engine, self._target.generation)
            state = self._declare(_state_site(argument, layout, engine, line=line), layout.initial)
            self._found[argument.name, engine, core] = state
        return state if argument.all_lanes else _lane_rows(operator, state, given)


def _state_site(argument: Argument, layout: StateLayout, engine: str, *, line: int) -> Site:
    name = f"{argument.name} of the {engine} engine"
    return Site(name, (LANES, layout.width), layout.dtype, "register", line)


def _reduce_command(operator: Operator, given: Mapping[str, Any]) -> str | None:
    argument = operator.arguments_by_name.get("reduce_cmd")
    if argument is None:
        return None
    value = given.get("reduce_cmd")
    return argument.default if value is None else getattr(value, "name", value)  # type: ignore[return-value]


def _uses_state(operator: Operator, given: Mapping[str, Any]) -> bool:
    return _reduce_command(operator, given) != "idle" or given.get("reduce_res") is not None


def _refuse_idle(operator: Operator, given: Mapping[str, Any]) -> None:
    """Refuse to read registers that nothing was put into, which usually means a forgotten command."""
    if _reduce_command(operator, given) == "idle":
        fail(
            "reduce_cmd", f"nisa.{operator.name}: reduce_res gets registers that nothing was ever put into",
            "pass reduce_cmd=nisa.reduce_cmd.reset_reduce: the default, idle, leaves the registers alone",
        )  # fmt: skip


def _lane_rows(operator: Operator, state: Tensor, given: Mapping[str, Any]) -> Tensor:
    """The rows for the lanes that the instruction reads, or writes if it reads nothing."""
    tiles = {name: given.get(name) for name in (argument.name for argument in operator.signature)}
    chip = {name: tile for name, tile in tiles.items() if isinstance(tile, Tensor) and tile._storage.on_chip}
    read = [tile for name, tile in chip.items() if name not in operator.outputs]
    tile = next(iter([*read, *chip.values()]), None)
    if tile is None:
        fail("argument_type", f"nisa.{operator.name} has no operand on chip")
    width = state._storage.row
    start = tile._offset // tile._storage.row * width
    return Tensor(state._storage, start, ((width, tile.shape[0]), (1, width)))
