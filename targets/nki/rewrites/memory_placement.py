"""Decides in which on-chip memory a tile may be, by the instructions that use it."""

from __future__ import annotations

from nki_sim.operators import OPERATORS
from targets.nki.rewrites.kernel_ir import Kernel, Statement
from targets.nki.rewrites.transform import RewriteRefused
from targets.nki.rewrites.values import Tensor


def check_placement(kernel: Kernel, tensor: Tensor, goal: str) -> None:
    """Check that a tile may move to a memory, and may gain by it.

    Raises:
        RewriteRefused: an instruction cannot reach it there, or none gets faster.
    """
    if tensor.id in kernel.escaping_ids:
        raise RewriteRefused(f"{tensor.name} has a second name or is used by what cannot be read")
    if tensor.dtype != "float32":
        raise RewriteRefused(f"{tensor.name} holds {tensor.dtype}")
    if tensor.copies:
        raise RewriteRefused(f"{tensor.name} is a list of tiles")
    users = kernel.users_of(tensor)
    for item in users:
        if goal == "psum" and item.engine == "gpsimd":
            raise RewriteRefused(f"{item.op} on GpSimd does not reach PSUM")
        for access in item.accesses:
            allowed = OPERATORS[item.op].signature_by_name[access.role].buffers
            if access.tensor.id == tensor.id and goal not in allowed:
                raise RewriteRefused(f"{item.op} takes no {access.role} in {goal}")
    if goal == "psum" and not any(_is_faster_in_psum(item, tensor) for item in users):
        raise RewriteRefused(f"no instruction is faster with {tensor.name} in PSUM")


def _is_faster_in_psum(item: Statement, tensor: Tensor) -> bool:
    """Whether an instruction takes two tiles, of which this would be the only one in PSUM."""
    inputs = [access.tensor for access in item.accesses if not access.writes]
    mine = [other for other in inputs if other.id == tensor.id]
    return item.op == "tensor_tensor" and len(mine) == 1 and all(other.buffer == "sbuf" for other in inputs)
