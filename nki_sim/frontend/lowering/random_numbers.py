"""Random numbers: `rand`, `dropout` and their seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nki_sim.frontend.lowering.elementwise import tensor_scalar_recipe
from nki_sim.frontend.lowering.emit import MaskBoxes, declare_tile, issue_instruction, require_on_chip
from nki_sim.frontend.lowering.promotion import as_number
from nki_sim.frontend.tensor import Tensor


def rand(shape: Sequence[int], dtype: Any = "float32", buffer: str = "sbuf") -> Tensor:
    """Uniform in [0, 1): the upper 24 bits of random integers, which float32 holds exactly."""
    bits = declare_tile(shape, "uint32")
    issue_instruction("rng", dst=bits)
    tensor_scalar_recipe("right_shift", 8)(bits, bits, None)
    result = declare_tile(shape, dtype, buffer)
    tensor_scalar_recipe("multiply", 2.0**-24)(result, bits, None)
    return result


def dropout(x: Any, rate: Any, dtype: Any = None, *, where: MaskBoxes = None) -> Tensor:
    """Set elements to 0 with probability `rate`, a number or one element per partition."""
    data = require_on_chip("nl.dropout: x", x)
    result = declare_tile(data.shape, dtype or data.dtype)
    issue_instruction(
        "dropout", where, dst=result, data=data, prob=rate if as_number(rate) is None else as_number(rate)
    )
    return result


def random_seed(seed: Any) -> None:
    """Seed the generators with a number or a tile of one element."""
    value = as_number(seed)
    if value is not None:
        seed = declare_tile((1, 1), "int32")
        issue_instruction("memset", dst=seed, value=value)
    issue_instruction("set_rng_seed", src_seeds=require_on_chip("nl.random_seed: seed", seed))


FUNCTIONS: dict[str, Callable[..., Any]] = {"rand": rand, "dropout": dropout, "random_seed": random_seed}
