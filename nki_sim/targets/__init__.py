"""The target tables: every constant of a device with its value, its source tag and a note on its origin.

One JSON file per target. Tags: D documented, M measured by others, C calibrated or derived, I inferred.
`load` returns a frozen `Target`; nothing else in the simulator holds a hardware number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nki_sim.errors import TargetError

TAGS = frozenset("DMCI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One NeuronCore: limits, clocks, rates and latencies. Units are in the names; clocks are GHz."""

    name: str
    sources: Mapping[str, str]
    # capacity and limits
    generation: int
    partitions: int
    hbm_bytes: int
    sbuf_partition_bytes: int
    sbuf_reserved_bytes: int
    address_rotation: bool
    psum_banks: int
    psum_bank_bytes: int
    matmul_contract_max: int
    matmul_stationary_max: int
    matmul_moving_max: int
    mx_contract_max: int
    mx_group_elements: int
    vector_transpose_max: int
    access_rank_max: int
    access_stride_max: int
    sbuf_access_elements_max: int
    psum_access_elements_max: int
    scalar_tensor_copy: bool
    scalar_tensor_scalar: bool
    activation_scalar_bias: bool
    bn_stats_max: int
    pattern_rank_max: int
    search_elements_min: int
    search_elements_max: int
    gather_indices_max: int
    gather_group_elements: int
    topk_elements_min: int
    topk_elements_max: int
    topk_results_max: int
    # clocks
    tensor_clock_ghz: float
    vector_clock_ghz: float
    scalar_clock_ghz: float
    gpsimd_clock_ghz: float
    sync_clock_ghz: float
    # tensor engine
    tensor_min_cycles: int
    tensor_overhead_cycles: int
    tensor_fill_cycles: int
    tensor_fp32_passes: int
    tensor_fp32_onezero_passes: int
    tensor_ramp_ns: float
    tensor_ramp_ratio: float
    tensor_transpose_speed: float
    # vector, scalar, gpsimd engines
    engine_min_cycles: int
    dependent_cycles: int
    vector_overhead_sbuf_cycles: int
    vector_overhead_psum_cycles: int
    scalar_overhead_sbuf_cycles: int
    scalar_overhead_psum_cycles: int
    gpsimd_overhead_cycles: int
    reduce_extra_cycles: int
    reciprocal_cycles: float
    psum_accumulate_stretch: float
    stride_limit_bytes: int
    vector_fast_modes: bool
    scalar_fast_modes: bool
    fast_modes_fp8: bool
    exponential_speed: float
    quantize_speed: float
    random_speed: float
    activation_table_ns: float
    activation_function_cycles: int
    sync_instruction_cycles: int
    # DMA
    dma_engines: int
    dma_engine_bytes_per_ns: float
    dma_descriptor_overhead_ns: float
    dma_issue_ns: float
    dma_descriptor_bytes: int
    dma_slice_bytes: int
    dma_trigger_ns: float
    dma_completion_ns: float
    dma_descriptor_ns: float
    dma_descriptor_queues: int
    dma_software_descriptor_ns: float
    dma_transpose_hbm_ratio: float
    dma_transpose_sbuf_ratio: float
    hbm_bytes_per_ns: float
    hbm_cores: int
    # whole kernel
    semaphore_ns: float
    kernel_overhead_ns: float
    profile_preamble_ns: float
    profile_dma_preamble_ns: float
    issue_window: int
    dma_window: int

    @property
    def sbuf_usable_bytes(self) -> int:
        """Bytes per partition that kernels may use."""
        return self.sbuf_partition_bytes - self.sbuf_reserved_bytes

    @property
    def dma_bytes_per_ns(self) -> float:
        """Combined bandwidth of all DMA engines of the core."""
        return self.dma_engines * self.dma_engine_bytes_per_ns

    def clock_ghz(self, engine: str) -> float:
        """Clock of an engine: tensor, vector, scalar, gpsimd or sync (the sequencers)."""
        return float(getattr(self, f"{engine}_clock_ghz"))


def names() -> tuple[str, ...]:
    """Names of the targets that have a table, sorted."""
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.json")))


@cache
def load(name: str) -> Target:
    """Load the target of that name.

    Raises:
        TargetError: there is no such target, or its table is not valid.
    """
    if name not in names():
        raise TargetError(f"unknown target {name!r}; known targets: {', '.join(names())}")
    return parse(name, json.loads((Path(__file__).parent / f"{name}.json").read_text()))


def parse(name: str, table: Mapping[str, Any]) -> Target:
    """Build a target from its table {constant: {"value", "source", "note"}}.

    Raises:
        TargetError: constants are missing, unknown, untagged or of the wrong type.
    """
    expected = {field.name: str(field.type) for field in fields(Target)}
    wanted = expected.keys() - {"name", "sources"}
    wrong = sorted(wanted ^ table.keys())
    if wrong:
        raise TargetError(f"target table {name}: constants missing or unknown: {', '.join(wrong)}")
    values = {key: _parse_constant(name, key, expected[key], entry=table[key]) for key in wanted}
    sources = MappingProxyType({key: str(table[key]["source"]) for key in sorted(wanted)})
    return Target(name=name, sources=sources, **values)


def _parse_constant(target: str, key: str, kind: str, *, entry: Mapping[str, Any]) -> Any:
    value = entry.get("value")
    if entry.get("source") not in TAGS:
        raise TargetError(f"target table {target}: {key} has no source tag of {'/'.join(sorted(TAGS))}")
    if kind == "float" and type(value) is int:
        value = float(value)
    if type(value).__name__ != kind:
        raise TargetError(f"target table {target}: {key} must be {kind}, not {value!r}")
    return value
