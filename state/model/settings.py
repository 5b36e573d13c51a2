"""The settings of a run: the numbers of its search, and its effective configuration."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from state.model.base import FrozenModel, is_empty, is_unset
from state.model.hosts import HostEntry, HostTag
from state.model.judgement import LatencyBounds, ProblemRef
from state.model.scoring import ScoreConfig

StrategyName = Literal["beam", "greedy", "best-of-n", "random", "evolution"]
"""How a run chooses which kernels to improve, and how; `agent_core.strategies` describes each."""


class SearchConfig(FrozenModel):
    """The search's numbers; names and defaults as in AccelOpt's paper, sized for the built-in proposer."""

    strategy: StrategyName = Field(
        default="beam", description="how the search goes; the others are there to compare beam with"
    )
    beam: int = Field(
        default=4, ge=1, le=64, description="B: candidates kept between rounds; 6 where models plan"
    )
    plans: int = Field(
        default=6, ge=1, le=64, description="N: plans per candidate and round; 12 where models plan"
    )
    implementations: int = Field(
        default=1, ge=1, le=16, description="K: implementations per plan; 2 where models plan"
    )
    rounds: int = Field(default=4, ge=1, le=10_000, description="rounds at most (T); 16 where models plan")
    explorers: int = Field(default=1, ge=0, le=64, description="beam slots for explorers (X)")
    explorer_slack_ratio: float = Field(
        default=1.5,
        ge=1,
        le=10,
        description="how many times slower than the fastest of its ancestors an explorer may be",
    )
    explorer_depth: int = Field(
        default=3, ge=1, le=100, description="rounds without gain after which an explorer is given up (D)"
    )
    confidence_percent: float = Field(
        default=55.0,
        ge=0,
        le=100,
        description="the confidence that a predicted gain must have to count, from draws and measured pairs",
    )
    repairs: int = Field(default=2, ge=0, le=10, description="repairs of a refused kernel at most (F)")
    top_k: int = Field(
        default=8,
        ge=0,
        le=256,
        description="pairs of a slow and a fast kernel that are summarised per round (TopK)",
    )
    experiences: int = Field(default=16, ge=0, le=1024, description="experiences that a run keeps (ExpN)")
    t_pos: float = Field(
        default=1.04, gt=1, le=10, description="speed-up from which a pair is a positive experience"
    )
    t_neg: float = Field(
        default=1.15, gt=1, le=10, description="slow-down from which a pair is a negative experience"
    )
    lookahead_predictions: int = Field(
        default=320,
        ge=0,
        le=10_000,
        description="kernels predicted per slot and round before any is judged; 0: none",
    )
    lookahead_instructions: int = Field(
        default=3_000_000,
        ge=1,
        le=1_000_000_000,
        description="instructions that all kernels predicted for a slot and round may have together",
    )
    lookahead_depth: int = Field(
        default=12, ge=1, le=1000, description="rewrites that a sequence found by looking ahead may have"
    )
    lookahead_width: int = Field(
        default=3, ge=1, le=64, description="kernels that a look-ahead continues from at a time"
    )
    reuse: bool = Field(
        default=True,
        description="begin with what was learnt on similar problems in this home: try sequences that paid,"
        " show experiences to models",
    )
    simplify: bool = Field(
        default=True,
        description="before the run ends, look for a simpler kernel that is as fast as its best",
    )
    round_seconds: float | None = Field(
        default=None,
        gt=0,
        le=604_800,
        description="close a round after this time; late kernels compete in the next round",
    )
    history: int = Field(default=256, ge=1, le=4096, description="attempts that later proposals can see (H)")
    reflections: int = Field(
        default=64, ge=0, le=1024, description="lessons of the reflector that a run keeps"
    )
    plateau_rounds: int = Field(
        default=3, ge=1, le=1000, description="rounds without gain after which a run ends (P)"
    )
    within_percent: float = Field(
        default=0.5, ge=0, le=100, description="stop within this distance of the model bound"
    )
    target_speedup: float | None = Field(default=None, gt=1, description="stop at this speed-up")
    target_ms: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="stop at this latency of the best kernel"
    )


ModelShare = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*/[^\s=]+(=\d+(\.\d+)?)?$")]
"""A model and its weight, ENDPOINT/MODEL=WEIGHT; the weight is 1 if left out."""


_RECORDED_METRICS = (
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
"""The default of `run.llm.metrics` that the states of recorded runs contain; it is not changed any more."""


RoleForm = Literal["question", "loop"]
"""How a model does a role: it answers one question, or works in a loop of turns with tools."""


class AgentConfig(FrozenModel):
    """The coding agent that the planner `agent` starts for each plan, and what it may use."""

    command: tuple[str, ...] = Field(
        default=(),
        description="the program and its arguments; {task}, {mcp}, {scratch}, {python}, {usd} are filled in",
    )
    variables: tuple[str, ...] = Field(
        default=(), description="variables of agentd's environment that it gets, such as its key"
    )
    shown: tuple[str, ...] = Field(
        default=(),
        description="folders that it can read in its jail, besides the system's and this program's",
    )
    seconds: float = Field(default=900.0, gt=0, le=86_400, description="how long it may work on one plan")
    tool_calls: int = Field(
        default=64, ge=1, le=1000, description="calls of tools that it may make for one plan"
    )
    usd: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        exclude_if=is_unset,
        description="what each plan reserves of the caps, and what {usd} stands for; "
        "unset: run.llm.session_percent of run.cap_usd",
    )


class LlmConfig(FrozenModel):
    """Which models are asked, how much at a time, and what they are shown."""

    models: tuple[ModelShare, ...] = Field(
        default=(), description="models that plan and implement, ENDPOINT/MODEL or ENDPOINT/MODEL=WEIGHT"
    )
    executor_models: tuple[ModelShare, ...] = Field(
        default=(), description="models that implement and repair; none: the one that planned"
    )
    summarizer_models: tuple[ModelShare, ...] = Field(
        default=(), description="models that summarise and reflect; none: the one that planned"
    )
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        default=None, description="how long models may think, where they have such a setting"
    )
    form: RoleForm = Field(
        default="question",
        description="how plans are carried out: with one question, or in a loop with tools;"
        " loop where models plan",
    )
    repairer_form: RoleForm | None = Field(
        default=None, description="how refused kernels are repaired; unset: as plans are carried out"
    )
    planner_form: RoleForm | None = Field(
        default=None,
        exclude_if=is_unset,
        description="how plans are made: with one question for each, or in a loop with tools that"
        " submits several plans; unset: question",
    )
    turns: int = Field(
        default=16, ge=1, le=200, description="answers that one loop may take before it is ended"
    )
    session_percent: float = Field(
        default=25.0,
        gt=0,
        le=100,
        description="the most of the run's caps in US$ and tokens that one loop may spend",
    )
    tell_titles: bool = Field(
        default=False,
        exclude_if=is_empty,
        description="show planners each attempt's title and, if it is a copy, the kernel that it copies;"
        " true where models plan",
    )
    scale_to_cap: bool = Field(
        default=False,
        exclude_if=is_empty,
        description="ask for fewer kernels, plans and implementations where the caps pay for no more;"
        " true where models plan",
    )
    max_output_tokens: int = Field(
        default=16_000, ge=256, le=1_000_000, description="tokens that one answer may take, thinking included"
    )
    max_input_tokens: int = Field(
        default=64_000, ge=2_000, le=10_000_000, description="tokens that one prompt may take"
    )
    menu_dropout_percent: float = Field(
        default=70.0,
        ge=0,
        le=100,
        description="how much of the menu of techniques is left out, drawn per plan",
    )
    memory_dropout_percent: float = Field(
        default=50.0,
        ge=0,
        le=100,
        description="how much of what was learnt is left out, drawn per plan",
    )
    metrics: tuple[str, ...] = Field(
        default=_RECORDED_METRICS,
        description="profile counters that planners see, in a random order; the default stands for all"
        " counters of the run's target, whatever they are named",
    )


def _is_default_agent(found: AgentConfig) -> bool:
    """Whether nothing is set: left out then, it leaves the hashes of older logs as they are."""
    return found == AgentConfig()


ApprovalPoint = Literal["before_round", "new_best", "completion"]
"""Where a run may wait for a person: before each round, when there is a new best, before it completes."""


StartName = Literal["kernel", "translation"]
"""A kernel that a run begins from: the problem's own (or the given one), or its reference translated."""


class RunConfig(FrozenModel):
    """Everything that decides how a run goes; its effective values are part of RunCreated."""

    problem: str = Field(
        default="rmsnorm_matmul",
        description="what is optimised: a name, a folder, or a benchmark's file",
    )
    size: Literal["full", "reduced"] = Field(default="full", description="the problem's size")
    target: str = Field(default="trn2", description="the device that kernels are for")
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of all draws")
    starts: Literal["kernel", "translation", "both"] = Field(
        default="both",
        description="what a new run begins from: its kernel, its reference translated, or both",
    )
    evaluator: str = Field(default="sim", description="who judges and times kernels")
    hosts: tuple[HostEntry, ...] = Field(
        default=(), max_length=256, description="hosts that kernels run on, [user@]host[:port] or a table"
    )
    host_tags: tuple[HostTag, ...] = Field(
        default=(), description="only hosts that have all of these tags are used"
    )
    prefilter: Literal["sim"] | None = Field(
        default=None,
        description="who predicts kernels first: only the half that it finds faster goes to hosts",
    )
    calibration: str = Field(
        default="",
        max_length=64,
        exclude_if=is_empty,
        description="the calibration of `agentctl calibrate` that predictions use; empty: the target's table",
    )
    planner: tuple[str, ...] = Field(
        default=("builtin",),
        min_length=1,
        description="who proposes; the beam's slots are given to these in turn",
    )
    cap_usd: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="what LLM calls of the run may cost"
    )
    cap_tokens: int | None = Field(
        default=None, ge=1, description="tokens that LLM calls of the run may take"
    )
    cap_calls: int | None = Field(default=None, ge=1, description="LLM calls that the run may make")
    cap_seconds: float | None = Field(
        default=None, gt=0, le=31_536_000, description="how long the run may take, by the clock"
    )
    cap_device_seconds: float | None = Field(
        default=None, gt=0, description="how long the run may use devices; a simulator is none"
    )
    approval: tuple[ApprovalPoint, ...] = Field(
        default=(), description="where the run waits for `agentctl approve`"
    )
    llm: LlmConfig = Field(default_factory=LlmConfig)
    agent: AgentConfig = Field(default_factory=AgentConfig, exclude_if=_is_default_agent)
    score: ScoreConfig = Field(default_factory=ScoreConfig)
    search: SearchConfig = Field(default_factory=SearchConfig)

    @model_validator(mode="after")
    def _require_what_is_named(self) -> Self:
        if self.score.command and not self.hosts:
            raise ValueError("score.command is set, and hosts names no host to run it on")
        if "agent" in self.planner and not self.agent.command:
            raise ValueError("planner has agent, and agent.command does not say which program to start")
        return self


class Rebase(FrozenModel):
    """The new conditions under which a fork judges kernels, from its first event on."""

    config: RunConfig
    problem: ProblemRef
    bounds: LatencyBounds
    toolchain: str
