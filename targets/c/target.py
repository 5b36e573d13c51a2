"""The facts about CPUs that the rest of the program needs, and the modules of C's parts."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from targets.base import (
    Parts,
    PeakRates,
    PredictionError,
    ProfileShare,
    ProfileVocabulary,
    ProposerEntry,
    PublishedGain,
    Technique,
    load_menu,
)
from targets.c.language import C, CLanguage
from targets.c.machine import load_rates, read_cpu_facts

if TYPE_CHECKING:
    from seeds.spec import ProblemWork

MACHINES = {"x86": ("x86_64", "amd64"), "arm64": ("aarch64", "arm64")}

# Bytes and operations are the least that a problem needs, not those that a kernel did.
PROFILE = ProfileVocabulary(
    counters=(
        "time_ns",
        "bandwidth_gb_s",
        "bandwidth_percent",
        "gflops",
        "gflops_percent",
        "threads",
        "load",
        "cycles",
        "instructions",
        "instructions_per_cycle",
        "cache_misses",
    ),
    shares=(
        ProfileShare("memory", "Memory bandwidth", "bandwidth_percent", is_time=False),
        ProfileShare("compute", "Arithmetic", "gflops_percent", is_time=False),
    ),
    notes={
        "bandwidth_percent": "the least bytes over the time, of one core's measured bandwidth",
        "gflops_percent": "the least operations over the time, of the cores' measured rate",
        "load": "the machine's load while it was measured",
        "cycles": "of one call in user space, where the machine allows hardware counters",
        "instructions": "of one call in user space, where the machine allows hardware counters",
        "cache_misses": "of the last level in one call, where the machine allows hardware counters",
    },
    memory="main memory",
)

PARTS = Parts(
    proposers={"parameters": ProposerEntry("targets.parameters")},
    evaluators={"cpu": "targets.c.evaluator:create_evaluator"},
    prompts=Path(__file__).parent / "prompts",
    prompt_files="targets.c.machine:render_prompt_files",
    judge="targets.c.judge:OutputJudge",
    machine_rates="targets.c.calibration:calibrate_machine",
    device_checks="targets.c.hardware_counters:check_counters",
    measures_in_turns=True,
)


@dataclass(frozen=True, slots=True)
class CTarget:
    """One core of this machine's CPU."""

    name: str
    family: str = "c"
    roofline_name: str = "roofline of this machine"
    language: CLanguage = C
    profile: ProfileVocabulary = PROFILE
    parts: Parts = PARTS
    published: PublishedGain | None = None
    prediction_error: PredictionError | None = None
    caveat: str = ""

    @property
    def title(self) -> str:
        """The CPU's model."""
        return read_cpu_facts().model

    @property
    def peaks(self) -> PeakRates:
        """The measured rates of one core; nominal ones before `agentctl calibrate --target x86`."""
        return load_rates().peaks

    def describe_toolchain(self) -> str:
        """Return the compiler, and whether this machine is the target."""
        from remote.errors import InfrastructureError
        from targets.c.compiler import find_compiler

        if platform.machine().lower() not in MACHINES[self.name]:
            return f"this machine is {platform.machine()}, not {self.name}"
        try:
            version = find_compiler().version
        except InfrastructureError as error:
            return error.message
        told = "measured" if load_rates().measured else "nominal: see `agentctl calibrate --target x86`"
        return f"{version}; kernels are measured here; rates of this machine are {told}"

    def tight_bound_ms(self, work: ProblemWork) -> float:
        """Return the time for the bytes or for all operations, whichever is longer: units work side by
        side."""
        from targets.c.profile import bounds_ns

        return max(bounds_ns(work, load_rates())) / 1e6

    def engine_peaks(self) -> dict[str, float]:
        """Return nothing: a core's units are not told apart."""
        return {}

    def rewrites(self) -> tuple[str, ...]:
        """Return the one change that the proposer without a model makes."""
        return ("parameter",)

    def menu(self) -> dict[str, Technique]:
        """Return the techniques that models and the parameter proposer share."""
        return load_menu(Path(__file__).parent / "menu.toml")


def make_target(name: str) -> CTarget:
    """Return the target of this name."""
    return CTarget(name)
