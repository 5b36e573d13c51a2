"""The fields of a neuron-profile summary that the model can fill; the others are absent, never zero.

Names and definitions are the profiler's. There are two conventions. `explorer` follows neuron-explorer's
schema: bytes are totals over all partitions, a float32 product counts once, percents are 0 to 100. `legacy`
follows neuron-profile on Trainium 1: engines' bytes are those of one partition and leave out what
tensor_tensor, scans and memset touch as well as per-partition scalars; a float32 product counts as two
instructions, each with all its flops and bytes; percents are fractions; tensors that the kernel keeps in HBM
for itself count as spilled, which profiles of Trainium 2 do not show. In both, `total_time` and `*_time`
are seconds, and DMA counts the bytes in both memories it touches. All times are predicted.

Active times are those of the kernel's own work. A profiler shows more: on Trainium 2 each engine is active
for some microseconds before the kernel's first instruction, also engines that it does not use, and transfers
are active until they are known to be complete. With `as_profiled` the counters include this, for comparison
with a profile; what reads counters to find out what a kernel does wants them without.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from nki_sim.dtypes import DTYPES
from nki_sim.forms import HBM_BUFFERS, Form
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Ints, Program
from nki_sim.targets import Target
from nki_sim.timing.activity import QUEUES_OF, active_ns, instruction_ns, span_ns, union_ns
from nki_sim.timing.forecast import Forecast
from nki_sim.timing.schedule import QUEUES, Timeline
from nki_sim.timing.traffic import (
    Counters,
    CountingConvention,
    count_forms,
    count_spills,
    count_traffic,
    form_flops,
    is_transpose,
    profiled_instructions,
)

ConventionName = Literal["explorer", "legacy"]

CONVENTIONS: dict[ConventionName, CountingConvention] = {
    "explorer": CountingConvention(),
    "legacy": CountingConvention(
        per_partition=True,
        uncounted=frozenset({"tensor_tensor", "tensor_tensor_scan", "memset"}),
        scalar_operands=False,
        fp32_instructions=2,
        scratch_spills=True,
        percent=1.0,
    ),
}

# A profile also counts the sequencers' work to start DMA and pass semaphores; programs do not record it.
_COMPUTE = tuple(name for name in QUEUES_OF if name not in {"dma", "sync"})
_ACTIVATE = frozenset({"activation", "activation_reduce"})


def profile_counters(
    forecast: Forecast, convention: ConventionName = "explorer", *, as_profiled: bool = False
) -> Counters:
    """Return the summary of one predicted run, `as_profiled` with what profilers show besides the kernel."""
    program, target, timeline = forecast.compiled.program, forecast.target, forecast.timeline
    rules, total_s = CONVENTIONS[convention], forecast.latency_ms / 1e3
    moved = count_traffic(program, rules)
    found: Counters = {
        "total_time": total_s,
        "neuroncore_cycle_count": round(total_s * target.sync_clock_ghz * 1e9),
        **_total_times(timeline, rules),
        **moved,
        **count_spills(forecast.compiled, rules),
        **_flop_counters(program, target, rules),
        **_tensor_sizes(program),
        **_dma_counters(program, timeline, target, rules=rules),
        **_engine_counters(program, timeline, rules),
    }
    if as_profiled:
        found |= _profiled_times(found, timeline, target)
    found |= _rate_counters(found, target, rules.percent)
    return found | {
        name.replace("_time", "_time_percent"): rules.percent * value / total_s
        for name, value in found.items()
        if name.endswith("_active_time") and name != "total_active_time"
    }


def _total_times(timeline: Timeline, rules: CountingConvention) -> Counters:
    span, active = span_ns(timeline), active_ns(timeline)
    found: Counters = {"total_exec_time": span / 1e9, "total_active_time": active / 1e9}
    if span:
        found["total_active_time_percent"] = rules.percent * active / span
    return found


def _flop_counters(program: Program, target: Target, rules: CountingConvention) -> Counters:
    found = {"hardware_flops": 0, "transpose_flops": 0, "matmul_instruction_count": 0}
    adjusted = {"adjusted_hardware_flops": 0.0, "adjusted_transpose_flops": 0.0}
    for form, count in zip(program.forms, count_forms(program), strict=True):
        flops = form_flops(form) * count * profiled_instructions(form, rules)
        if not flops:
            continue
        scaled = flops * _bf16_equivalent(form, target)
        found["matmul_instruction_count"] += count * profiled_instructions(form, rules)
        for kind in ("hardware", "transpose")[: 1 + is_transpose(form)]:
            found[f"{kind}_flops"] += flops
            adjusted[f"adjusted_{kind}_flops"] += scaled
    return {**found, **{name: round(value) for name, value in adjusted.items()}}


def _bf16_equivalent(form: Form, target: Target) -> float:
    """The profiler's factor for flops: 4 for float32, 1/4 for MX, 1/2 for 8 bits on NeuronCore-v3, else 1."""
    if form.op == "nc_matmul_mx":
        return 0.25
    size = form["moving" if form.op == "nc_matmul" else "data"].itemsize
    return {4: 4.0, 1: 0.5 if target.generation > 2 else 1.0}.get(size, 1.0)


def _tensor_sizes(program: Program) -> Counters:
    """Bytes of the kernel's own tensors; constants in HBM count like weights, which are loaded with the
    kernel.
    """
    sizes = {
        name: sum(site.size * DTYPES[site.dtype].itemsize for site in map(program.site, tensors))
        for name, tensors in (("inputs", program.inputs), ("outputs", program.outputs))
    }
    weights = sum(
        len(data) for tensor, data in program.constants.items() if program.site(tensor).buffer in HBM_BUFFERS
    )
    read = sizes["inputs"] + weights
    return {
        "weight_size_bytes": weights,
        "inputs_and_weights_size_bytes": read,
        "inputs_outputs_weights_size_bytes": read + sizes["outputs"],
    }


def _dma_counters(
    program: Program, timeline: Timeline, target: Target, *, rules: CountingConvention
) -> Counters:
    moves = [form.engine == "dma" and bool(form.operands) for form in program.forms]
    sizes = np.array(
        [max((item.nbytes for item in form.tiles), default=0) * move
         for form, move in zip(program.forms, moves, strict=True)], dtype=np.int64,
    )[program.form_ids]  # fmt: skip
    count, nbytes = int(np.array(moves, dtype=bool)[program.form_ids].sum()), int(sizes.sum())
    if not count:
        return {"dma_transfer_count": 0, "dma_transfer_total_bytes": 0}
    active_s = active_ns(timeline, QUEUES_OF["dma"]) / 1e9
    costs = [OPERATORS[form.op].cost(form, target) for form in program.forms]
    packets = np.array([cost.busy_ns * cost.channels for cost in costs])[program.form_ids]
    return {
        "dma_transfer_count": count,
        "dma_transfer_total_bytes": nbytes,
        "dma_transfer_average_bytes": nbytes / count,
        "dma_transfer_time": instruction_ns(timeline, QUEUES_OF["dma"]) / 1e9,
        "dma_packet_time": float(packets.sum()) / 1e9,
        "dma_active_time": active_s,
        "dma_active_cycles": round(active_s * target.sync_clock_ghz * 1e9),
        **_descriptor_counters(program, timeline, target, sizes=sizes, percent=rules.percent),
    }


_MAKERS = ("static", "hardware_dynamic", "software_dynamic")


def _descriptor_maker(form: Form, target: Target) -> str:
    """What makes the descriptors of a transfer: GpSimd, the hardware, or the compiler beforehand."""
    if form.engine != "dma" or not form.operands:
        return ""
    cost = OPERATORS[form.op].cost(form, target)
    if cost.software:
        return "software_dynamic"
    return "hardware_dynamic" if cost.descriptor_ns else "static"


def _descriptor_counters(
    program: Program, timeline: Timeline, target: Target, *, sizes: Ints, percent: float
) -> Counters:
    makers = np.array([_descriptor_maker(form, target) for form in program.forms])[program.form_ids]
    found: Counters = {}
    for maker in _MAKERS:
        mine = makers == maker
        size = int(sizes[mine].sum())
        active = union_ns(timeline.start_ns[mine], timeline.end_ns[mine]) / 1e9
        found[f"{maker}_dma_size"] = size
        found[f"{maker}_dma_size_percent"] = percent * size / max(1, int(sizes.sum()))
        found[f"{maker}_dma_active_time"] = active
    found["dynamic_dma_size_percent"] = sum(found[f"{maker}_dma_size_percent"] for maker in _MAKERS[1:])
    return found


def _engine_counters(program: Program, timeline: Timeline, rules: CountingConvention) -> Counters:
    seen = np.array([profiled_instructions(form, rules) for form in program.forms], dtype=np.int64)[
        program.form_ids
    ]
    found: Counters = {}
    for name in _COMPUTE:
        found[f"{name}_engine_instruction_count"] = int(seen[timeline.queue == QUEUES.index(name)].sum())
        found[f"{name}_engine_instruction_time"] = instruction_ns(timeline, (name,)) / 1e9
        found[f"{name}_engine_active_time"] = active_ns(timeline, (name,)) / 1e9
    activate = np.array([form.op in _ACTIVATE for form in program.forms], dtype=bool)[program.form_ids]
    took = timeline.end_ns[activate] - timeline.start_ns[activate]
    found["activate_instruction_count"] = int(activate.sum())
    found["activate_instruction_time"] = float(took.sum()) / 1e9
    return found


def _profiled_times(found: Counters, timeline: Timeline, target: Target) -> Counters:
    """The active times as a profiler shows them."""
    names = [f"{name}_engine_active_time" for name in _COMPUTE]
    shown = {name: found[name] + target.profile_preamble_ns / 1e9 for name in names}
    if "dma_active_time" in found:
        dma = active_ns(timeline, QUEUES_OF["dma"], settle_ns=target.dma_completion_ns)
        shown["dma_active_time"] = (dma + target.profile_dma_preamble_ns) / 1e9
        shown["dma_active_cycles"] = round(shown["dma_active_time"] * target.sync_clock_ghz * 1e9)
    return shown


def _rate_counters(found: Counters, target: Target, percent: float) -> Counters:
    """Rates and utilisations, computed from other counters."""
    peak = peak_flops(target)
    hbm = target.hbm_bytes_per_ns * 1e9
    total_s, hardware = found["total_time"], found["hardware_flops"]
    useful = hardware - found["transpose_flops"]
    moved = found["hbm_read_bytes"] + found["hbm_write_bytes"]
    made: Counters = {
        "peak_flops_bandwidth_ratio": peak / hbm,
        "hfu_estimated_percent": percent * hardware / (peak * total_s),
        "mfu_inst_estimated_percent": percent * useful / (peak * total_s),
        "mbu_estimated_percent": percent * moved / (hbm * total_s),
        "mbu_min_read_util_percent": percent * found["inputs_and_weights_size_bytes"] / (hbm * total_s),
    }
    if moved:
        made["mm_arithmetic_intensity"] = useful / moved
        made["mfu_inst_max_achievable_estimated_percent"] = percent * useful / moved / (peak / hbm)
    return made


def peak_flops(target: Target) -> float:
    """Return the tensor engine's rate of bf16 products, in operations per second."""
    return 2 * target.matmul_contract_max * target.matmul_stationary_max * target.tensor_clock_ghz * 1e9


def profile_summary(forecast: Forecast, convention: ConventionName = "explorer") -> dict[str, Counters]:
    """Return what `neuron-profile view --output-format summary-json` prints: one run's fields by its name.

    Percents are fractions in such files, whatever the convention.
    """
    rules = CONVENTIONS[convention]
    fields = {
        name: value / rules.percent if name.endswith("_percent") else value
        for name, value in profile_counters(forecast, convention, as_profiled=True).items()
    }
    return {forecast.traced.kernel: fields}
