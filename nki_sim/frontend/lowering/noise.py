"""Random numbers: `rand`, `dropout` and their seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nki_sim.frontend.lowering.elementwise import scaled
from nki_sim.frontend.lowering.emit import Where, issue, on_chip, tile
from nki_sim.frontend.lowering.promotion import number
from nki_sim.frontend.tensor import Tensor


def rand(shape: Sequence[int], dtype: Any = "float32", buffer: str = "sbuf") -> Tensor:
    """Uniform in [0, 1): the upper 24 bits of random integers, so that float32 holds them exactly."""
    bits = tile(shape, "uint32")
    issue("rng", dst=bits)
    scaled("right_shift", 8)(bits, bits, None)
    result = tile(shape, dtype, buffer)
    scaled("multiply", 2.0**-24)(result, bits, None)
    return result


def dropout(x: Any, rate: Any, dtype: Any = None, *, where: Where = None) -> Tensor:
    """Elements set to 0 with probability `rate`, a number or one element per partition."""
    data = on_chip("nl.dropout: x", x)
    result = tile(data.shape, dtype or data.dtype)
    issue("dropout", where, dst=result, data=data, prob=rate if number(rate) is None else number(rate))
    return result


def random_seed(seed: Any) -> None:
    """Start the generators anew from a number or a tile of one element."""
    value = number(seed)
    if value is not None:
        seed = tile((1, 1), "int32")
        issue("memset", dst=seed, value=value)
    issue("set_rng_seed", src_seeds=on_chip("nl.random_seed: seed", seed))


FUNCTIONS: dict[str, Callable[..., Any]] = {"rand": rand, "dropout": dropout, "random_seed": random_seed}
