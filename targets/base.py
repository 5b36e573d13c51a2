"""What a target is: the facts of a device, the language of its kernels, and where its parts are.

A `Target` is light: loading one imports no compiler, simulator or SDK. Heavy parts, and parts that belong to
one room, are named by module (`"package.module:attribute"`); the room that needs a part imports it with
`import_part` on demand:

- `proposers`, imported by `agent_core.proposers`: `create() -> agent_core.roles.Proposer`.
- `tracer`, imported by `remote.tracing`: a `remote.tracing.Tracer`.
- `judge`, imported by `remote.worker`: a `remote.judge.program_judge.ProgramJudge`.
- `evaluators`, imported by `remote.registry`:
  `(EvaluatorSpec, EvaluatorResources) -> remote.evaluator.Evaluator`.
- `tuner`, imported by `agentctl tune`: a module with the names in `targets.nki.knobs.tuner`.
- `machine_rates`, imported by `agentctl calibrate` for a target that is this machine: measures what it can do
  and keeps that; `async () -> Mapping[str, float | str]`, the rates by name with units.
- `device_checks`, imported by `agentctl doctor`: `() -> Iterable[DeviceCheck]`.
- `calibrator`, imported by `agentctl calibrate`: a module with the names in
  `targets.nki.calibration.calibrator`.
- `translator`, imported by `agentctl translate`: a module with the names in
  `targets.nki.translation.translator`.
- `hosts`, used by `remote.ssh`: what hosts of the family need, and for each kind of device the part that
  uses it: `(DeviceFacts, JudgeService) -> remote.ssh.devices.HostDevice`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from seeds.spec import ProblemWork
    from state.model import Digest, ErrorInfo


class UnknownTargetError(Exception):
    """No target has this name."""

    code = "unknown_target"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        from seeds.errors import describe_unknown  # not at the top: the room loads NumPy

        super().__init__(describe_unknown("target", name, known))


class SourceError(Exception):
    """A text is not a kernel in the target's language; `code` is stable, the message says what is wrong."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class UntranslatableError(Exception):
    """A reference cannot be translated into a kernel; the message names what is in the way."""

    code = "untranslatable"


MX_PRODUCTS = "mx"
"""The name of products in MX types (elements that share a scale in groups) among peak rates."""


@dataclass(frozen=True, slots=True)
class PeakRates:
    """Published peak rates of one core: GB/s (1e9 bytes), TFLOPS of products, GFLOPS of the rest.

    Percentages of the roofline are relative to these, so that they compare with published numbers.
    `matmul_tflops` is the rate of float32 products, and of those of every other type that
    `matmul_tflops_by_type` does not name; `MX_PRODUCTS` are those of problems that allow them.
    `cached_gb_s` is for cores with caches: up to how many bytes, in rising order, what is touched again and
    again moves at which rate. Larger problems move at `bandwidth_gb_s`.
    """

    bandwidth_gb_s: float
    matmul_tflops: float
    other_gflops: float
    matmul_tflops_by_type: Mapping[str, float] = field(default_factory=dict)
    cached_gb_s: tuple[tuple[int, float], ...] = ()

    def bandwidth_for(self, nbytes: int) -> float:
        """Return the rate in GB/s at which a problem of so many bytes moves."""
        return next((rate for size, rate in self.cached_gb_s if nbytes <= size), self.bandwidth_gb_s)

    def roofline_ms(self, work: ProblemWork) -> float:
        """Return the plain lower bound on latency in ms: the largest ratio of work to peak rate.

        The three kinds of work are bytes, matrix products and other floating-point operations.
        """
        seconds = max(
            work.total_bytes / (self.bandwidth_for(work.total_bytes) * 1e9),
            work.matmul_flops / (self.products_tflops(work) * 1e12),
            work.other_flops / (self.other_gflops * 1e9),
        )
        return seconds * 1e3

    def products_tflops(self, work: ProblemWork) -> float:
        """Return the peak rate of the products of a problem, in the fastest type that it allows."""
        types = (MX_PRODUCTS, work.matmul_dtype) if work.mx else (work.matmul_dtype,)
        known = (self.matmul_tflops_by_type.get(name) for name in types)
        return next((rate for rate in known if rate is not None), self.matmul_tflops)


@dataclass(frozen=True, slots=True)
class Technique:
    """One way to make a kernel faster; `bottlenecks` are the profile classes that it relieves.

    `targets` are those of the family that have it; empty: all.
    Where none of the `terms` is a word of the kernel, its problem or its reference, it does not apply;
    without `terms`, nothing is known about that.
    """

    id: str
    title: str
    description: str
    bottlenecks: frozenset[str]
    targets: frozenset[str] = frozenset()
    terms: frozenset[str] = frozenset()

    def is_for(self, target: str) -> bool:
        """Return whether a target of the family has it."""
        return not self.targets or target in self.targets

    def can_help(self, bottleneck: str | None, words: frozenset[str]) -> bool:
        """Return whether it relieves a kernel's bottleneck, and may apply to a kernel with these words."""
        relieves = not self.bottlenecks or bottleneck is None or bottleneck in self.bottlenecks
        return relieves and (not self.terms or bool(self.terms & words))


@cache
def load_menu(path: Path) -> dict[str, Technique]:
    """Return the techniques of a target's menu file by id, in the order of the file."""
    return {
        name: Technique(
            name,
            entry["title"],
            entry["description"],
            frozenset(entry["bottlenecks"]),
            frozenset(entry.get("targets", ())),
            frozenset(entry.get("terms", ())),
        )
        for name, entry in tomllib.loads(path.read_text()).items()
    }


@dataclass(frozen=True, slots=True)
class ProfileShare:
    """A share of a kernel's time or of a peak, in percent, that profiles of a target have.

    `part` is a part of the device, as `engine_peaks` names it. `is_time`: it is a share of the kernel's
    time.
    """

    part: str
    title: str
    counter: str
    is_time: bool = True


@dataclass(frozen=True, slots=True)
class RooflineCounters:
    """The counters that place a kernel under the roofline of its device.

    `time` is in seconds; `moved` are bytes to and from the memory, `flops` operations of matrix products,
    `useless_flops` those of them that compute nothing; `ridge` is in operations per byte.
    """

    time: str
    moved: tuple[str, ...]
    flops: str
    useless_flops: str
    ridge: str
    bandwidth_percent: str


@dataclass(frozen=True, slots=True)
class ProfileVocabulary:
    """What profiles of a target contain, and how to call it.

    `counters` are those that planners may see. `shares` are in the order in which people see them. `notes`
    say what a counter relates to if its name does not. `memory` is the memory that bounds the roofline.
    """

    counters: tuple[str, ...]
    shares: tuple[ProfileShare, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    memory: str = "memory"
    roofline: RooflineCounters | None = None

    def part_title(self, part: str) -> str:
        """Return what people call a part of the device; its name if it is not known."""
        return next((share.title for share in self.shares if share.part == part), part)


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """What `agentctl doctor` says of a target's device; with a remedy, it is worth a look."""

    name: str
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class PublishedGain:
    """What others published for a target: percent of the roofline before and after, and who measured it."""

    before_percent: float
    after_percent: float
    source: str


@dataclass(frozen=True, slots=True)
class PredictionError:
    """How far predictions were from the latencies of so many measured kernels, in percent of these.

    Each kernel was predicted by a model that was fitted without its family.
    """

    median_percent: float
    worst_percent: float
    kernels: int


@dataclass(frozen=True, slots=True)
class ProposerEntry:
    """A proposer that a target provides: `module` has its `create()`.

    `repairs`: it repairs rejected kernels. `looks_ahead`: it searches by predictions before it plans.
    `simplifies`: the winners of its runs may be simplified at the end; a target's own proposer with it does
    that, for all planners that have it (`agent_core.roles.WinnerSimplifier`).
    `reader` says what of a kernel it cannot read, before a run begins:
    `async (source, predict, spec, size, target) -> KernelReading`. None if it reads any kernel.
    """

    module: str
    repairs: bool = False
    looks_ahead: bool = False
    simplifies: bool = False
    reader: str | None = None


@dataclass(frozen=True, slots=True)
class KernelReading:
    """Whether a proposer can work on a kernel at all, and the reasons why it leaves out parts of it.

    `error` is set if the kernel is wrong, whoever reads it.
    """

    readable: bool
    reasons: tuple[str, ...] = ()
    error: ErrorInfo | None = None


class Language(Protocol):
    """The language of a target's kernels."""

    @property
    def name(self) -> str:
        """The name for people."""
        ...

    @property
    def fence(self) -> str:
        """The language tag of a code block, as models write it."""
        ...

    @property
    def kernel_file(self) -> str:
        """The file name of the starting kernel in a problem's folder."""
        ...

    def lint(self, source: bytes) -> ErrorInfo | None:
        """Return why a kernel's text is refused before anything runs; None if it may run."""
        ...

    def code_digest(self, source: bytes) -> Digest:
        """Return the digest that identifies duplicates; it never fails."""
        ...

    def kernel_names(self, source: str) -> frozenset[str]:
        """Return the names of the functions that may be the kernel.

        Raises:
            SourceError: the text is not in this language.
        """
        ...

    def operators(self, source: str) -> frozenset[str]:
        """Return the instructions that a kernel uses, as tags; empty for a text that cannot be read."""
        ...


class Target(Protocol):
    """One device, as the rest of the program sees it."""

    @property
    def name(self) -> str:
        """The name in configurations and logs."""
        ...

    @property
    def family(self) -> str:
        """The folder of its family; targets of a family share language, judge, evaluators and menu."""
        ...

    @property
    def title(self) -> str:
        """The device's name for people."""
        ...

    @property
    def language(self) -> Language:
        """The language of its kernels."""
        ...

    @property
    def peaks(self) -> PeakRates:
        """The published peak rates of one core."""
        ...

    @property
    def roofline_name(self) -> str:
        """The name of the roofline that the peaks belong to, for people."""
        ...

    @property
    def parts(self) -> Parts:
        """The modules of its heavier parts."""
        ...

    @property
    def profile(self) -> ProfileVocabulary:
        """What its profiles contain."""
        ...

    @property
    def published(self) -> PublishedGain | None:
        """A published result to compare benchmarks with, if there is one."""
        ...

    @property
    def prediction_error(self) -> PredictionError | None:
        """How far its predictions were from measurements; None if nothing was compared."""
        ...

    @property
    def caveat(self) -> str:
        """What people must know of all latencies that are predicted for it; empty if nothing."""
        ...

    def describe_toolchain(self) -> str:
        """Return what judges and times its kernels on this machine, for people."""
        ...

    def tight_bound_ms(self, work: ProblemWork) -> float:
        """Return the model bound on latency, in milliseconds."""
        ...

    def engine_peaks(self) -> Mapping[str, float]:
        """Return the peak of each elementwise `ProfileShare.part`, in lane cycles per second."""
        ...

    def rewrites(self) -> Collection[str]:
        """Return the names of the rewrites that its proposers can carry out; empty without an engine."""
        ...

    def menu(self) -> Mapping[str, Technique]:
        """Return the techniques that its proposers share, by id, in the order in which they are shown."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceParts:
    """One kind of device that a family's hosts may have.

    `home` uses it from home. `worker` is a module of `HostParts.package`, for `remote.hostside.devices`.
    `packages` are import packages that its steps need on a host, each sent as the archive `PACKAGE.zip`.
    `stand_in` is set for a device that is simulated: its name in results, all of which are predictions.
    """

    home: str
    worker: str
    packages: tuple[str, ...] = ()
    stand_in: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostParts:
    """What a family's hosts need, and what they may have.

    `devices` are the kinds by the name that a host reports, best first; a host has the first one that lacks
    nothing there. `package` is shipped with the worker, for Python 3.9 and without other packages. `pythons`
    are patterns of the vendor's interpreters. `setup_script`, a path in this project, prepares a host.
    `commands` are those of the vendor that the worker runs. `instances` maps instance families to targets.
    """

    devices: Mapping[str, DeviceParts]
    package: str
    setup_script: str
    pythons: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()
    instances: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuleText:
    """A rule that kernels of a target can break: its stable code, what it says, and what usually helps."""

    code: str
    says: str
    fix: str


@dataclass(frozen=True, slots=True)
class SearchWords:
    """Words by which people search a target's documentation.

    Those of a group mean the same. `called` has, by the name of an instruction, what people call it.
    """

    groups: tuple[frozenset[str], ...] = ()
    called: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolParts:
    """What a target adds to the tools of models and coding agents (`agent_core.tools`).

    `topics` are what its judge can explain about a kernel that is not judged, each with what it tells; empty
    if it cannot. `what_if` is the one that predicts under assumptions. `canonical` is a topic besides these
    that, asked for alone, gives the kernel's canonical form instead. `rewriter`, imported by
    `agent_core.tools.rewriting`: `create() -> Rewriter`. `rules`: a function without arguments that returns
    the `RuleText`s, for `lookup`. `search_words`: one that returns the `SearchWords` of `lookup`.
    `source_faults`: `(source) -> Sequence[ErrorInfo]`, what a kernel's text alone shows to be wrong, by line.
    """

    topics: Mapping[str, str] = field(default_factory=dict)
    what_if: str | None = None
    canonical: str | None = None
    rewriter: str | None = None
    rules: str | None = None
    search_words: str | None = None
    source_faults: str | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """The modules of a target's parts, as `"package.module:attribute"`; None where it has none.

    `proposers` and `evaluators` are keyed by the names that configurations use. `prompts` is the folder of
    the pack for LLM roles (`prompts.manifest`); `prompt_files` makes files of it that depend on the machine:
    `() -> Mapping[str, str]`, texts by path. A target whose pack is not this program's own has `prompt_pack`
    instead: `(name) -> Mapping[str, str]`, the pack's files with its manifest. `packages` are the import
    packages, besides the rooms, that tracing and judging need on another machine. `measures_in_turns`: its
    evaluators run a kernel in turns with the one that it was made from, and are told that one's source.
    """

    proposers: Mapping[str, ProposerEntry] = field(default_factory=dict)
    evaluators: Mapping[str, str] = field(default_factory=dict)
    prompts: Path | None = None
    prompt_files: str | None = None
    prompt_pack: str | None = None
    hosts: HostParts | None = None
    packages: tuple[str, ...] = ()
    tracer: str | None = None
    tuner: str | None = None
    translator: str | None = None
    calibrator: str | None = None
    machine_rates: str | None = None
    device_checks: str | None = None
    judge: str | None = None
    tools: ToolParts = field(default_factory=ToolParts)
    measures_in_turns: bool = False


def import_part(name: str) -> Any:
    """Import what `"package.module:attribute"` names; without a colon, the module."""
    module, _, attribute = name.partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found
