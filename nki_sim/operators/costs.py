"""What one instruction costs on its engine, from its form and the target table alone.

The formulas are the documented ones (cycles of the engine's clock, N = elements per partition) plus the
overheads of the target table. A DMA's cost is its service time on the DMA engines that share the transfer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nki_sim.forms import Form, Operand, merge_dims, run_elements
from nki_sim.targets import Target

_ARRAY_EDGE, _PART_EDGE = 128, 32
ARRAY_PARTS = (_ARRAY_EDGE // _PART_EDGE) ** 2
"""Number of squares in the tensor engine's array, each of the smallest tile size; counted row by row."""

# The types for which VectorE and ScalarE have fast modes; the second set where the target says so.
_NARROW = frozenset({"bfloat16", "float16"})
_FLOAT8 = frozenset({"float8_e4m3", "float8_e4m3fn", "float8_e5m2"})

_WIDE_BYTES = 4
"""Bytes of the elements that the tensor engine passes in several parts."""

_GPSIMD_PAIRS = 4.0
"""Cycles of GpSimd per element of two inputs: about half of VectorE's throughput [I]."""

_TRANSPOSED_BYTES = 2
"""Bytes of the elements that DMA transposes at its documented rate."""

_GPSIMD_ROOT = 4.0
"""Cycles of GpSimd per reciprocal square root: about four times what ScalarE takes [D: ISA32]."""


_FAST_SPEED = 2.0
"""From this speed on VectorE uses a 16-bit mode."""

_FLOAT_COPY_SPEED = 1.6
"""How much faster trn2's VectorE moves float32 from SBUF to SBUF: N = 512 takes 380 cycles [M]."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one instruction.

    `busy_ns` on the engine includes `overhead_ns`, which does not depend on size; `result_ns` later others
    see the result. A DMA uses `channels` DMA engines from number `first_channel` on, each for up to `rows`
    rows. Its descriptors take `descriptor_ns` to make, of GpSimd's time if `software`. `table` is the
    function table of an activation. `fast` says that a 16-bit mode of VectorE is used, which also needs
    GpSimd's half of the bus. `parts` are the parts of the tensor engine's array that a product takes, empty
    for all; `rows_used` is the share of its rows that get data, on average over its time.
    """

    busy_ns: float
    result_ns: float = 0.0
    channels: int = 0
    first_channel: int = 0
    rows: int = 0
    table: str = ""
    descriptor_ns: float = 0.0
    software: bool = False
    overhead_ns: float = 0.0
    fast: bool = False
    parts: tuple[int, ...] = ()
    rows_used: float = 1.0

    @property
    def array_share(self) -> float:
        """Share of the tensor engine's array that it takes."""
        return len(self.parts) / ARRAY_PARTS if self.parts else 1.0


def sync(form: Form, target: Target) -> Cost:
    """A fixed number of cycles of a sequencer; the documents give no figure per instruction."""
    return Cost(target.sync_instruction_cycles / target.clock_ghz(form.engine))


def register_access(form: Form, target: Target) -> Cost:
    """Move a register to or from memory; for HBM the sequencer waits until the DMA has completed [I]."""
    cost = sync(form, target)
    if not any(item.in_hbm for item in form.tiles):
        return cost
    return Cost(cost.busy_ns + target.dma_trigger_ns + target.dma_completion_ns)


def matmul(form: Form, target: Target) -> Cost:
    """passes * (max(64, N_moving) + overhead) cycles; FP8 takes two rows at once.

    The wider of the two types decides the passes. A strided moving operand is read at half the rate, as
    elsewhere [I]. Transposes may run beside other work of the array, as in `transpose`.
    """
    moving = form["moving"]
    flags = ("is_stationary_onezero", "is_moving_onezero", "is_transpose")
    onezero = any(form.param(flag) for flag in flags)
    rows = 2 if form.param("perf_mode") == "double_row" else 1
    stretch = 2 if _is_strided(moving, target) else 1
    size = max(target.tensor_min_cycles, stretch * moving.free // rows)
    passes = 1
    if "float32" in {moving.dtype, form["stationary"].dtype}:
        passes = target.tensor_fp32_onezero_passes if onezero else target.tensor_fp32_passes
    speed = target.tensor_transpose_speed if form.param("is_transpose") else 1.0
    cost = _tensor_cost(size, passes, target, moving.partitions, speed=speed)
    return replace(cost, parts=_array_parts(form))


def _array_parts(form: Form) -> tuple[int, ...]:
    """The parts of the array in a product's tile; empty if it names no tile, or one that does not exist."""
    position, size = form.param("tile_position"), form.param("tile_size")
    if not (isinstance(position, tuple) and isinstance(size, tuple) and len(position) == len(size) == 2):
        return ()
    rows, columns = (
        range(max(0, int(start)) // _PART_EDGE, min(int(start) + int(edge), _ARRAY_EDGE) // _PART_EDGE)
        for start, edge in zip(position, size, strict=True)
    )
    across = _ARRAY_EDGE // _PART_EDGE
    return tuple(row * across + column for row in rows for column in columns)


def transpose(form: Form, target: Target) -> Cost:
    """On the tensor engine max(64, P) per pass, a product with P columns; on the vector engine max(64, N).

    A transpose keeps every bit, so all types of four bytes take the passes of float32. Where transposes run
    in the background, the array is taken for a share of that time.
    """
    data = form["data"]
    if form.engine == "vector":
        return elementwise(form, target)
    size = max(data.partitions, target.tensor_min_cycles)
    passes = target.tensor_fp32_onezero_passes if data.itemsize >= _WIDE_BYTES else 1
    return _tensor_cost(size, passes, target, data.partitions, speed=target.tensor_transpose_speed)


def _tensor_cost(size: int, passes: int, target: Target, rows: int, *, speed: float) -> Cost:
    cycles = size + target.tensor_overhead_cycles
    clock = target.tensor_clock_ghz
    used = min(1.0, rows / _ARRAY_EDGE) * size / cycles
    busy_ns = passes * cycles / clock / speed
    return Cost(busy_ns, result_ns=target.tensor_fill_cycles / clock, rows_used=used)


def elementwise(form: Form, target: Target, *, factor: float = 1.0, extra: int = 0) -> Cost:
    """max(64, factor * N) + overhead + extra cycles of the form's engine; N is that of the widest operand."""
    engine = form.engine
    stretch = 2.0 if any(_is_strided(item, target) for item in form.tiles) else 1.0
    size = max(item.free for item in form.tiles)
    overhead, clock = _overhead_cycles(form, target), target.clock_ghz(engine)
    cycles = max(target.engine_min_cycles, factor * stretch * size) + overhead + extra
    return Cost(cycles / clock, overhead_ns=overhead / clock)


def copy_like(form: Form, target: Target) -> Cost:
    """tensor_copy and tensor_scalar: N, with the fast modes of VectorE and ScalarE; rsqrt on GpSimd 4 N."""
    if form.engine == "gpsimd" and "rsqrt" in {form.param("op0"), form.param("op1")}:
        return elementwise(form, target, factor=_GPSIMD_ROOT)
    speed = _copy_speed(form, target)
    fast = speed >= _FAST_SPEED and form.engine == "vector"
    return replace(elementwise(form, target, factor=1.0 / speed), fast=fast)


def reciprocal(form: Form, target: Target) -> Cost:
    """Documented as 8 N; measured as less than 3 N on trn1 and more than 7 N on trn2."""
    return elementwise(form, target, factor=target.reciprocal_cycles)


def bn_aggr(form: Form, target: Target) -> Cost:
    """13 N / 3: N / 3 is the number of (count, mean, variance * count) tuples."""
    return elementwise(form, target, factor=13 / 3)


def partition_reduce(form: Form, target: Target) -> Cost:
    """Documented as slow, without a figure; each core of GpSimd is assumed to go through its 16 partitions
    [I].
    """
    return elementwise(form, target, factor=16.0)


def memset(form: Form, target: Target) -> Cost:
    """N, or N/2 for a 16-bit zero."""
    half = form.param("value") == 0 and form["dst"].itemsize == 2
    return elementwise(form, target, factor=0.5 if half else 1.0)


def tensor_tensor(form: Form, target: Target) -> Cost:
    """2N, or N with one input in PSUM or in the 16-bit mode; on GpSimd always 4N."""
    factor = _two_input_factor(form, target, ("data1", "data2"))
    return replace(elementwise(form, target, factor=factor), fast=_reads_two_inputs(form, target))


def scalar_tensor_tensor(form: Form, target: Target) -> Cost:
    """2N, or N for bf16 inputs with (subtract, multiply) and even N; N on trn2, where adamw keeps VectorE
    busy for that long [M].
    """
    inputs = [form[role] for role in ("data", "operand1") if form.operand(role)]
    ops = (form.param("op0"), form.param("op1"))
    fast = ops == ("subtract", "multiply") and all(item.dtype == "bfloat16" for item in inputs)
    fast = fast and form["data"].free % 2 == 0
    return elementwise(form, target, factor=1.0 if fast or target.generation >= _V3 else 2.0)


def quantize_mx(form: Form, target: Target) -> Cost:
    """N / 4: four elements of each partition in a cycle."""
    return elementwise(form, target, factor=1 / max(1, target.quantize_speed))


def exponential(form: Form, target: Target) -> Cost:
    """N / 4: four times what ScalarE does, and the read of the accumulator."""
    extra = target.reduce_extra_cycles if form.operand("reduce_res") else 0
    return elementwise(form, target, factor=1 / max(1, target.exponential_speed), extra=extra)


def random(form: Form, target: Target) -> Cost:
    """N / 4: four numbers of each lane in a cycle."""
    return elementwise(form, target, factor=1 / max(1, target.random_speed))


def scan(form: Form, target: Target) -> Cost:
    """2N; also for similar instructions without a figure: tensor_scalar_cumulative, select_reduce [I]."""
    return elementwise(form, target, factor=2.0)


def tensor_reduce(form: Form, target: Target) -> Cost:
    """N over the input, N/2 for bf16 add and max."""
    fast = form.param("op") in {"add", "maximum"} and all(
        form[role].dtype == "bfloat16" for role in ("dst", "data")
    )
    return elementwise(form, target, factor=0.5 if fast else 1.0)


def tensor_scalar_reduce(form: Form, target: Target) -> Cost:
    """tensor_scalar_reduce: N plus the read of the accumulator."""
    return elementwise(form, target, extra=target.reduce_extra_cycles)


def activation(form: Form, target: Target) -> Cost:
    """N, more for functions of a table and to read the accumulator; sets the table that it needs."""
    from nki_sim.functions import FUNCTION_TABLES

    extra = target.reduce_extra_cycles if form.operand("reduce_res") else 0
    table = FUNCTION_TABLES.get(str(form.param("op")), "")
    extra += target.activation_function_cycles if table else 0
    return replace(elementwise(form, target, extra=extra), table=table)


def dma(form: Form, target: Target) -> Cost:
    """On up to 16 engines: a fixed time per descriptor, and bytes / rate; a long run of bytes is several."""
    run = min(map(_run_elements, form.tiles))
    nbytes = max(item.nbytes for item in form.tiles)
    return _dma_cost(
        form, target, nbytes, descriptors=max(_descriptors(item, run, target) for item in form.tiles)
    )


def dma_transpose(form: Form, target: Target) -> Cost:
    """2-byte types at the documented share of DMA throughput; others element by element.

    Of 2-byte types, short runs need more descriptors, as in other transfers, up to one per element.
    """
    src = form["src"]
    by_element = _dma_cost(form, target, src.nbytes, descriptors=_descriptors(src, 1, target))
    if src.itemsize != _TRANSPOSED_BYTES:
        return by_element
    run = min(map(_run_elements, form.tiles))
    ratio = target.dma_transpose_hbm_ratio if src.in_hbm else target.dma_transpose_sbuf_ratio
    by_run = _dma_cost(form, target, src.nbytes / ratio, descriptors=_descriptors(src, run, target) / ratio)
    return min(by_run, by_element, key=lambda cost: cost.busy_ns)


def dma_compute(form: Form, target: Target) -> Cost:
    """A DMA that moves the bytes of all sources and of dst [I]."""
    run = min(map(_run_elements, form.tiles))
    nbytes = sum(item.nbytes for item in form.tiles)
    return _dma_cost(
        form, target, nbytes, descriptors=sum(_descriptors(item, run, target) for item in form.tiles)
    )


def _descriptors(item: Operand, run: int, target: Target) -> float:
    """How many descriptors an operand needs in runs of this many elements; a long run needs several."""
    return item.nbytes / min(run * item.itemsize, target.dma_descriptor_bytes)


def _dma_cost(form: Form, target: Target, nbytes: float, *, descriptors: float) -> Cost:
    chip = next((item for item in form.tiles if not item.in_hbm), form["dst"])
    first, channels, rows = _dma_engines(chip, target, spread=chip.in_hbm or form.op == "dma_transpose")
    share = rows / chip.partitions
    overhead = descriptors * share * target.dma_descriptor_overhead_ns
    maker = _descriptor_maker(form, target)
    made = {"software": target.dma_software_descriptor_ns, "hardware": target.dma_descriptor_ns}.get(
        maker, 0.0
    )
    return Cost(
        overhead + nbytes * share / target.dma_engine_bytes_per_ns,
        channels=channels,
        first_channel=first,
        rows=rows,
        descriptor_ns=made,
        software=maker == "software",
        overhead_ns=overhead,
    )


def _dma_engines(item: Operand, target: Target, *, spread: bool) -> tuple[int, int, int]:
    """The first DMA engine that moves an operand, how many do, and the most rows that one of them moves.

    Each engine serves the partitions of its own port of SBUF: 8 of 128 [D: DMA overview, which shows four
    rows on one engine]. Transfers within HBM, and transposes, `spread` over all engines.
    """
    if spread:
        channels = max(1, min(target.dma_engines, item.partitions))
        return 0, channels, -(-item.partitions // channels)
    lanes = max(1, target.partitions // target.dma_engines)
    first, end = item.start, item.start + item.partitions
    channel = min(first // lanes, target.dma_engines - 1)
    channels = min(target.dma_engines, -(-end // lanes)) - channel
    return channel, max(1, channels), min(lanes, item.partitions)


_V3 = 3


def _descriptor_maker(form: Form, target: Target) -> str:
    """What makes the descriptors: GpSimd on request, for row indices, and before v3; else the hardware.

    In the mode `none` they exist before the kernel runs.
    """
    dynamic = any(
        item.is_scattered or (item.index_step and target.generation < _V3) for item in form.operands
    )
    mode = form.param("dge_mode")
    if form.engine == "dma" and (dynamic or mode == "swdge"):
        return "software"
    return "prepared" if mode == "none" else "hardware"


def _run_elements(item: Operand) -> int:
    return run_elements(item.dims if item.in_hbm else item.dims[1:])


def _is_strided(item: Operand, target: Target) -> bool:
    dims = merge_dims(item.dims[1:])
    return bool(dims) and abs(dims[-1][0]) * item.itemsize > target.stride_limit_bytes


def _overhead_cycles(form: Form, target: Target) -> int:
    """Overhead in cycles, which depends on where inputs are read: adamw's ScalarE writes PSUM [C]."""
    if form.engine == "gpsimd":
        return target.gpsimd_overhead_cycles
    outputs = {"dst", "reduce_res"}
    memory = (
        "psum" if any(item.buffer == "psum" for item in form.tiles if item.role not in outputs) else "sbuf"
    )
    return int(getattr(target, f"{form.engine}_overhead_{memory}_cycles"))


def _two_input_factor(form: Form, target: Target, roles: tuple[str, str]) -> float:
    if form.engine == "gpsimd":
        return _GPSIMD_PAIRS
    if any(form[role].buffer == "psum" for role in roles):
        return 1.0
    if _reads_two_inputs(form, target):
        return 1.0
    plain = target.generation >= _V3 or all(
        item.dtype == "bfloat16" and _is_contiguous(item) for item in form.tiles
    )
    return 1.0 if plain and form.param("op") in {"add", "multiply", "subtract"} else 2.0


def _reads_two_inputs(form: Form, target: Target) -> bool:
    """Whether VectorE reads two inputs at once, in its mode for 16-bit types in SBUF."""
    narrow = all(_is_narrow(item, target) for item in form.tiles) and not form.column_lookups
    in_sbuf = all(form[role].buffer == "sbuf" for role in ("data1", "data2"))
    return target.vector_fast_modes and form.engine == "vector" and narrow and in_sbuf


def _copy_speed(form: Form, target: Target) -> float:
    """How many elements per cycle and lane a copy or `tensor_scalar` takes; ScalarE has VectorE's 2x mode.

    Columns that an index chooses are taken one by one: no page gives a rate of tensor indirection [I].
    """
    if form.column_lookups:
        return 1
    modes = {"vector": target.vector_fast_modes, "scalar": target.scalar_fast_modes}
    if not modes.get(form.engine, False):
        return 1
    sides = [item for item in form.operands if item.role in {"dst", "src", "data"}]
    narrow = all(_is_narrow(item, target) for item in sides)
    in_sbuf = all(item.buffer == "sbuf" for item in sides)
    contiguous = all(_is_contiguous(item) for item in sides)
    if form.engine == "scalar":
        return 2 if narrow and (in_sbuf or contiguous) else 1
    if not narrow:
        plain = in_sbuf and contiguous and all(item.dtype == "float32" for item in sides)
        return _FLOAT_COPY_SPEED if plain else 1
    return (2 if in_sbuf or contiguous else 1) * (2 if in_sbuf and contiguous else 1)


def _is_narrow(item: Operand, target: Target) -> bool:
    return item.dtype in _NARROW or (target.fast_modes_fp8 and item.dtype in _FLOAT8)


def _is_contiguous(item: Operand) -> bool:
    dims = merge_dims(item.dims[1:])
    return not dims or dims[-1][0] == 1
