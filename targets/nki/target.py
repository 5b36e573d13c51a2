"""The facts about Trainium that the rest of the program needs, and the modules of NKI's parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from targets.base import (
    MX_PRODUCTS,
    DeviceParts,
    HostParts,
    Parts,
    PeakRates,
    PredictionError,
    ProfileShare,
    ProfileVocabulary,
    ProposerEntry,
    PublishedGain,
    RooflineCounters,
    Technique,
    ToolParts,
    load_menu,
)
from targets.nki.language import NKI, NkiLanguage

if TYPE_CHECKING:
    from seeds.spec import ProblemWork

ELEMENTWISE = ("vector", "scalar", "gpsimd")
"""The elementwise engines: each lane processes one element per cycle."""

COUNTERS = (
    "hbm_read_bytes",
    "hbm_write_bytes",
    "psum_read_bytes",
    "psum_write_bytes",
    "sbuf_read_bytes",
    "sbuf_write_bytes",
    "spill_reload_bytes",
    "spill_save_bytes",
    "hardware_flops",
    "transpose_flops",
    "peak_flops_bandwidth_ratio",
    "mm_arithmetic_intensity",
    "hfu_estimated_percent",
    "scalar_engine_active_time_percent",
    "vector_engine_active_time_percent",
    "gpsimd_engine_active_time_percent",
    "tensor_engine_active_time_percent",
    "dma_active_time",
)
"""The profile counters that planners may see: AccelOpt's sixteen, the tensor engine's, the DMA's.

The names and units are the profiler's: `dma_active_time` is in seconds.
"""

PROFILE = ProfileVocabulary(
    counters=COUNTERS,
    shares=(
        ProfileShare("tensor", "Tensor engine", "tensor_engine_active_time_percent"),
        ProfileShare("vector", "Vector engine", "vector_engine_active_time_percent"),
        ProfileShare("scalar", "Scalar engine", "scalar_engine_active_time_percent"),
        ProfileShare("gpsimd", "GpSimd engine", "gpsimd_engine_active_time_percent"),
        ProfileShare("dma", "DMA", "dma_active_time_percent"),
        ProfileShare("hbm", "HBM bandwidth", "mbu_estimated_percent", is_time=False),
        ProfileShare("flops", "Tensor flops (HFU)", "hfu_estimated_percent", is_time=False),
    ),
    notes={
        "hfu_estimated_percent": "flops done, of the tensor engine's peak",
        "mbu_estimated_percent": "bytes moved, of the HBM's peak",
        "mfu_inst_max_achievable_estimated_percent": "flops per byte, of the ridge",
    },
    memory="HBM",
    roofline=RooflineCounters(
        time="total_time",
        moved=("hbm_read_bytes", "hbm_write_bytes"),
        flops="hardware_flops",
        useless_flops="transpose_flops",
        ridge="peak_flops_bandwidth_ratio",
        bandwidth_percent="mbu_estimated_percent",
    ),
)

HOSTS = HostParts(
    devices={
        "neuron": DeviceParts(
            home="targets.nki.hosts:open_neuron",
            worker="targets.nki.hostside.neuron",
            packages=("targets.nki.hostside",),
        ),
        "nki_sim": DeviceParts(
            home="targets.nki.hosts:open_simulated",
            worker="targets.nki.hostside.simulated",
            packages=("nki_sim",),
            stand_in="nki_sim (no Neuron SDK on host)",
        ),
    },
    package="targets.nki.hostside",
    setup_script="deploy/setup_trainium.sh",
    pythons=("/opt/aws_neuronx_venv*/bin/python",),
    commands=(
        ("neuron-ls", "--json-output"),
        ("PROFILER", "--version"),
        ("PROFILER", "capture", "-n", "KERNEL", "-s", "TRACE", "--profile-nth-exec=2"),
        ("PROFILER", "view", "-n", "KERNEL", "-s", "TRACE", "--output-format", "summary-json"),
    ),
    instances={"trn1": "trn1", "inf2": "trn1", "trn2": "trn2", "trn3": "trn3"},
)

TOOLS = ToolParts(
    topics={
        "summary": "latency, bottleneck, bounds, transfers, tiles that make iterations wait",
        "engines": "how busy each engine is, and what it waits for",
        "critical_path": "the source lines that the latency consists of",
        "memory": "peak use of SBUF and PSUM, and which tiles hold it",
        "traffic": "bytes between HBM and the chip, and what spills",
        "what_if": "the latency if an engine, the DMA or all waits for results cost nothing",
    },
    what_if="what_if",
    canonical="canonical",
    rewriter="targets.nki.tool_parts",
    rules="targets.nki.tool_parts:list_rule_texts",
    search_words="targets.nki.tool_parts:read_search_words",
    source_faults="targets.nki.tool_parts:list_source_faults",
)

PARTS = Parts(
    proposers={
        "builtin": ProposerEntry(
            "targets.nki.rewrites",
            looks_ahead=True,
            simplifies=True,
            reader="targets.nki.rewrites.raised_parent:read_original",
        ),
        "knobs": ProposerEntry("targets.nki.knobs.tuning", looks_ahead=True),
    },
    prompts=Path(__file__).parent / "prompts",
    hosts=HOSTS,
    packages=("nki_sim",),
    tuner="targets.nki.knobs.tuner",
    translator="targets.nki.translation.translator",
    calibrator="targets.nki.calibration.calibrator",
    tracer="targets.nki.tracer:NkiTracer",
    judge="targets.nki.judge:NkiJudge",
    tools=TOOLS,
)


@dataclass(frozen=True, slots=True)
class NkiTarget:
    """One generation of Trainium; all facts are about one NeuronCore."""

    name: str
    title: str
    peaks: PeakRates
    published: PublishedGain | None = None
    family: str = "nki"
    roofline_name: str = "NKIBench roofline"
    caveat: str = ""
    language: NkiLanguage = NKI
    profile: ProfileVocabulary = PROFILE
    parts: Parts = PARTS

    def describe_toolchain(self) -> str:
        """Return what is here: the simulator, and the SDK if it is installed."""
        try:
            sdk = version("neuronx-cc")
        except PackageNotFoundError:
            found = "nki_sim, a simulator: latencies are predicted; no Neuron SDK is here"
        else:
            found = f"nki_sim predicts; the Neuron SDK is here too (neuronx-cc {sdk})"
        return f"{found}; {self.caveat}" if self.caveat else found

    @property
    def prediction_error(self) -> PredictionError | None:
        """How far the performance model is from measured kernels of families that it was not fitted to."""
        from nki_sim.timing.residuals import load_residuals

        errors = load_residuals().percent_errors(self.name)
        return PredictionError(median(errors), max(errors), len(errors)) if errors else None

    def tight_bound_ms(self, work: ProblemWork) -> float:
        """Return the simulator's lower bound, from its own peaks, data movement and engines."""
        from targets.nki.bounds import tight_bound_ms

        return tight_bound_ms(work, self.name)

    def engine_peaks(self) -> dict[str, float]:
        """Return the lane cycles per second of VectorE, ScalarE and GpSimdE."""
        from nki_sim import targets

        table = targets.load(self.name)
        return {engine: table.partitions * table.clock_ghz(engine) * 1e9 for engine in ELEMENTWISE}

    def rewrites(self) -> Collection[str]:
        """Return the names of the engine's rewrites that this generation has."""
        from targets.nki.rewrites.transforms.catalogue import TRANSFORMS

        known = self.menu()
        return tuple(name for name in TRANSFORMS if name in known)

    def menu(self) -> dict[str, Technique]:
        """Return the closed vocabulary of techniques that rewrites and models share."""
        return {name: one for name, one in read_menu().items() if one.is_for(self.name)}


@cache
def read_menu() -> dict[str, Technique]:
    """Return the techniques of all targets of `menu.toml` by id, in the order of the file."""
    return load_menu(Path(__file__).parent / "menu.toml")


ACCELOPT = "AccelOpt with an LLM, measured, mean over NKIBench's problems"

# The peaks of trn1 and trn2 are NKIBench's for one NeuronCore. They are conventions for comparison, not this
# project's estimate of the hardware, which is the model bound. NKIBench has none of trn3: those are the
# documents', with a share of an eighth of the chip's memory.
TARGETS: Mapping[str, NkiTarget] = {
    "trn1": NkiTarget(
        "trn1",
        "Trainium1",
        PeakRates(bandwidth_gb_s=440.2, matmul_tflops=23.75, other_gflops=286.8),
        PublishedGain(49, 61, ACCELOPT),
    ),
    "trn2": NkiTarget(
        "trn2",
        "Trainium2",
        PeakRates(bandwidth_gb_s=640.0, matmul_tflops=19.75, other_gflops=550.0),
        PublishedGain(45, 59, ACCELOPT),
    ),
    "trn3": NkiTarget(
        "trn3",
        "Trainium3",
        PeakRates(
            bandwidth_gb_s=612.5,
            matmul_tflops=20.0,
            other_gflops=1200.0,
            matmul_tflops_by_type={"bfloat16": 79.0, "float16": 79.0, MX_PRODUCTS: 315.0},
        ),
        roofline_name="documented roofline",
        caveat="no kernel was measured on Trainium3, so nothing says how far off predictions for it are",
    ),
}
