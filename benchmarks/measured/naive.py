"""What simpler models predict, so that a better one shows its worth: latencies in ms, of the traced program.

They know the kernel's own transfers and instructions, no compiler, no schedule and no fixed time.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from nki_sim.forms import Form
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Program
from nki_sim.targets import Target


def baselines(program: Program, target: Target) -> dict[str, float]:
    """Bytes over bandwidth, FLOPs over peak, the larger of them, the busiest engine, the sum of all costs."""
    uses = np.bincount(program.form_ids, minlength=len(program.forms)).tolist()
    spent: dict[str, float] = defaultdict(float)
    nbytes, tensor_ns = 0, 0.0
    for form, count in zip(program.forms, uses, strict=True):
        spent[form.engine] += count * _service_ns(form, target)
        nbytes += count * sum(item.nbytes for item in form.operands if item.in_hbm)
        tensor_ns += count * _peak_ns(form, target)
    found = {"bytes_over_bandwidth": nbytes / target.hbm_bytes_per_ns, "flops_over_peak": tensor_ns}
    found["roofline"] = max(found.values())
    found["busiest_engine"] = max(spent.values(), default=0.0)
    found["sum_of_costs"] = sum(spent.values())
    return {name: ns / 1e6 for name, ns in found.items()}


def _service_ns(form: Form, target: Target) -> float:
    """Time on the engine; of a transfer, its share of all DMA engines."""
    cost = OPERATORS[form.op].cost(form, target)
    return cost.busy_ns * (cost.channels / target.dma_engines if cost.channels else 1.0)


def _peak_ns(form: Form, target: Target) -> float:
    """The products of an instruction at the tensor engine's peak rate for its type; transposes are none."""
    if form.op != "nc_matmul" or form.param("is_transpose"):
        return 0.0
    stationary, moving = form["stationary"], form["moving"]
    passes = target.tensor_fp32_passes if moving.dtype == "float32" else 1
    products = moving.partitions * stationary.free * moving.free
    rate = target.matmul_contract_max * target.matmul_stationary_max * target.tensor_clock_ghz
    return passes * products / rate
