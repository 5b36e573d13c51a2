"""The simulator as a witness: what a program really computes for inputs on which two formulas differ.

The evaluation over a domain may itself be wrong. So before a kernel is rejected, its program runs in float32
on the same inputs. Only the input elements that the compared outputs need are made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nki_sim.errors import KernelError
from nki_sim.program.ir import Program
from nki_sim.running import numerics
from nki_sim.semantics.arrays import NUMPY
from remote.judge import tiles
from remote.judge.identity.domain import Array
from remote.judge.identity.floats import FloatDomain, TrackingFloatDomain
from remote.judge.tiles import OutputTile


def simulate_boxes(
    program: Program, boxes: Sequence[OutputTile], asking: TrackingFloatDomain
) -> Array | None:
    """Return the simulator's values in boxes of the outputs, flat, for the requested inputs.

    None if it refuses to run the program on them.
    """
    inputs = []
    for number, item in enumerate(program.array_specs(program.inputs)):
        array: Array = np.zeros(int(np.prod(item.shape)), NUMPY[item.dtype])
        for index in asking.requested_elements.get(number, ()):
            array[index] = FloatDomain.input_symbols(asking, number, index).arrays[0]
        inputs.append(array.reshape(item.shape))
    try:
        outputs = numerics.run(program, inputs, only=tiles.boxes_by_output(boxes), sliced=True)
    except KernelError:
        return None
    found = [outputs[tile.output][tile.index].reshape(-1).astype(np.float64) for tile in boxes]
    return np.concatenate(found)
