"""The fields of a neuron-profile summary that the model can fill; the others are absent, never zero.

Names and definitions are the profiler's, in its explorer convention: bytes are totals over all
partitions, flops count a float32 matmul once, `*_percent` is 0-100, `total_time` and `*_time` are
seconds. Times are predicted. A copy that DMA moves counts on both memories it touches.
"""

from __future__ import annotations

import numpy as np

from nki_sim.forms import HBM_BUFFERS, Form, Operand
from nki_sim.operators import OPERATORS
from nki_sim.program.ir import Ints, Program
from nki_sim.targets import Target
from nki_sim.timing.schedule import QUEUES, Timeline
from nki_sim.timing.spills import spills

_COMPUTE = QUEUES[: QUEUES.index("dma_load")]

Counters = dict[str, float | int]


def profile(program: Program, timeline: Timeline, target: Target) -> Counters:
    """The summary of one predicted run."""
    uses = np.bincount(program.form_ids, minlength=len(program.forms))
    total_s = timeline.latency_ms / 1e3
    traffic = _traffic(program, uses, target)
    return {
        "total_time": total_s,
        **traffic,
        **_flops(
            program, uses, target, total_s, moved=traffic["hbm_read_bytes"] + traffic["hbm_write_bytes"]
        ),
        **_dma(program, timeline, uses, total_s),
        **_engines(timeline, total_s),
    }


def _memory(item: Operand) -> str:
    return "hbm" if item.in_hbm else item.buffer


def _traffic(program: Program, uses: Ints, target: Target) -> Counters:
    found = {f"{name}_{way}_bytes": 0 for name in ("hbm", "sbuf", "psum") for way in ("read", "write")}
    for form, count in zip(program.forms, uses.tolist(), strict=True):
        outputs = OPERATORS[form.op].outputs
        for item in form.operands:
            if item.buffer == "register":
                continue
            way = "write" if item.role in outputs else "read"
            found[f"{_memory(item)}_{way}_bytes"] += item.nbytes * count
    saved, reloaded = _internal_bytes(program)
    moved = spills(program, target)
    found["hbm_write_bytes"] += moved.save_bytes
    found["hbm_read_bytes"] += moved.reload_bytes + moved.load_again_bytes
    return {
        **found,
        "spill_save_bytes": saved + moved.save_bytes,
        "spill_reload_bytes": reloaded + moved.reload_bytes,
    }


def _internal_bytes(program: Program) -> tuple[int, int]:
    """Bytes written to and read from HBM tensors that are neither inputs, outputs nor constants."""
    cells = program.cells
    buffers = np.array([site.buffer in HBM_BUFFERS for site in program.sites], dtype=bool)
    internal = buffers[program.tensor_sites]
    internal[[*program.inputs, *program.outputs, *program.constants]] = False
    sizes = np.array([item.nbytes for item in program.operands], dtype=np.int64)[cells.operand]
    chosen = internal[cells.tensor]
    return int(sizes[chosen & cells.writes].sum()), int(sizes[chosen & ~cells.writes].sum())


def _form_flops(form: Form) -> int:
    """2 * rows * columns * moving elements; a PE transpose multiplies by an identity."""
    if form.op == "nc_matmul":
        moving = form["moving"]
        return 2 * moving.partitions * form["stationary"].free * moving.free
    data = form["data"]
    return 2 * data.partitions * data.partitions * data.free


def _flops(program: Program, uses: Ints, target: Target, total_s: float, *, moved: float) -> Counters:
    hardware = transposes = matmuls = 0
    for form, count in zip(program.forms, uses.tolist(), strict=True):
        if form.engine != "tensor" or not form.operands:  # a barrier multiplies nothing
            continue
        flops = _form_flops(form) * count
        hardware += flops
        matmuls += count
        if form.op == "nc_transpose" or form.param("is_transpose"):
            transposes += flops
    peak = 2 * target.matmul_contract_max * target.matmul_stationary_max * target.tensor_clock_ghz * 1e9
    found: Counters = {
        "hardware_flops": hardware,
        "transpose_flops": transposes,
        "matmul_instruction_count": matmuls,
        "hfu_estimated_percent": 100.0 * hardware / (peak * total_s),
        "peak_flops_bandwidth_ratio": peak / (target.hbm_bytes_per_ns * 1e9),
        "mbu_estimated_percent": 100.0 * moved / total_s / (target.hbm_bytes_per_ns * 1e9),
    }
    if moved:
        found["mm_arithmetic_intensity"] = (hardware - transposes) / moved
    return found


def _dma(program: Program, timeline: Timeline, uses: Ints, total_s: float) -> Counters:
    forms = zip(program.forms, uses.tolist(), strict=True)
    moved = [(max(item.nbytes for item in form.tiles) * n, n) for form, n in forms if form.engine == "dma"]
    count = sum(n for _, n in moved)
    if not count:
        return {"dma_transfer_count": 0, "dma_transfer_total_bytes": 0}
    nbytes = sum(size for size, _ in moved)
    active = active_ns(timeline, ("dma_load", "dma_store")) / 1e9
    return {
        "dma_transfer_count": count,
        "dma_transfer_total_bytes": nbytes,
        "dma_transfer_average_bytes": nbytes / count,
        "dma_active_time": active,
        "dma_active_time_percent": 100.0 * active / total_s,
    }


def _engines(timeline: Timeline, total_s: float) -> Counters:
    found: Counters = {}
    for index, name in enumerate(_COMPUTE):
        mine = timeline.queue == index
        active = active_ns(timeline, (name,)) / 1e9
        found[f"{name}_engine_instruction_count"] = int(mine.sum())
        found[f"{name}_engine_active_time"] = active
        found[f"{name}_engine_active_time_percent"] = 100.0 * active / total_s
    return found


def active_ns(timeline: Timeline, queues: tuple[str, ...]) -> float:
    """Length of the union of the intervals of some queues."""
    mine = np.isin(timeline.queue, [QUEUES.index(name) for name in queues])
    order = np.argsort(timeline.start_ns[mine], kind="stable")
    start, end = timeline.start_ns[mine][order], timeline.end_ns[mine][order]
    if not len(start):
        return 0.0
    before = np.concatenate([[0.0], np.maximum.accumulate(end)[:-1]])
    return float(np.maximum(0.0, end - np.maximum(start, before)).sum())
