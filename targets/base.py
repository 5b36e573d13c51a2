"""What a target is: the facts of a device, the language of its kernels, and where its parts are.

A `Target` is light: loading one imports no compiler, simulator or SDK. Parts that are heavy, or that belong
to one room, are named by module (`"package.module:attribute"`); the room that needs a part imports it with
`import_part` when it needs it:

===========  =====================================  =============================================
part         who imports it                         what it must be
===========  =====================================  =============================================
proposers    `agent_core.proposers`                 `create() -> agent_core.roles.Proposer`
tracer       `remote.local`                         `remote.tracing.Tracer`
judge        `remote.worker`                        `remote.judge.program_judge.ProgramJudge`
evaluators   `remote.registry`                      `(EvaluatorSpec, Resources) -> remote.evaluator.Evaluator`
tuner        `agentctl tune`                         a module: `load`, `problem_of`, `check_root`, `export`,
`Scale` devices      `remote.ssh.devices`                   `(DeviceFacts, LocalEvaluator) ->
remote.ssh.devices.Device` ===========  =====================================
=============================================
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from seeds.errors import describe_unknown

if TYPE_CHECKING:
    from seeds.spec import ProblemWork
    from state.model import Digest, ErrorInfo


class UnknownTargetError(Exception):
    """No target has this name."""

    code = "unknown_target"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(describe_unknown("target", name, known))


class SourceError(Exception):
    """A text is no kernel in the target's language; `code` is stable, the message says what is wrong."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class PeakRates:
    """Published peak rates of one core: GB/s (1e9 bytes), TFLOPS of float32 products, GFLOPS of all else.

    Percentages of the roofline are shares of these, so that they compare with what others publish.
    """

    bandwidth_gb_s: float
    matmul_tflops: float
    other_gflops: float

    def roofline_ms(self, work: ProblemWork) -> float:
        """Return the plain lower bound on latency: max of bytes, products and other FLOPs over their peak."""
        seconds = max(
            work.total_bytes / (self.bandwidth_gb_s * 1e9),
            work.matmul_flops / (self.matmul_tflops * 1e12),
            work.other_flops / (self.other_gflops * 1e9),
        )
        return seconds * 1e3


@dataclass(frozen=True, slots=True)
class Technique:
    """One way to make a kernel faster; `bottlenecks` are the classes of the profile that it relieves."""

    id: str
    title: str
    description: str
    bottlenecks: frozenset[str]


@dataclass(frozen=True, slots=True)
class ProposerEntry:
    """A proposer that a target brings: `module` has its `create()`.

    `repairs`: it repairs refused kernels. `looks_ahead`: it searches by predictions before it plans.
    """

    module: str
    repairs: bool = False
    looks_ahead: bool = False


class Language(Protocol):
    """The language that a target's kernels are written in."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def fence(self) -> str:
        """The word behind the fence of a code block, as models write it."""
        ...

    @property
    def kernel_file(self) -> str:
        """The name under which a problem's folder has its starting kernel."""
        ...

    def lint(self, source: bytes) -> ErrorInfo | None:
        """Return why a kernel's text is refused before anything runs; None for one that may run."""
        ...

    def code_digest(self, source: bytes) -> Digest:
        """Return the digest by which duplicates are known; it never fails."""
        ...

    def kernel_names(self, source: str) -> frozenset[str]:
        """Return the names of the functions that may be the kernel.

        Raises:
            SourceError: the text is not in this language.
        """
        ...

    def operators(self, source: str) -> frozenset[str]:
        """Return the instructions that a kernel uses, as tags of what it is like; none of what cannot be
        read."""
        ...


class Target(Protocol):
    """One device, as the rest of the program knows it."""

    @property
    def name(self) -> str:
        """The name in configurations and logs."""
        ...

    @property
    def family(self) -> str:
        """The folder of its kind; targets of a family share language, judge, evaluators and menu."""
        ...

    @property
    def title(self) -> str:
        """What people call the device."""
        ...

    @property
    def language(self) -> Language:
        """What its kernels are written in."""
        ...

    @property
    def peaks(self) -> PeakRates:
        """The published peak rates of one core."""
        ...

    @property
    def roofline_name(self) -> str:
        """Whose roofline the peaks are, for people."""
        ...

    @property
    def parts(self) -> Parts:
        """Where its heavier parts are."""
        ...

    @property
    def counters(self) -> tuple[str, ...]:
        """The counters of a profile that planners can be shown."""
        ...

    def tight_bound_ms(self, work: ProblemWork) -> float:
        """Return the tight lower bound on latency, in milliseconds."""
        ...

    def engine_peaks(self) -> Mapping[str, float]:
        """Return the peak rate of each engine that works element by element, in lane cycles per second."""
        ...

    def rewrites(self) -> Collection[str]:
        """Return the names of the rewrites that its own proposers carry out; none where it has no engine."""
        ...

    def menu(self) -> Mapping[str, Technique]:
        """Return the techniques that its proposers share, by id, in the order in which they are told."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """Where a target's parts are, as `"package.module:attribute"`; None where it has none.

    `proposers` and `evaluators` are by the names that configurations use. `devices` are what hosts may have,
    by the kind that a host reports. `simulator` names the evaluators that use no device.
    """

    proposers: Mapping[str, ProposerEntry] = field(default_factory=dict)
    evaluators: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    tracer: str | None = None
    tuner: str | None = None
    judge: str | None = None


def import_part(name: str) -> Any:
    """Import what `"package.module:attribute"` names; without a colon, the module."""
    module, _, attribute = name.partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found
