"""Loop fission: what iterations make for themselves is made for several of them beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from agent_core.builtin import staging
from agent_core.builtin.estimate import tile_bytes
from agent_core.builtin.model import Kernel, Loop
from agent_core.builtin.reader import read
from agent_core.builtin.splitting import block_sizes, split_loop
from agent_core.builtin.transforms.base import Choice, Refused, Transform
from agent_core.builtin.values import Tensor
from nki_sim.targets import Target


class Fission(Transform[tuple[Tensor, Loop]]):
    """Makes the tiles of all iterations, or of a block of them, in a loop of their own in front."""

    id: ClassVar[str] = "fission"
    counter: ClassVar[str] = "total_time"
    keeps: ClassVar[str] = (
        "every iteration gets a tile of its own, made from inputs that do not change in the loop"
    )

    def places(self, kernel: Kernel, target: Target) -> Mapping[str, tuple[Tensor, Loop]]:
        del target
        return {
            f"{kernel.label(item.tensor)} in {kernel.label(item.path[-1])}": (item.tensor, item.path[-1])
            for item in kernel.declarations.values()
            if item.tensor is not None and item.tensor.buffer == "sbuf" and item.path
        }

    def choices(self, kernel: Kernel, target: Target, place: tuple[Tensor, Loop]) -> tuple[Choice, ...]:
        tensor, loop = place
        _plan(kernel, tensor, loop)
        room = target.sbuf_usable_bytes // tile_bytes(tensor)
        sizes = [size for size in (loop.trips, *block_sizes(loop)) if size <= room]
        if not sizes:
            raise Refused(f"SBUF has room for {tensor.name} of {room} iterations")
        return tuple({"iterations": size} for size in sizes)

    def apply(self, kernel: Kernel, target: Target, place: tuple[Tensor, Loop], choice: Choice) -> str:
        tensor, loop = place
        size = int(choice["iterations"])
        if size == loop.trips:
            return staging.emit(_plan(kernel, tensor, loop))
        name = kernel.fresh(f"AHEAD_{loop.var.removeprefix('i_').upper()}")
        blocked = read(split_loop(kernel, loop, size, name), kernel.arguments, target)
        tile = _twin(kernel, blocked, tensor)
        return staging.emit(_plan(blocked, tile, blocked.declarations[tile.id].path[-1]))


def _twin(kernel: Kernel, other: Kernel, tensor: Tensor) -> Tensor:
    """The same declaration in a kernel whose statements are those of another, in the same order."""
    place = list(kernel.declarations).index(tensor.id)
    found = list(other.declarations.values())[place].tensor
    assert found is not None
    return found


def _plan(kernel: Kernel, tensor: Tensor, loop: Loop) -> staging.Stage:
    plan = staging.stage(kernel, tensor, loop)
    if loop not in plan.grown:
        raise Refused(f"{tensor.name} does not depend on {loop.var}: hoist it instead")
    if plan.load is not None:
        raise Refused(f"{tensor.name} is only loaded: widen its transfer instead")
    return plan
